"""New rows into the ring of a KV cache."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..emit import F16, F32, I8, I16, I32, I64, Emitter, Value, const, vec
from ..kernel import ELEMENTS, Arguments, Buffer, Kernel, Scalar
from .q8_0 import Q8_0

_LANES = 16
BLOCK, BLOCK_BYTES = Q8_0.block, Q8_0.block_bytes
"""Elements and bytes of a Q8_0 block: a float16 scale, then a byte for each element."""


def kv_update(dtype: str) -> Kernel:
    """Row t of x goes to row (position + t) mod rows of the cache, whose other rows stay as they are.

    cache: `dtype` ("f32", or "f16", rounded to the nearest, ties to even, or "q8_0", for which row is a multiple of 32)
    (rows, row); x: float32 (tokens, row); position: int32 (1,), not negative. `tokens` is at most `rows`. A work group
    does one token.
    """
    if dtype == "q8_0":
        return _update("q8_0", lambda e, row: e.times(e.over(row, BLOCK), BLOCK_BYTES), _blocks)
    convert = {"f32": lambda e, value: value, "f16": float_to_half}[dtype]
    size = ELEMENTS[dtype][1]

    def copy(e: Emitter, kind: ir.Type, x: Value, cache: Value, i: Value) -> None:
        e.write(convert(e, e.read(kind, x, e.times(i, 4))), cache, e.times(i, size))

    def convert_row(e: Emitter, x: Value, cache: Value, row: Value) -> None:
        whole = e.times(e.over(row, _LANES), _LANES)
        e.each(0, whole, _LANES, lambda i: copy(e, vec(F32, _LANES), x, cache, i))
        e.each(whole, row, 1, lambda i: copy(e, F32, x, cache, i))

    return _update(dtype, lambda e, row: e.times(row, size), convert_row)


def _update(
    dtype: str,
    row_bytes: Callable[[Emitter, Value], Value],
    convert_row: Callable[[Emitter, Value, Value, Value], None],
) -> Kernel:
    def emit(e: Emitter, a: Arguments) -> None:
        token, row = a["@tokens"], a["row"]
        position = e.sext(e.read(I32, a["position"]), I64)
        x = e.at(a["x"], e.times(e.mul(token, row), 4))
        line = e.urem(e.add(position, token), a["rows"])
        convert_row(e, x, e.at(a["cache"], e.mul(line, row_bytes(e, row))), row)

    return Kernel(
        f"ggufc_kv_update_{dtype}",
        (Buffer("cache", dtype, output=True), Buffer("x", "f32"), Buffer("position", "i32")),
        (Scalar("tokens"), Scalar("rows"), Scalar("row")),
        (("tokens", 1),),
        emit,
    )


def _blocks(e: Emitter, x: Value, cache: Value, row: Value) -> None:
    """A row as Q8_0 blocks: ggml-cpu/arch/x86/quants.c, quantize_row_q8_0."""
    real, whole = vec(F32, BLOCK), vec(I32, BLOCK)

    def block(i: Value) -> None:
        values = e.read(real, x, e.times(i, 4))
        # as integers, magnitudes are in the order of their values
        magnitudes = e.and_(e.bitcast(values, whole), const(whole, 0x7FFFFFFF))
        most = e.call(e.declare(f"llvm.vector.reduce.umax.v{BLOCK}i32", I32, whole), [magnitudes])
        largest = e.bitcast(most, F32)
        factor = e.fdiv(const(F32, 127.0), largest)
        factor = e.select(e.icmp_unsigned("==", most, const(I32, 0)), const(F32, 0.0), factor)
        integers = rounded(e, e.fmul(values, e.splat(factor, BLOCK)))
        into = e.at(cache, e.times(e.over(i, BLOCK), BLOCK_BYTES))
        e.write(float_to_half(e, e.fdiv(largest, const(F32, 127.0))), into)
        e.write(e.trunc(integers, vec(I8, BLOCK)), into, 2)

    e.each(0, row, BLOCK, block)


def rounded(e: Emitter, value: Value) -> Value:
    """A vector of float32 below 2^22 as i32, to the nearest, ties to even."""
    # adding 1.5 * 2^23 leaves the integer in the lower mantissa bits, on every target
    magic = e.bitcast(e.fadd(value, const(value.type, 12582912.0)), vec(I32, value.type.count))
    return e.sub(magic, const(magic.type, 0x4B400000))


def float_to_half(e: Emitter, value: Value) -> Value:
    """Float32 (scalar or vector) to the bits of IEEE halves (i16), rounded to the nearest, ties to even."""
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else None
    half, short, word = ((vec(t, lanes) if lanes else t) for t in (F16, I16, I32))
    if e.target.has_half_conversion:
        return e.bitcast(e.fptrunc(value, half), short)
    bits = e.bitcast(value, word)
    magnitude = e.and_(bits, const(word, 0x7FFFFFFF))
    sign = e.lshr(e.and_(bits, const(word, 0x80000000)), const(word, 16))
    # Half of the last place that stays, less one if that place is even, carries into the exponent as it should.
    odd = e.and_(e.lshr(magnitude, const(word, 13)), const(word, 1))
    rounded = e.add(e.add(magnitude, const(word, 0xFFF - ((127 - 15) << 23))), odd)
    normal = e.lshr(rounded, const(word, 13))
    # A subnormal half counts 2^-24; beside 1/2, whose last place that is, the addition rounds it.
    base = const(word, 126 << 23)
    beside = e.fadd(e.bitcast(magnitude, value.type), e.bitcast(base, value.type))
    small = e.sub(e.bitcast(beside, word), base)
    is_nan = e.icmp_unsigned(">", magnitude, const(word, 0x7F800000))
    large = e.select(is_nan, const(word, 0x7E00), const(word, 0x7C00))
    is_small = e.icmp_unsigned("<", magnitude, const(word, (127 - 14) << 23))
    is_large = e.icmp_unsigned(">=", magnitude, const(word, (127 + 16) << 23))
    result = e.select(is_small, small, e.select(is_large, large, normal))
    return e.trunc(e.or_(result, sign), short)
