"""New rows into the ring of a KV cache."""

from __future__ import annotations

from llvmlite import ir

from ..emit import F16, F32, I16, I32, I64, Emitter, Value, const, vec
from ..kernel import ELEMENTS, Arguments, Buffer, Kernel, Scalar

_LANES = 16


def kv_update(dtype: str) -> Kernel:
    """Row t of x goes to row (position + t) mod rows of the cache, whose other rows stay as they are.

    cache: `dtype` ("f32" or "f16", rounded to the nearest, ties to even) (rows, row); x: float32 (tokens, row);
    position: int32 (1,), not negative. `tokens` is at most `rows`. A work group does one token.
    """
    convert = {"f32": lambda e, value: value, "f16": float_to_half}[dtype]
    size = ELEMENTS[dtype][1]

    def emit(e: Emitter, a: Arguments) -> None:
        token, row = a["@tokens"], a["row"]
        position = e.sext(e.read(I32, a["position"]), I64)
        x = e.at(a["x"], e.times(e.mul(token, row), 4))
        line = e.urem(e.add(position, token), a["rows"])
        cache = e.at(a["cache"], e.times(e.mul(line, row), size))

        def copy(kind: ir.Type, i: Value) -> None:
            e.write(convert(e, e.read(kind, x, e.times(i, 4))), cache, e.times(i, size))

        whole = e.times(e.over(row, _LANES), _LANES)
        e.each(0, whole, _LANES, lambda i: copy(vec(F32, _LANES), i))
        e.each(whole, row, 1, lambda i: copy(F32, i))

    return Kernel(
        f"ggufc_kv_update_{dtype}",
        (Buffer("cache", dtype, output=True), Buffer("x", "f32"), Buffer("position", "i32")),
        (Scalar("tokens"), Scalar("rows"), Scalar("row")),
        (("tokens", 1),),
        emit,
    )


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
