"""IQ3_XXS: blocks of 256 weights in 8 groups of 32; d f16 @0, indices of grid entries of 4 weights 64 bytes @2, for
each group 32 bits @66: four times seven signs and, at the top, the scale.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .grid import BLOCK, OFFSET, even, half, odd, parts, quads, sevens, signed
from .quant import QuantType, Unpacked


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    bytes_ = e.read(vec(I8, 64), address, 2)
    halves = [[8 * g + n for g in range(8) for n in range(at, at + 4)] for at in (0, 4)]
    indices = [e.zext(e.take(bytes_, half_), vec(I16, 32)) for half_ in halves]
    rest = e.read(vec(I32, 8), address, 66)
    values = signed(e, "iq3_xxs", indices, quads(e, even(e, sevens(e, rest))), 8)
    d = half(e, e.read(I16, address), 1 / 4, 8, factors)
    return Unpacked(values, d, odd(e, e.lshr(rest, const(rest.type, 28))))


IQ3_XXS = QuantType(
    name="iq3_xxs",
    block=BLOCK,
    block_bytes=98,
    chunk=BLOCK,
    parts=parts(8),
    largest=62 * 31,
    unpack=_unpack,
    offset=OFFSET,
)
