"""IQ1_S: blocks of 256 weights in 8 groups of 32; d f16 @0, indices of grid entries of 8 weights 32 bytes @2, for each
group a u16 @34: the three high bits of four indices, three bits of the scale, and whether the delta is negative.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, I64, Emitter, Value, const, vec
from .grid import BLOCK, OFFSET_OF_DELTAS, half, odd, parts, ternary
from .quant import QuantType, Unpacked


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    kind, rest = vec(I16, 32), e.read(vec(I16, 8), address, 34)
    low = e.zext(e.read(vec(I8, 32), address, 2), kind)
    high = e.lshr(e.take(rest, [n // 4 for n in range(32)]), const(kind, [0, 3, 6, 9] * 8))
    indices = e.or_(low, e.shl(e.and_(high, const(kind, 7)), const(kind, 8)))
    negative = e.sext(e.icmp_signed("<", rest, const(rest.type, 0)), vec(I64, 8))
    sub = e.and_(e.lshr(rest, const(rest.type, 12)), const(rest.type, 7))
    d = half(e, e.read(I16, address), 1 / 8, 8, factors)
    values = ternary(e, "iq1_s", indices, [e.bitcast(negative, vec(I8, 64))] * 4)
    return Unpacked(values, d, odd(e, e.zext(sub, vec(I32, 8))))


IQ1_S = QuantType(
    name="iq1_s",
    block=BLOCK,
    block_bytes=50,
    chunk=BLOCK,
    parts=parts(8),
    largest=9 * 15,
    unpack=_unpack,
    offset=OFFSET_OF_DELTAS,
)
