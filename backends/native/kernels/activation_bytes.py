"""Activations as bytes: what the products of prompts take where speed is worth more than nearness.

The elements of a row are quantized in groups of 32: s = max|x| / 127, q = x * (127 / max|x|) rounded to the nearest,
ties to even, as llama.cpp's Q8_0 does, but with s in float32. A group whose largest magnitude is below 2^-100 counts as
zeros; NaN or infinity in a group makes s, and with it the results, NaN or infinite.
"""

from __future__ import annotations

from ..emit import F32, I8, I32, Emitter, Value, const, vec
from ..kernel import Kernel
from .activations import GROUP, STEP, Group, activation_width, quantizing
from .kv_update import rounded

LARGEST = 127
_HALF = STEP // 2

SCALES_AT = GROUP
INTEGERS_AT = {_HALF: SCALES_AT + 4 * (GROUP // STEP), STEP: SCALES_AT + 4 * (GROUP // STEP) + 4 * (GROUP // _HALF)}
SUMS_AT = {span: at + 4 * (GROUP // STEP + GROUP // _HALF) for span, at in INTEGERS_AT.items()}
RECORD = SUMS_AT[STEP] + 4 * (GROUP // STEP)
"""Bytes of 256 elements as `quantize_bytes` writes them: 256 i8, 8 float32 scales; then the sums of 16 and of 32
integers, as i32, and after those times their scale, as float32."""


def activation_byte_width(cols: int) -> int:
    """Number of i16 that `quantize_bytes` writes for one row of `cols` elements."""
    return activation_width(cols, RECORD)


def quantize_bytes(normed: bool = False) -> Kernel:
    """Float32 activations, or if `normed` their norms, to the bytes that `linear_many_bytes` takes.

    As `quantize_rows`, but for the record, which has RECORD bytes. What lies behind the end of a row in its last record
    isn't written.
    """

    def groups(e: Emitter) -> Group:
        def group(x: Value, left: Value, record: Value) -> None:
            width = e.minimum(left, GROUP)
            e.each(0, width, STEP, lambda c: _quantize(e, e.at(x, e.times(c, 4)), record, c))

        return group

    return quantizing("quantize_bytes", normed, RECORD, groups)


def _quantize(e: Emitter, x: Value, record: Value, column: Value) -> None:
    """Writes the 32 float32 at x to their places in a record, whose elements from `column` on they are."""
    real, bits = vec(F32, STEP), vec(I32, STEP)
    # As integers, magnitudes are in the order of their values, with infinity and then NaN on top.
    magnitudes = e.and_(e.read(bits, x), const(bits, 0x7FFFFFFF))
    top = e.call(e.declare("llvm.vector.reduce.umax.v32i32", I32, bits), [magnitudes])
    value = e.bitcast(top, F32)
    scale = e.fmul(value, const(F32, 1.0 / LARGEST))
    is_zero = e.icmp_unsigned("<", top, const(I32, (127 - 100) << 23))
    inverse = e.select(is_zero, const(F32, 0.0), e.fdiv(const(F32, float(LARGEST)), value))
    integers = rounded(e, e.fmul(e.read(real, x), e.splat(inverse, STEP)))
    e.write(e.trunc(integers, vec(I8, STEP)), record, column)
    add = e.declare("llvm.vector.reduce.add.v16i32", I32, vec(I32, _HALF))
    halves = [e.call(add, [e.take(integers, range(at, at + _HALF))]) for at in (0, _HALF)]
    number = e.over(column, STEP)
    for span, sums in ((_HALF, halves), (STEP, [e.add(*halves)])):
        for n, total in enumerate(sums):
            place = e.times(e.add(e.times(number, len(sums)), e.index(n)), 4)
            e.write(total, e.at(record, INTEGERS_AT[span]), place)
            e.write(e.fmul(e.sitofp(total, F32), scale), e.at(record, SUMS_AT[span]), place)
    e.write(scale, e.at(record, SCALES_AT), e.times(number, 4))
