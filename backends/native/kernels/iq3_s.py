"""IQ3_S: blocks of 256 weights in 8 groups of 32; d f16 @0, indices of grid entries of 4 weights 64 bytes @2, their
ninth bits 8 @66, signs 32 @74, scales as nibbles 4 @106.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .grid import BLOCK, OFFSET, half, nibbles, odd, parts, quads, signed
from .quant import QuantType, Unpacked


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    kind, bytes_ = vec(I16, 32), e.read(vec(I8, 64), address, 2)
    ninth = e.zext(e.take(e.read(vec(I8, 8), address, 66), [n // 4 for n in range(32)]), kind)
    indices: list[Value] = []
    for at in (0, 4):
        low = e.zext(e.take(bytes_, [8 * g + n for g in range(8) for n in range(at, at + 4)]), kind)
        high = e.and_(e.shl(ninth, const(kind, [8 - at - n for n in range(4)] * 8)), const(kind, 0x100))
        indices.append(e.or_(low, high))
    values = signed(e, "iq3_s", indices, quads(e, e.read(vec(I32, 8), address, 74)), 8)
    d = half(e, e.read(I16, address), 1.0, 8, factors)
    return Unpacked(values, d, odd(e, nibbles(e, e.read(vec(I8, 4), address, 106))))


IQ3_S = QuantType(
    name="iq3_s",
    block=BLOCK,
    block_bytes=110,
    chunk=BLOCK,
    parts=parts(8),
    largest=15 * 31,
    unpack=_unpack,
    offset=OFFSET,
)
