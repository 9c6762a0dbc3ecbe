"""y = W x for many activation rows: the product of prefill, which runs at the speed of the cores.

The lanes of a vector are 16 rows of W. For 256 columns at a time the tile of 16 rows is unpacked once to 16-bit
integers, interleaved as [pair of columns][16 rows][2], and then used for every token: a conversion and a scaled add
serve 32 columns of 16 rows. Small integer scales of sub-blocks are multiplied into the 16 bits. The stack holds the
tile: about 18 KB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..emit import F32, I1, I16, I32, I64, PTR, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from ..target import Target
from .activations import GROUP, LARGEST, RECORD, SCALE_AT, STEP, SUMS_AT, activation_bytes
from .quant import RUN, QuantType
from .types import QUANT_TYPES

ROWS = 16
"""Rows of W in a tile, the lanes of its vectors."""


def linear_many(type_name: str) -> Kernel:
    """y = x W^T for many activation rows.

    w: the raw rows of the weight; y: float32 (tokens, rows). x for quantized types is what `quantize_rows` writes,
    int16 (tokens, activation_width(cols)); for "f32": float32 (tokens, cols). cols is a multiple of the type's block.
    """
    emit = _emit_float if type_name == "f32" else _Quantized(QUANT_TYPES[type_name]).emit
    return Kernel(
        f"ggufc_linear_many_{type_name}",
        (Buffer("w", "i8"), Buffer("x", "f32" if type_name == "f32" else "i16"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("rows"), Scalar("cols")),
        (("rows", ROWS),),
        emit,
    )


def _token_tiles(target: Target) -> tuple[int, ...]:
    """Numbers of tokens in a register tile, largest first, down to one."""
    return {512: (8, 4, 1), 256: (4, 1)}.get(target.vector_bits, (4, 1) if target.vector_registers == 32 else (1,))


def _for_tokens(e: Emitter, tokens: Value, tile: Callable[[Value, int], None]) -> None:
    """Covers all tokens with register tiles: tile(first token, number of tokens)."""
    done = e.index(0)
    for size in _token_tiles(e.target):
        end = e.add(done, e.times(e.over(e.sub(tokens, done), size), size))
        e.each(done, end, size, lambda t, size=size: tile(t, size))
        done = end


class _Output:
    """The 16 columns of y that a work group owns, which each panel adds to."""

    def __init__(self, e: Emitter, a: Arguments, first: Value) -> None:
        self.e, self.rows = e, a["rows"]
        self.y = e.at(a["y"], e.times(first, 4))
        left = e.sub(a["rows"], first)
        lanes = const(vec(I64, ROWS), tuple(range(ROWS)))
        self.mask = e.icmp_signed("<", lanes, e.splat(left, ROWS))

    def add(self, token: Value, value: Value, start: Value) -> None:
        """y[token] += value, or = value in the panel that starts at column 0."""
        e, kind = self.e, vec(F32, ROWS)
        mask = vec(I1, ROWS)
        read = e.declare("llvm.masked.load.v16f32.p0", kind, PTR, I32, mask, kind)
        write = e.declare("llvm.masked.store.v16f32.p0", e.function.function_type.return_type, kind, PTR, I32, mask)
        at = e.at(self.y, e.times(e.mul(token, self.rows), 4))
        later = e.and_(self.mask, e.splat(e.icmp_signed(">", start, e.index(0)), ROWS))
        before = e.call(read, [at, const(I32, 4), later, const(kind, 0.0)])
        e.call(write, [e.fadd(before, value), at, const(I32, 4), self.mask])


def _transpose_tile(e: Emitter, lines: Value, tile: Value, words: Value) -> None:
    """16 rows of `words` 32-bit words (a multiple of 16, rows 4 * GROUP bytes or less apart) to [word][16 rows]."""
    kind = vec(I32, ROWS)

    def square(i: Value) -> None:
        source = e.at(lines, e.times(i, 4))
        columns = e.transpose([e.read(kind, source, _LINE * r) for r in range(ROWS)])
        for k, column in enumerate(columns):
            e.write(column, e.at(tile, e.times(i, 64)), 64 * k, align=64)

    e.each(0, words, ROWS, square)


_LINE = 2 * GROUP
"""Bytes of a tile's row before it is transposed: 128 pairs of i16."""


@dataclass(frozen=True)
class _Quantized:
    type: QuantType

    @property
    def step(self) -> int:
        """Columns whose products add up as integers: 32, or more where they share d and can't overflow."""
        step = STEP
        while self.type.block >= 2 * step and 2 * step * self.type.largest * LARGEST < 2**31:
            step *= 2
        return step

    def emit(self, e: Emitter, a: Arguments) -> None:
        kind, cols, tokens, rows = self.type, a["cols"], a["tokens"], a["rows"]
        first = e.times(a["@rows"], ROWS)
        lines, tile = e.scratch(ROWS * _LINE), e.scratch(ROWS * _LINE)
        scales, minima = e.scratch(64 * GROUP // STEP), e.scratch(64 * GROUP // STEP)
        scratch = kind.zero_scratch(e)
        stride, x_stride = kind.row_bytes(e, cols), activation_bytes(e, cols)
        output = _Output(e, a, first)

        def panel(start: Value) -> None:
            width = e.minimum(e.sub(cols, start), GROUP)
            w = e.at(a["w"], kind.row_bytes(e, start))

            def row(r: Value) -> None:
                # Rows past the last one repeat it and are not written.
                line = e.at(w, e.mul(e.minimum(e.add(first, r), e.sub(rows, e.index(1))), stride))

                def chunk(c: Value) -> None:
                    address = e.at(line, kind.row_bytes(e, c))
                    address = kind.padded(e, address, e.over(e.sub(width, c), kind.block), scratch)
                    into = e.at(lines, e.add(e.times(r, _LINE), e.times(c, 2)))
                    at = e.add(e.times(r, 4), e.times(e.over(c, STEP), 64))
                    self._unpack(e, address, into, e.at(scales, at), e.at(minima, at))

                e.each(0, width, kind.chunk, chunk)

            e.each(0, ROWS, 1, row)
            _transpose_tile(e, lines, tile, e.over(width, 2))
            x = e.at(a["x"], e.times(e.over(start, GROUP), RECORD))

            def product(token: Value, count: int) -> None:
                records = [e.at(x, e.mul(e.add(token, e.index(t)), x_stride)) for t in range(count)]
                values = self._product(e, records, tile, scales, minima, width)
                for t, (value, record) in enumerate(zip(values, records, strict=True)):
                    scale = e.splat(e.read(F32, record, SCALE_AT), ROWS)
                    output.add(e.add(token, e.index(t)), e.fmul(value, scale), start)

            _for_tokens(e, tokens, product)

        e.each(0, cols, GROUP, panel)

    def _unpack(self, e: Emitter, address: Value, line: Value, scales: Value, minima: Value) -> None:
        """One row's chunk: its integers to `line`, its scales and minima to a column of [step of 32][16 rows]."""
        kind = self.type
        chunk = kind.unpack(e, address, None)
        narrow = None if chunk.sub is None else e.trunc(chunk.sub, vec(I16, chunk.sub.type.count))
        lanes: dict[int, int] = {}
        for start, lane, values in kind.runs(e, chunk):
            lanes[start] = lane
            e.write(values if narrow is None else e.mul(values, e.take(narrow, [lane] * RUN)), line, 2 * start)
        full = kind.scales(e, chunk)
        for start in range(0, kind.chunk, STEP):
            if start % self.step == 0:
                e.write(e.extract_element(chunk.d, const(I32, lanes[start])), scales, 64 * (start // STEP))
            minimum = kind.minimum_lane(start)
            if minimum is not None:
                e.write(e.fneg(e.extract_element(full, const(I32, minimum))), minima, 64 * (start // STEP))

    def _product(
        self, e: Emitter, records: list[Value], tile: Value, scales: Value, minima: Value, width: Value
    ) -> list[Value]:
        """The register tile: 16 rows times a few tokens over one panel, without the activations' scales."""
        kind, real, whole = self.type, vec(F32, ROWS), vec(I32, ROWS)

        def products(c: Value, sums: Sequence[Value]) -> list[Value]:
            """Adds the integer products of 32 columns."""
            weights, sources = e.at(tile, e.times(c, 32)), [e.at(r, e.times(c, 2)) for r in records]

            def pairs(first: Value, *sums: Value) -> Sequence[Value]:
                at, results = e.at(weights, e.times(first, 64)), list(sums)
                for pair in range(unrolled):
                    w = e.bitcast(e.read(whole, at, 64 * pair, align=64), vec(I16, 2 * ROWS))
                    for t, source in enumerate(sources):
                        both = e.splat(e.read(I32, e.at(source, e.times(first, 4)), 4 * pair, align=4), ROWS)
                        results[t] = e.dot_pairs(results[t], w, e.bitcast(both, vec(I16, 2 * ROWS)))
                return results

            # In a longer body LLVM would reorder plain additions, and with them what the registers have to hold.
            unrolled = STEP // 2 if e.target.has_avx512_vnni else 1
            return e.loop(0, STEP // 2, unrolled, sums, pairs)

        def offsets(c: Value, totals: Sequence[Value]) -> list[Value]:
            """Adds what the minima of 32 columns take away."""
            if not kind.minima:
                return list(totals)
            step = e.over(c, STEP)
            minimum = e.read(real, minima, e.times(step, 64), align=64)
            sums = [e.read(F32, e.at(r, e.times(step, 4)), SUMS_AT, align=4) for r in records]
            return [e.fma_(minimum, e.splat(s, ROWS), t) for s, t in zip(sums, totals, strict=True)]

        def run(c: Value, *totals: Value) -> list[Value]:
            def inner(k: Value, *both: Value) -> list[Value]:
                return [*products(k, both[:n]), *offsets(k, both[n:])]

            n = len(records)
            start = [*([const(whole, 0)] * n), *totals]
            if self.step == STEP:
                both = inner(c, *start)
            else:
                both = e.loop(c, e.add(c, e.index(self.step)), STEP, start, inner)
            scale = e.read(real, e.at(scales, e.times(e.over(c, STEP), 64)), align=64)
            return [e.fma_(e.sitofp(s, real), scale, t) for s, t in zip(both[:n], both[n:], strict=True)]

        return e.loop(0, width, self.step, [const(real, 0.0)] * len(records), run)


def _emit_float(e: Emitter, a: Arguments) -> None:
    cols, tokens, rows, kind = a["cols"], a["tokens"], a["rows"], vec(F32, ROWS)
    panel_cols = _LINE // 4
    first = e.times(a["@rows"], ROWS)
    lines, tile = e.scratch(ROWS * _LINE), e.scratch(ROWS * _LINE)
    output = _Output(e, a, first)

    def panel(start: Value) -> None:
        width = e.minimum(e.sub(cols, start), panel_cols)

        def row(r: Value) -> None:
            at = e.add(e.mul(e.minimum(e.add(first, r), e.sub(rows, e.index(1))), cols), start)
            source, line = e.at(a["w"], e.times(at, 4)), e.at(lines, e.times(r, _LINE))
            e.each(0, width, 1, lambda i: e.write(e.read(F32, source, e.times(i, 4)), line, e.times(i, 4)))

        e.each(0, ROWS, 1, row)
        _transpose_tile(e, lines, tile, width)
        x = e.at(a["x"], e.times(start, 4))

        def product(token: Value, count: int) -> None:
            sources = [e.at(x, e.times(e.mul(e.add(token, e.index(t)), cols), 4)) for t in range(count)]

            def column(k: Value, *totals: Value) -> list[Value]:
                w, at = e.read(kind, tile, e.times(k, 64), align=64), e.times(k, 4)
                return [e.fma_(w, e.splat(e.read(F32, s, at), ROWS), t) for s, t in zip(sources, totals, strict=True)]

            for t, value in enumerate(e.loop(0, width, 1, [const(kind, 0.0)] * count, column)):
                output.add(e.add(token, e.index(t)), value, start)

        _for_tokens(e, tokens, product)

    e.each(0, cols, panel_cols, panel)
