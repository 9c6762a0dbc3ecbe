"""y = W x for one activation row: the product of decode, which runs at the speed of the memory.

One row of weights at a time in one sequential stream (two at once lose the hardware's prefetcher), prefetched a few
lines ahead, and not into the caches that all cores share: what a step has there (KV caches, activations, the program
that calls it) is found there by the next one, which makes decode 2 to 5 % faster. Each work group quantizes x for
itself, in the order in which the type unpacks, so no other pass is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from ..emit import F32, I8, I16, I32, I64, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from ..target import Target
from .activations import GROUP, Normed, Quantizer
from .elementwise import act, each_lane
from .plain import PlainType
from .quant import QuantType, Unpacked, scaled, shift_of
from .types import TYPES

_PANEL = 8192
"""Elements of a row that are handled at once: bounds the stack, to about 30 KB for the worst type."""
_FIRST_BYTES = 4096
"""Of a work group's rows, what is asked for at once."""
_VERY_MANY = 1 << 17
_AHEAD = 512
"""Bytes between a load and its prefetch; on a Zen 4 384 to 1024 do about as well."""
_PAGE = 4096
_PAGES_AHEAD = 1 << 16
"""Bytes between a load and the prefetch of a line of its page, which is for the page's address: a mapped file lies in
pages of 4 KB, and whoever comes to one whose address no table in the processor has yet waits for it, prefetchers too.
64 to 256 KB ahead make decode of Gemma 3 270M 8 to 10 % faster on two threads of a Zen 4, and 15 % on one."""


def linear_one(type_name: str, rows_per_group: int = 64, normed: bool = False) -> Kernel:
    """y = W x for one row of float32 activations, or y = W norm(x).

    w: the raw rows of the weight; x: float32 (cols,); y: float32 (rows,). cols is a multiple of the type's block, and
    for quantized types x is rounded as `activations` says. A larger `rows_per_group` suits matrices of very many rows.
    If `normed`, which only quantized types can be, x is first made x / sqrt(mean(x^2) + eps) * norm, norm: float32
    (cols,).
    """
    kind = TYPES[type_name]

    def body(e: Emitter, a: Arguments) -> None:
        first = e.times(a["@rows"], rows_per_group)
        last = e.minimum(e.add(first, e.index(rows_per_group)), a["rows"])
        if isinstance(kind, PlainType):
            _Plain(kind).emit(e, a, first, last)
        else:
            _Quantized(kind, e.target).emit(e, a, normed, [(a["w"], first, last, a["y"])])

    return Kernel(
        f"ggufc_{'norm_' if normed else ''}linear_one_{type_name}{_suffix(rows_per_group)}",
        (Buffer("w", "i8"), Buffer("x", "f32"), *_norm(normed)[0], Buffer("y", "f32", output=True)),
        (Scalar("rows"), Scalar("cols"), *_norm(normed)[1]),
        (("rows", rows_per_group),),
        body,
    )


def glu_one(type_name: str, name: str, rows_per_group: int, normed: bool) -> Kernel:
    """y = act(G x) * (U x) for one row of float32 activations and two weights of a quantized type.

    gate, up: the raw rows of G and U; `name` is the act: gelu, silu, relu or tanh; the rest is as in `linear_one`.
    """
    kind = TYPES[type_name]
    assert isinstance(kind, QuantType), type_name

    def body(e: Emitter, a: Arguments) -> None:
        first = e.times(a["@rows"], rows_per_group)
        last = e.minimum(e.add(first, e.index(rows_per_group)), a["rows"])
        line = e.at(a["y"], e.times(first, 4))
        other = e.scratch(4 * rows_per_group)
        # the second product's rows are counted from the first, for its results stand in memory of this group
        up = e.at(a["up"], e.mul(first, kind.row_bytes(e, a["cols"])))
        count = e.sub(last, first)
        products = [(a["gate"], first, last, a["y"]), (up, e.index(0), count, other)]
        _Quantized(kind, e.target).emit(e, a, normed, products)

        def gate(element: ir.Type, i: Value) -> None:
            at = e.times(i, 4)
            e.write(e.fmul(act(e, name, e.read(element, line, at)), e.read(element, other, at)), line, at)

        each_lane(e, count, gate)

    return Kernel(
        f"ggufc_{'norm_' if normed else ''}glu_one_{name}_{type_name}{_suffix(rows_per_group)}",
        (Buffer("gate", "i8"), Buffer("up", "i8"), Buffer("x", "f32"), *_norm(normed)[0], Buffer("y", "f32", True)),
        (Scalar("rows"), Scalar("cols"), *_norm(normed)[1]),
        (("rows", rows_per_group),),
        body,
    )


def _norm(normed: bool) -> tuple[tuple[Buffer, ...], tuple[Scalar, ...]]:
    return ((Buffer("norm", "f32"),), (Scalar("eps", "f32"),)) if normed else ((), ())


def _suffix(rows_per_group: int) -> str:
    return "" if rows_per_group == 64 else f"_{rows_per_group}"


def rows_per_group(rows: int) -> int:
    """Eight equal work groups for a matrix, which two, four or eight workers share evenly; of the largest very many, so
    that none works long when the others are through."""
    return max(32, -(-rows // 8)) if rows < _VERY_MANY else 1024


def _look_far_ahead(e: Emitter, row: Value, stride: Value) -> None:
    """Asks for a line of each page that is read `_PAGES_AHEAD` bytes behind a row."""
    e.each(0, stride, _PAGE, lambda at: e.prefetch(row, e.add(at, e.index(_PAGES_AHEAD)), 1, once=True))


@dataclass(frozen=True)
class _Plain:
    """The product of one plain type: weights widened to float32, and sums of float32 products."""

    type: PlainType

    def emit(self, e: Emitter, a: Arguments, first: Value, last: Value) -> None:
        kind, cols, lanes = self.type, a["cols"], 16
        stride = kind.row_bytes(e, cols)
        whole = e.times(e.over(cols, 4 * lanes), 4 * lanes)

        def row(r: Value) -> None:
            w = e.at(a["w"], e.mul(r, stride))
            _look_far_ahead(e, w, stride)

            def product(i: Value, *totals: Value) -> list[Value]:
                ws, xs = e.at(w, kind.row_bytes(e, i)), e.at(a["x"], e.times(i, 4))
                results: list[Value] = []
                for k, total in enumerate(totals):
                    weights = kind.read(e, e.at(ws, lanes * kind.block_bytes * k), lanes)
                    results.append(e.fma_(weights, e.read(vec(F32, lanes), xs, 64 * k), total))
                return results

            def one(i: Value, total: Value) -> list[Value]:
                weight = kind.read(e, e.at(w, kind.row_bytes(e, i)))
                return [e.fma_(weight, e.read(F32, a["x"], e.times(i, 4)), total)]

            t0, t1, t2, t3 = e.loop(0, whole, 4 * lanes, [const(vec(F32, lanes), 0.0)] * 4, product)
            total = e.sum_lanes(e.fadd(e.fadd(t0, t1), e.fadd(t2, t3)))
            (total,) = e.loop(whole, cols, 1, [total], one)
            e.write(total, a["y"], e.times(r, 4))

        e.each(first, last, 1, row)


@dataclass(frozen=True)
class _Operand:
    """64 weights that meet 64 activations at once: for each i32 lane, that is for four bytes, the lane of its scale and
    the bits of its bytes, both as in `Part`.
    """

    lanes: tuple[int, ...]
    masks: tuple[int, ...]


@dataclass(frozen=True)
class _Quantized:
    """The product of one quantized type.

    The activations of a chunk stand in one record: for each operand 32 i16 that meet its even bytes and 32 for its odd
    ones, or 64 high and 64 low bytes; for each total the 16 i32 that take the offsets back; 16 float32 that the lanes
    of the minima are multiplied with; the factors of d, which are the activations' scale and the gains of unshifted
    bytes.
    """

    type: QuantType
    target: Target

    @property
    def _dots_bytes(self) -> bool:
        """Whether there is an instruction for products of bytes: on AArch64 one of signed ones at least."""
        return self.target.dots_bytes(self.type.signed) if self.target.is_x86 else self.target.has_dotprod

    @property
    def _has_quarters(self) -> bool:
        """Whether operands are the quarters of four parts with scales of their own, those of one number together.

        Quarter q of a part is, of each run, the four weights from 4 q on. In each i32 lane there is then one run of one
        part, the same one in all four operands: their products add up as integers, and are scaled once for 256 weights.
        It takes fields of shared bytes apart, and is worth the shuffles of others where bytes are multiplied.
        """
        return self.type.has_fields or (len({part.lanes for part in self.type.parts}) == 4 and self._dots_bytes)

    @functools.cached_property
    def _operands(self) -> tuple[_Operand, ...]:
        """What is multiplied: the parts, or their quarters."""
        parts = self.type.parts
        if not self._has_quarters:
            return tuple(_Operand(part.lanes, (part.mask,) * 16) for part in parts)
        lanes = tuple(part.lanes[4 * run] for run in range(4) for part in parts)
        return (_Operand(lanes, tuple(part.mask for _ in range(4) for part in parts)),) * 4

    def _activations(self, e: Emitter, integers: Value) -> list[Value]:
        """The 64 activations of each operand from the i16 of a chunk."""
        of_parts = [
            e.concat([e.read(vec(I16, part.run), integers, 2 * start) for start in part.starts])
            for part in self.type.parts
        ]
        return _quarters(e, of_parts, I64) if self._has_quarters else of_parts

    def _weights(self, e: Emitter, chunk: Unpacked) -> list[Value]:
        """The 64 bytes of each operand."""
        kind = self.type
        if not kind.has_fields:
            return _quarters(e, chunk.parts, I32) if self._has_quarters else list(chunk.parts)
        first, second = (e.bitcast(chunk.parts[part], vec(I32, 16)) for part in (0, 2))
        sources = [16 * (part // 2) + 4 * run for run in range(4) for part in range(4)]
        masks = const(vec(I8, 64), [part.mask for _ in range(4) for part in kind.parts for _ in range(4)])
        quarters = [e.take(first, [source + quarter for source in sources], second) for quarter in range(4)]
        return [e.and_(e.bitcast(quarter, masks.type), masks) for quarter in quarters]

    @functools.cached_property
    def _totals(self) -> tuple[tuple[int, ...], ...]:
        """The operands, by index, gathered by their scales: those of one entry may be added up as integers."""
        groups: dict[object, list[int]] = {}
        for i, operand in enumerate(self._operands):
            groups.setdefault(operand, []).append(i)
        return tuple(tuple(g) for g in groups.values())

    @property
    def _takes_bytes(self) -> bool:
        """Whether activations are two signed bytes, 256 high + low, that meet the weights' bytes as they are.

        It spares their widening, where there is an instruction, for three operations on each total. On x86, where
        two bytes are widened at once, that is not always worth it.
        """
        kind = self.type
        is_worth_it = not kind.is_made_of_words and 2 * len(self._totals) <= len(kind.parts)
        return self._dots_bytes and (is_worth_it or not self.target.is_x86)

    @property
    def _bias(self) -> int:
        """What is taken from unsigned bytes where only signed ones can be multiplied."""
        kind = self.type
        return 128 if self._takes_bytes and not self.target.dots_bytes(kind.signed) else 0

    @property
    def _corrects(self) -> bool:
        return bool(self.type.offset or self._bias)

    @property
    def _corrections_at(self) -> int:
        return 128 * len(self.type.parts)

    @property
    def _sums_at(self) -> int:
        return self._corrections_at + (64 * len(self._totals) if self._corrects else 0)

    @property
    def _scale_at(self) -> int:
        return self._sums_at + (64 if self.type.minima else 0)

    @property
    def _record(self) -> int:
        return -(-(self._scale_at + 4 * len(self.type.gains)) // 64) * 64

    def emit(
        self, e: Emitter, a: Arguments, normed: bool, products: Sequence[tuple[Value, Value, Value, Value]]
    ) -> None:
        """Products of the row a["x"]: of each weight w the rows [first, last), to y[first:last]."""
        kind, cols = self.type, a["cols"]
        records = e.scratch(_PANEL // kind.chunk * self._record)
        tail = kind.zero_scratch(e)
        quantizer = Quantizer(e)
        stride = kind.row_bytes(e, cols)
        w, first, _, _ = products[0]
        # the first rows come while the activations are quantized
        e.prefetch(e.at(w, e.mul(first, stride)), 0, _FIRST_BYTES, once=True)
        norm = Normed(e, a["norm"], a["eps"], cols) if normed else None
        if norm:
            norm.begin(a["x"])

        def panel(start: Value) -> None:
            width = e.minimum(e.sub(cols, start), _PANEL)

            def quantize(i: Value) -> None:
                element = e.add(start, i)
                x = norm.group(element) if norm else e.at(a["x"], e.times(element, 4))
                self._quantize(quantizer, x, e.sub(width, i), records, i)

            e.each(0, width, GROUP, quantize)
            chunks = e.over(width, kind.chunk)
            blocks = e.over(e.sub(width, e.times(chunks, kind.chunk)), kind.block)
            for w, first, last, y in products:
                rows(w, first, last, y, start, chunks, blocks)

        def rows(w: Value, first: Value, last: Value, y: Value, start: Value, chunks: Value, blocks: Value) -> None:
            def row(r: Value) -> None:
                row_start = e.at(w, e.mul(r, stride))
                _look_far_ahead(e, row_start, stride)
                factors, line = kind.row_factors(e, row_start), e.at(row_start, kind.column_at(e, start))

                def whole(c: Value, *totals: Value) -> list[Value]:
                    address = e.at(line, e.times(c, kind.chunk_bytes))
                    e.prefetch(address, _AHEAD, kind.chunk_bytes, once=True)
                    return self._chunk(e, address, e.at(records, e.times(c, self._record)), factors, totals)

                def partial(_: Value, *totals: Value) -> list[Value]:
                    address = kind.padded(e, e.at(line, e.times(chunks, kind.chunk_bytes)), blocks, tail)
                    return self._chunk(e, address, e.at(records, e.times(chunks, self._record)), factors, totals)

                totals = e.loop(0, chunks, 1, [const(vec(F32, 16), 0.0)] * 2, whole)
                if kind.blocks_per_chunk > 1:
                    totals = e.loop(0, e.minimum(blocks, 1), 1, totals, partial)
                at = e.at(y, e.times(r, 4))
                before = e.select(e.icmp_signed(">", start, e.index(0)), e.read(F32, at), const(F32, 0.0))
                e.write(e.fadd(before, e.sum_lanes(e.fadd(*totals))), at)

            e.each(first, last, 1, row)

        e.each(0, cols, _PANEL, panel)

    def _chunk(
        self, e: Emitter, address: Value, record: Value, factors: Value | None, totals: tuple[Value, ...]
    ) -> list[Value]:
        """Adds one chunk's product to the running totals, which take turns so that their latencies overlap."""
        kind, words = self.type, vec(I16, 32)
        activation = e.read(vec(F32, len(kind.gains)), record, self._scale_at)
        chunk = kind.unpack(e, address, scaled(e, activation, factors))
        scales = kind.scales(e, chunk)
        operands, sums = self._weights(e, chunk), list(totals)
        for n, indices in enumerate(self._totals):
            high = integer = const(vec(I32, 16), 0)
            if self._corrects:
                integer = e.read(integer.type, record, self._corrections_at + 64 * n)
            for p in indices:
                weights = operands[p]
                if self._takes_bytes:
                    weights = e.xor(weights, const(weights.type, self._bias)) if self._bias else weights
                    is_signed = kind.signed or self._bias > 0
                    high = e.dot_bytes(high, weights, e.read(weights.type, record, 128 * p), is_signed)
                    integer = e.dot_bytes(integer, weights, e.read(weights.type, record, 128 * p + 64), is_signed)
                else:
                    for half, wide in enumerate(kind.words(e, weights)):
                        integer = e.dot_pairs(integer, wide, e.read(words, record, 128 * p + 64 * half))
            if self._takes_bytes:
                integer = e.add(integer, e.shl(high, const(high.type, 8)))
            lane_scales = e.take(scales, self._operands[indices[0]].lanes)
            sums[n % len(sums)] = e.fma_(e.sitofp(integer, vec(F32, 16)), lane_scales, sums[n % len(sums)])
        if kind.minima:
            factors = e.read(vec(F32, 16), record, self._sums_at)
            sums[-1] = e.fma_(e.take(scales, self._minimum_lanes), factors, sums[-1])
        return sums

    @property
    def _minimum_lanes(self) -> list[int]:
        """The 16 lanes of the scale vector that hold the minima, and neighbours whose factor is zero."""
        first = self.type.minima[0].lane // 16 * 16
        return list(range(first, first + 16))

    def _quantize(self, quantizer: Quantizer, x: Value, count: Value, records: Value, element: Value) -> None:
        """Writes the records of up to 256 elements, `element` being the first one's index in the panel."""
        e, kind = quantizer.e, self.type
        x = quantizer.padded(x, count)
        scale, inverse = quantizer.scale(x)
        integers = quantizer.write(x, inverse)
        for c in range(GROUP // kind.chunk):
            at = e.times(e.add(e.over(element, kind.chunk), e.index(c)), self._record)
            self._record_chunk(e, e.at(integers, 2 * kind.chunk * c), scale, e.at(records, at))

    def _record_chunk(self, e: Emitter, integers: Value, scale: Value, record: Value) -> None:
        kind, words = self.type, vec(I16, 32)
        operands = self._activations(e, integers)
        for n, indices in enumerate(self._totals):
            corrections = [const(vec(I32, 16), 0)] * 2
            for p in indices:
                values, masks = operands[p], self._operands[p].masks
                offsets = [self._bias - (kind.offset << shift_of(mask)) for mask in masks for _ in range(4)]
                corrections = [
                    e.dot_pairs(before, e.take(values, range(at, at + 32)), const(words, offsets[at : at + 32]))
                    for before, at in zip(corrections, (0, 32), strict=True)
                ]
                if self._takes_bytes:
                    high = e.ashr(e.add(values, const(values.type, 128)), const(values.type, 8))
                    halves = [e.trunc(digit, vec(I8, 64)) for digit in (high, values)]
                else:
                    halves = [e.take(values, range(half, 64, 2)) for half in range(2)]
                for h, half in enumerate(halves):
                    e.write(half, record, 128 * p + 64 * h)
            if self._corrects:
                e.write(_neighbours(e, *corrections), record, self._corrections_at + 64 * n)
        if kind.minima:
            count = kind.chunk // kind.span
            sums = e.fneg(e.sitofp(self._span_sums(e, integers), vec(F32, count)))
            spans = {m.lane % 16: m.start // m.count for m in kind.minima}
            lanes = [spans.get(lane, count) for lane in range(16)]
            e.write(e.take(sums, lanes, const(sums.type, 0.0)), record, self._sums_at)
        factors = e.fmul(e.splat(scale, len(kind.gains)), const(vec(F32, len(kind.gains)), kind.gains))
        e.write(factors, record, self._scale_at)

    def _span_sums(self, e: Emitter, integers: Value) -> Value:
        """The sum of each span of a chunk, i32."""
        kind, words = self.type, vec(I16, 32)
        zero, ones = const(vec(I32, 16), 0), const(words, 1)
        sums = [e.dot_pairs(zero, e.read(words, integers, 2 * start), ones) for start in range(0, kind.chunk, 32)]
        while len(sums) > 1:
            sums = [_neighbours(e, a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        (total,) = sums
        while total.type.count > kind.chunk // kind.span:
            total = _neighbours(e, total)
        return total


def _quarters(e: Emitter, parts: Sequence[Value], four: ir.Type) -> list[Value]:
    """The quarters of four parts from vectors of 64, of which `four` is as wide as four lanes."""
    return [e.bitcast(q, parts[0].type) for q in e.transpose_quads([e.bitcast(p, vec(four, 16)) for p in parts])]


def _neighbours(e: Emitter, *vectors: Value) -> Value:
    """The sums of each two neighbouring lanes, of one vector or of two, one after the other."""
    lanes = len(vectors) * vectors[0].type.count
    even, odd = (e.take(vectors[0], range(half, lanes, 2), *vectors[1:]) for half in range(2))
    return e.add(even, odd)
