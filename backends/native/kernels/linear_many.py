"""y = W x for many activation rows: the product of prefill, which runs at the speed of the cores.

The lanes of a vector are 16 rows of W, a *strip*. For 256 columns at a time two strips are unpacked once to 16-bit
integers, interleaved as [pair of columns][16 rows][2], and then used for every token: a conversion and a scaled add
serve 32 columns of 16 rows. Small integer scales of sub-blocks are multiplied into the 16 bits. The stack holds the
strips: about 28 KB. What a token gets does not depend on the tokens beside it, not even in the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..emit import F32, I1, I16, I32, I64, PTR, VOID, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from ..target import Target
from .activations import GROUP, LARGEST, RECORD, SCALE_AT, STEP, SUMS_AT, row_bytes
from .plain import PlainType
from .quant import QuantType, Unpacked
from .types import TYPES

LANES = 16
"""Rows of W in a strip, the lanes of its vectors."""
STRIPS = 2
"""Strips that are unpacked together."""
ROWS = LANES * STRIPS
FEW, MANY = 16, 128
"""Work groups that are taken singly by two workers, and so many that taking 8 at a time is fine."""
_LINE = 2 * GROUP
"""Bytes of a row of a strip: 128 pairs of i16, or 128 float32."""
_STRIP = LANES * _LINE
_SCALES, _MINIMA = 4 * LANES * GROUP // 16, 4 * LANES * GROUP // 16
"""Bytes of a strip, of its scales [unit of 16 or 32 columns][16 rows] and of its minima [span of as many][16 rows]."""


def linear_many(type_name: str, pairs: int = 1) -> Kernel:
    """y = x W^T for many activation rows.

    w: the raw rows of the weight; y: float32 (tokens, rows). x for quantized types is what `quantize_rows` writes,
    int16 (tokens, activation_width(cols)); for plain ones float32 (tokens, cols). cols is a multiple of the type's
    block. A work group does `pairs` pairs of strips.
    """
    kind = TYPES[type_name]
    name = f"ggufc_linear_many_{type_name}"
    if isinstance(kind, PlainType):
        return kernel(name, pairs, "f32", _Plain(kind).emit)
    return kernel(name, pairs, "i16", Words(kind).emit)


def kernel(name: str, pairs: int, x: str, emit: Callable[[Emitter, Arguments, Value], None]) -> Kernel:
    """The kernel of a product whose `emit` does a pair of strips from a given row on; `x` is the type that it takes."""

    def body(e: Emitter, a: Arguments) -> None:
        first, all_ = e.times(a["@rows"], pairs), e.over(e.add(a["rows"], e.index(ROWS - 1)), ROWS)
        last = e.minimum(e.add(first, e.index(pairs)), all_)
        e.each(first, last, 1, lambda pair: emit(e, a, e.times(pair, ROWS)))

    return Kernel(
        f"{name}{'' if pairs == 1 else f'_{pairs}'}",
        (Buffer("w", "i8"), Buffer("x", x), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("rows"), Scalar("cols")),
        (("rows", ROWS * pairs),),
        body,
    )


def pairs_per_group(rows: int) -> int:
    """The `pairs` to choose for a matrix: work groups that two or four workers share evenly.

    IREE's workers take work groups one by one where there are fewer than 8 for each of them, else 8 at a time
    (runtime/src/iree/task/task.c): a number between leaves one of two workers idle at the end.
    """
    pairs = -(-rows // ROWS)
    if pairs < FEW or pairs >= MANY:
        return 1

    def idle(share: int) -> int:
        groups = -(-pairs // share)
        return sum(-(-groups // workers) * workers * share for workers in (2, 4))

    return min((share for share in range(1, pairs) if -(-pairs // share) < FEW), key=idle)


def _register_tile(target: Target) -> tuple[int, tuple[int, ...]]:
    """Strips in a register tile, and the numbers of tokens in one, largest first, down to one.

    The sums of a tile, as integers and as floats, fill most of the registers: the larger the tile, the fewer loads.
    """
    if target.vector_bits == 512:
        return 2, (6, 2, 1)
    if target.vector_bits == 256 or target.vector_registers == 32:
        return 1, (4, 1)
    return 1, (1,)


def _for_tiles(e: Emitter, tokens: Value, tile: Callable[[Value, int, Sequence[int]], None]) -> None:
    """Covers all tokens and the strips with register tiles: tile(first token, number of tokens, strips)."""
    strips, sizes = _register_tile(e.target)
    for first in range(0, STRIPS, strips):
        done = e.index(0)
        for size in sizes:
            end = e.add(done, e.times(e.over(e.sub(tokens, done), size), size))
            e.each(done, end, size, lambda t, n=size, s=range(first, first + strips): tile(t, n, s))
            done = end


class _Output:
    """The columns of y that a work group owns, which each panel adds to."""

    def __init__(self, e: Emitter, a: Arguments, first: Value) -> None:
        self.e, self.rows = e, a["rows"]
        self.y = e.at(a["y"], e.times(first, 4))
        left = e.splat(e.sub(a["rows"], first), LANES)
        lanes = [const(vec(I64, LANES), range(LANES * s, LANES * s + LANES)) for s in range(STRIPS)]
        self.masks = [e.icmp_signed("<", lane, left) for lane in lanes]

    def add(self, token: Value, strip: int, value: Value, start: Value) -> None:
        """y[token] += value, or = value in the panel that starts at column 0."""
        e, kind, mask = self.e, vec(F32, LANES), vec(I1, LANES)
        read = e.declare("llvm.masked.load.v16f32.p0", kind, PTR, I32, mask, kind)
        write = e.declare("llvm.masked.store.v16f32.p0", VOID, kind, PTR, I32, mask)
        at = e.at(self.y, e.add(e.times(e.mul(token, self.rows), 4), e.index(4 * LANES * strip)))
        later = e.and_(self.masks[strip], e.splat(e.icmp_signed(">", start, e.index(0)), LANES))
        before = e.call(read, [at, const(I32, 4), later, const(kind, 0.0)])
        e.call(write, [e.fadd(before, value), at, const(I32, 4), self.masks[strip]])


def _transpose_strip(e: Emitter, lines: Value, line: int, strip: Value, words: Value) -> None:
    """16 lines, each of `line` bytes, of `words` 32-bit words (a multiple of 4) to [word][16 rows]."""
    four = vec(I32, 4)

    def columns(i: Value) -> None:
        source = e.at(lines, e.times(i, 4))
        # The loads put rows r, r + 4, r + 8 and r + 12 in the quarters of a vector; then each quarter is transposed.
        rows = [e.concat([e.read(four, source, line * (r + q)) for q in range(0, LANES, 4)]) for r in range(4)]
        for k, column in enumerate(e.transpose_quads(rows)):
            e.write(column, e.at(strip, e.times(i, 4 * LANES)), 4 * LANES * k, align=64)

    e.each(0, words, 4, columns)


def _for_rows(e: Emitter, first: Value, rows: Value, body: Callable[[Value, Value], None]) -> None:
    """body(lane, row) for the 16 rows from `first`; past the last one it is repeated, and will not be written."""
    last = e.sub(rows, e.index(1))
    e.each(0, LANES, 1, lambda r: body(r, e.minimum(e.add(first, r), last)))


@dataclass(frozen=True)
class Words:
    """The product of a quantized type whose integers, times those of its sub-blocks, stand in the strips as 16 bits.

    `line` is the bytes of a strip's row, `record` those of 256 elements of x, `sums_at` where it has sums of a span.
    """

    type: QuantType
    line: ClassVar[int] = 2 * GROUP
    record: ClassVar[int] = RECORD
    sums_at: ClassVar[dict[int, int]] = SUMS_AT

    @property
    def unit(self) -> int:
        """Columns that share a place among the scales."""
        return STEP

    @property
    def step(self) -> int:
        """Columns whose products add up as integers: 32, or more where they share d and can't overflow."""
        step = STEP
        while self.type.block >= 2 * step and 2 * step * self.type.largest * LARGEST < 2**31:
            step *= 2
        return step

    def emit(self, e: Emitter, a: Arguments, first: Value) -> None:
        """The products of the rows of W from `first` on, a pair of strips."""
        kind, cols, rows = self.type, a["cols"], a["rows"]
        size, per_word = LANES * self.line, 4 * GROUP // self.line
        lines, strips = e.scratch(size), [e.scratch(size) for _ in range(STRIPS)]
        scales, minima = ([e.scratch(size) for _ in range(STRIPS)] for size in (_SCALES, _MINIMA))
        scratch = kind.zero_scratch(e)
        stride = kind.row_bytes(e, cols)
        x_stride = row_bytes(e, cols, self.record)
        output = _Output(e, a, first)

        def panel(start: Value) -> None:
            width = e.minimum(e.sub(cols, start), GROUP)

            def unpack(strip: int, lane: Value, row: Value) -> None:
                line = e.at(a["w"], e.mul(row, stride))
                factors = kind.row_factors(e, line)

                def unpack_chunk(c: Value) -> None:
                    def column(table: Value, span: int) -> Value:
                        return e.at(table, e.add(e.times(lane, 4), e.times(e.over(c, span), 4 * LANES)))

                    address = e.at(line, kind.column_at(e, e.add(start, c)))
                    # rows are too short for the hardware to see a stream: the next panel's part comes meanwhile
                    e.prefetch(address, GROUP // kind.block * kind.block_bytes, kind.chunk_bytes)
                    address = kind.padded(e, address, e.over(e.sub(width, c), kind.block), scratch)
                    into = e.at(lines, e.add(e.times(lane, self.line), e.times(c, self.line // GROUP)))
                    chunk = kind.unpack(e, address, factors)
                    self.spread(e, chunk, into, column(scales[strip], self.unit), column(minima[strip], kind.span))

                e.each(0, width, kind.chunk, unpack_chunk)

            for s, strip in enumerate(strips):
                _for_rows(e, e.add(first, e.index(LANES * s)), rows, lambda lane, row, s=s: unpack(s, lane, row))
                _transpose_strip(e, lines, self.line, strip, e.over(width, per_word))
            x = e.at(a["x"], e.times(e.over(start, GROUP), self.record))

            def tile(token: Value, count: int, chosen: Sequence[int]) -> None:
                records = [e.at(x, e.mul(e.add(token, e.index(t)), x_stride)) for t in range(count)]
                sources = [Strip(strips[s], scales[s], minima[s]) for s in chosen]
                sums = iter(self.product(e, records, sources, width))
                for t in range(count):
                    for s in chosen:
                        output.add(e.add(token, e.index(t)), s, next(sums), start)

            _for_tiles(e, a["tokens"], tile)

        e.each(0, cols, GROUP, panel)

    def spread(self, e: Emitter, chunk: Unpacked, line: Value, scales: Value, minima: Value) -> None:
        """One row's chunk: its integers to `line`, its scales and minima to columns of [unit or span][16 rows]."""
        kind = self.type
        narrow = None if chunk.sub is None else e.trunc(chunk.sub, vec(I16, chunk.sub.type.count))
        lanes: dict[int, int] = {}
        for start, lane, values in kind.runs(e, chunk):
            lanes[start] = lane
            e.write(
                values if narrow is None else e.mul(values, e.take(narrow, [lane] * values.type.count)), line, 2 * start
            )
        full = kind.scales(e, chunk)
        for start in range(0, kind.chunk, self.step):
            e.write(e.extract_element(chunk.d, const(I32, lanes[start])), scales, 4 * LANES * (start // STEP))
        self.spread_minima(e, full, minima)

    def spread_minima(self, e: Emitter, full: Value, minima: Value) -> None:
        """The minima of a chunk, of its vector of scales, to a column of [span][16 rows]."""
        for m in self.type.minima:
            minimum = e.extract_element(full, const(I32, m.lane))
            e.write(e.fneg(minimum), minima, 4 * LANES * (m.start // m.count))

    def add_minima(
        self, e: Emitter, records: list[Value], strips: list[Strip], c: Value, totals: Sequence[Value]
    ) -> list[Value]:
        """The totals with what the minima of 32 columns take away."""
        kind, results, size = vec(F32, LANES), list(totals), self.type.span
        for start in range(0, STEP, size) if self.type.minima else ():
            span, before = e.over(e.add(c, e.index(start)), size), iter(results)
            minima = [e.read(kind, s.minima, e.times(span, 4 * LANES), align=64) for s in strips]
            places = [e.at(r, e.times(span, 4)) for r in records]
            sums = [e.splat(e.read(F32, place, self.sums_at[size], align=4), LANES) for place in places]
            results = [e.fma_(minimum, s, next(before)) for s in sums for minimum in minima]
        return results

    def product(self, e: Emitter, records: list[Value], strips: list[Strip], width: Value) -> list[Value]:
        """The register tile: a few tokens times some strips over one panel, token by token."""
        real, whole, words = vec(F32, LANES), vec(I32, LANES), vec(I16, 2 * LANES)
        n = len(records) * len(strips)

        def products(c: Value, sums: Sequence[Value]) -> list[Value]:
            """Adds the integer products of 32 columns."""

            def pairs(first: Value, *sums: Value) -> list[Value]:
                results: list[Value] = []
                for pair in range(unrolled):
                    before = iter(results or sums)
                    at = e.times(e.add(e.over(c, 2), first), 4 * LANES)
                    weights = [e.read(whole, e.at(s.weights, at), 4 * LANES * pair, align=64) for s in strips]
                    results = []
                    for record in records:
                        source = e.at(record, e.add(e.times(c, 2), e.times(first, 4)))
                        both = e.bitcast(e.splat(e.read(I32, source, 4 * pair, align=4), LANES), words)
                        results += [e.dot_pairs(next(before), e.bitcast(w, words), both) for w in weights]
                return results

            # In a longer body LLVM would reorder plain additions, and with them what the registers have to hold.
            unrolled = STEP // 2 if e.target.has_avx512_vnni else 1
            return e.loop(0, STEP // 2, unrolled, sums, pairs)

        def step(c: Value, *totals: Value) -> list[Value]:
            def inner(k: Value, *both: Value) -> list[Value]:
                return [*products(k, both[:n]), *self.add_minima(e, records, strips, k, both[n:])]

            both = [*([const(whole, 0)] * n), *totals]
            both = e.loop(c, e.add(c, e.index(self.step)), STEP, both, inner)
            at = e.times(e.over(c, STEP), 4 * LANES)
            scales = [e.read(real, s.scales, at, align=64) for s in strips] * len(records)
            integers = [e.sitofp(i, real) for i in both[:n]]
            return [e.fma_(i, scale, t) for i, scale, t in zip(integers, scales, both[n:], strict=True)]

        sums = e.loop(0, width, self.step, [const(real, 0.0)] * n, step)
        factors = [e.splat(e.read(F32, r, SCALE_AT, align=4), LANES) for r in records for _ in strips]
        return [e.fmul(total, factor) for total, factor in zip(sums, factors, strict=True)]


@dataclass(frozen=True)
class Strip:
    """The addresses of an unpacked strip."""

    weights: Value
    scales: Value
    minima: Value


@dataclass(frozen=True)
class _Plain:
    type: PlainType

    def emit(self, e: Emitter, a: Arguments, first: Value) -> None:
        """As of `_Quantized`."""
        cols, tokens, rows, kind = a["cols"], a["tokens"], a["rows"], vec(F32, LANES)
        stride = self.type.row_bytes(e, cols)
        lines, strips = e.scratch(_STRIP), [e.scratch(_STRIP) for _ in range(STRIPS)]
        output = _Output(e, a, first)

        def panel(start: Value) -> None:
            width = e.minimum(e.sub(cols, start), _LINE // 4)

            def copy(lane: Value, row: Value) -> None:
                source = e.at(a["w"], e.add(e.mul(row, stride), self.type.row_bytes(e, start)))
                line = e.at(lines, e.times(lane, _LINE))

                def widen(i: Value) -> None:
                    e.write(self.type.read(e, e.at(source, self.type.row_bytes(e, i))), line, e.times(i, 4))

                e.each(0, width, 1, widen)

            for s, strip in enumerate(strips):
                _for_rows(e, e.add(first, e.index(LANES * s)), rows, copy)
                _transpose_strip(e, lines, _LINE, strip, width)
            x = e.at(a["x"], e.times(start, 4))

            def tile(token: Value, count: int, chosen: Sequence[int]) -> None:
                sources = [e.at(x, e.times(e.mul(e.add(token, e.index(t)), cols), 4)) for t in range(count)]

                def column(k: Value, *totals: Value) -> list[Value]:
                    before = iter(totals)
                    weights = [e.read(kind, strips[s], e.times(k, 4 * LANES), align=64) for s in chosen]
                    values = [e.splat(e.read(F32, source, e.times(k, 4)), LANES) for source in sources]
                    return [e.fma_(w, v, next(before)) for v in values for w in weights]

                sums = iter(e.loop(0, width, 1, [const(kind, 0.0)] * (count * len(chosen)), column))
                for t in range(count):
                    for s in chosen:
                        output.add(e.add(token, e.index(t)), s, next(sums), start)

            _for_tiles(e, tokens, tile)

        e.each(0, cols, _LINE // 4, panel)
