"""Activations as 15-bit integers: what the products of quantized weights take.

The elements of a row are quantized in groups of 256 (the last one may be shorter): s = max|x| / 16383,
q = x * (16383 / max|x|) rounded to the nearest, ties to even. 16383 is what lets 32 products with the largest weight,
2^12 (Q6_K with its scale), add up in 32 bits. A group whose largest magnitude is below 2^-100 counts as zeros; NaN or
infinity in a group makes s, and with it the results, NaN or infinite.
"""

from __future__ import annotations

from collections.abc import Callable

from ..emit import F32, I16, I32, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .kv_update import rounded
from .norm import rms_factor

GROUP = 256
"""Elements that share one activation scale."""
LARGEST = 16383
STEP = 32
"""Elements that share one sum, which the minimum of a weight block is multiplied with; half as many in some types."""

SUMS_AT = {16: 2 * GROUP, STEP: 2 * GROUP + 4 * (GROUP // 16)}
SCALE_AT = SUMS_AT[STEP] + 4 * (GROUP // STEP)
RECORD = SCALE_AT + 4
"""Bytes of a group as `quantize_rows` writes it: 256 i16, 16 float32 sums of 16 and 8 of 32 of those, the scale."""


def activation_width(cols: int, record: int = RECORD) -> int:
    """Number of i16 in the records of `record` bytes of one row of `cols` elements."""
    return -(-cols // GROUP) * record // 2


def row_bytes(e: Emitter, cols: Value, record: int) -> Value:
    """Bytes from one quantized row to the next."""
    return e.times(e.over(e.add(cols, e.index(GROUP - 1)), GROUP), record)


class Quantizer:
    """Emits the quantization of groups of one row."""

    def __init__(self, e: Emitter) -> None:
        self.e = e
        self.scratch = e.scratch(4 * GROUP)
        self._written = e.scratch(2 * GROUP)

    def padded(self, address: Value, count: Value) -> Value:
        """The address of 256 float32: `address` itself, or a copy of its `count` (a multiple of 32) and zeros."""
        e, kind = self.e, vec(F32, STEP)
        is_whole = e.icmp_signed(">=", count, e.index(GROUP))
        copied = e.select(is_whole, e.index(0), count)
        cleared = e.select(is_whole, e.index(GROUP), count)
        e.each(0, copied, STEP, lambda i: e.write(e.read(kind, address, e.times(i, 4)), self.scratch, e.times(i, 4)))
        e.each(cleared, GROUP, STEP, lambda i: e.write(const(kind, 0.0), self.scratch, e.times(i, 4)))
        return e.select(is_whole, address, self.scratch)

    def scale(self, address: Value) -> tuple[Value, Value]:
        """The scale s of the 256 float32 at `address`, and 1/s."""
        e, bits = self.e, vec(I32, 16)

        # As integers, magnitudes are in the order of their values, with infinity and then NaN on top.
        def larger(i: Value, most: Value) -> list[Value]:
            magnitude = e.and_(e.read(bits, address, e.times(i, 4)), const(bits, 0x7FFFFFFF))
            return [e.select(e.icmp_unsigned(">", magnitude, most), magnitude, most)]

        (most,) = e.loop(0, GROUP, 16, [const(bits, 0)], larger)
        top = e.call(e.declare("llvm.vector.reduce.umax.v16i32", I32, bits), [most])
        is_zero = e.icmp_unsigned("<", top, const(I32, (127 - 100) << 23))
        value = e.bitcast(top, F32)
        scale = e.fmul(value, const(F32, 1.0 / LARGEST))
        inverse = e.fdiv(const(F32, float(LARGEST)), value)
        return scale, e.select(is_zero, const(F32, 0.0), inverse)

    def integers(self, address: Value, offset: int | Value, inverse: Value, count: int = 16) -> Value:
        """The `count` elements at address + offset bytes as i32 in [-16383, 16383]."""
        e = self.e
        scaled = e.fmul(e.read(vec(F32, count), address, offset), e.splat(inverse, count))
        return rounded(e, scaled)

    def write(self, address: Value, inverse: Value) -> Value:
        """The address of the 256 float32 at `address` as i16."""
        e = self.e

        def step(i: Value) -> None:
            at = e.times(i, 4)
            halves = [self.integers(e.at(address, at), 64 * k, inverse) for k in range(2)]
            e.write(e.trunc(e.concat(halves), vec(I16, STEP)), self._written, e.times(i, 2))

        e.each(0, GROUP, STEP, step)
        return self._written


_TOKENS_PER_GROUP = 8


class Normed:
    """Emits the elements of one row's norm, x / sqrt(mean(x^2) + eps) * w, up to 256 at a time."""

    def __init__(self, e: Emitter, w: Value, eps: Value, cols: Value) -> None:
        self.e, self._w, self._eps, self._cols = e, w, eps, cols
        self._scratch = e.scratch(4 * GROUP)
        self._x = self._factor = None

    def begin(self, x: Value) -> None:
        """Takes the row of `cols` float32 at x."""
        self._x, self._factor = x, rms_factor(self.e, x, self._cols, self._eps)

    def group(self, element: Value) -> Value:
        """The address of the elements from `element` on: 256, or as many as are left, a multiple of 32."""
        e, kind = self.e, vec(F32, STEP)
        at = e.times(element, 4)
        x, w = e.at(self._x, at), e.at(self._w, at)

        def scale(i: Value) -> None:
            offset = e.times(i, 4)
            value = e.fmul(e.read(kind, x, offset), e.splat(self._factor, STEP))
            e.write(e.fmul(value, e.read(kind, w, offset)), self._scratch, offset)

        e.each(0, e.minimum(e.sub(self._cols, element), GROUP), STEP, scale)
        return self._scratch


def quantize_rows(normed: bool = False) -> Kernel:
    """Float32 activations, or if `normed` their norms, to the integers that `linear_many` takes.

    x: float32 (tokens, cols), cols a multiple of 32; w, if normed: float32 (cols,), the norm's weight; q: int16
    (tokens, activation_width(cols)), a row being one record (see RECORD) per 256 elements, zeros where the last group
    ends early.
    """

    def groups(e: Emitter) -> Group:
        quantizer = Quantizer(e)

        def group(x: Value, left: Value, out: Value) -> None:
            x = quantizer.padded(x, left)
            scale, inverse = quantizer.scale(x)

            def step(i: Value) -> None:
                at = e.times(i, 4)
                halves = [quantizer.integers(e.at(x, at), 64 * k, inverse) for k in range(2)]
                e.write(e.trunc(e.concat(halves), vec(I16, STEP)), out, e.times(i, 2))
                add = e.declare("llvm.vector.reduce.add.v16i32", I32, halves[0].type)
                first, second = (e.call(add, [half]) for half in halves)
                for k, total in enumerate((first, second)):
                    e.write(e.sitofp(total, F32), e.at(out, SUMS_AT[16] + 4 * k), e.times(e.over(i, 16), 4))
                e.write(e.sitofp(e.add(first, second), F32), e.at(out, SUMS_AT[STEP]), e.times(e.over(i, STEP), 4))

            e.each(0, GROUP, STEP, step)
            e.write(scale, out, SCALE_AT)

        return group

    return quantizing("quantize_rows", normed, RECORD, groups)


Group = Callable[[Value, Value, Value], None]
"""Writes a record of up to 256 elements: their address, how many are left in the row, the record's address."""


def quantizing(name: str, normed: bool, record: int, groups: Callable[[Emitter], Group]) -> Kernel:
    """The kernel that quantizes rows, or if `normed` their norms, to records of `record` bytes that `groups` writes."""

    def emit(e: Emitter, a: Arguments) -> None:
        cols, group = a["cols"], groups(e)
        norm = Normed(e, a["w"], a["eps"], cols) if normed else None
        first = e.times(a["@tokens"], _TOKENS_PER_GROUP)

        def row(token: Value) -> None:
            x = e.at(a["x"], e.times(e.mul(token, cols), 4))
            out = e.at(a["q"], e.mul(token, row_bytes(e, cols, record)))
            if norm:
                norm.begin(x)

            def elements(i: Value) -> None:
                address = norm.group(i) if norm else e.at(x, e.times(i, 4))
                group(address, e.sub(cols, i), e.at(out, e.times(e.over(i, GROUP), record)))

            e.each(0, cols, GROUP, elements)

        e.each(first, e.minimum(e.add(first, e.index(_TOKENS_PER_GROUP)), a["tokens"]), 1, row)

    weight, eps = ((Buffer("w", "f32"),), (Scalar("eps", "f32"),)) if normed else ((), ())
    return Kernel(
        f"ggufc_{'norm_' if normed else ''}{name}",
        (Buffer("x", "f32"), *weight, Buffer("q", "i16", output=True)),
        (Scalar("tokens"), Scalar("cols"), *eps),
        (("tokens", _TOKENS_PER_GROUP),),
        emit,
    )
