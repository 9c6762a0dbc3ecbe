"""IQ2_S: blocks of 256 weights, 16 groups; d f16 @0, indices of grid entries of 8 weights 32 bytes @2, signs 32 @34,
the indices' high bit pairs 8 @66, scales as nibbles 8 @74.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .grid import BLOCK, OFFSET, half, nibbles, odd, parts, quads, signed
from .quant import QuantType, Unpacked


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    kind = vec(I16, 32)
    low = e.zext(e.read(vec(I8, 32), address, 2), kind)
    pairs = e.zext(e.take(e.read(vec(I8, 8), address, 66), [n // 4 for n in range(32)]), kind)
    high = e.and_(e.shl(pairs, const(kind, [8, 6, 4, 2] * 8)), const(kind, 0x300))
    values = signed(e, "iq2_s", [e.or_(low, high)], quads(e, e.read(vec(I32, 8), address, 34)), 8)
    d = half(e, e.read(I16, address), 1 / 8, 16, factors)
    return Unpacked(values, d, odd(e, nibbles(e, e.read(vec(I8, 8), address, 74))))


IQ2_S = QuantType(
    name="iq2_s",
    block=BLOCK,
    block_bytes=82,
    chunk=BLOCK,
    parts=parts(16),
    largest=43 * 31,
    unpack=_unpack,
    offset=OFFSET,
)
