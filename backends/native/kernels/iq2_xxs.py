"""IQ2_XXS: blocks of 256 weights in 8 groups of 32; d f16 @0, for each group 8 bytes @2.

Four bytes name grid entries of 8 weights; the 32 bits that follow hold four times seven signs and, at the top, the
scale.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .grid import BLOCK, OFFSET, even, half, odd, parts, quads, sevens, signed
from .quant import QuantType, Unpacked


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    groups = e.read(vec(I8, 64), address, 2)
    indices = e.zext(e.take(groups, [8 * g + n for g in range(8) for n in range(4)]), vec(I16, 32))
    rest = e.take(e.bitcast(groups, vec(I32, 16)), range(1, 16, 2))
    values = signed(e, "iq2_xxs", [indices], quads(e, even(e, sevens(e, rest))), 8)
    d = half(e, e.read(I16, address), 1 / 8, 8, factors)
    return Unpacked(values, d, odd(e, e.lshr(rest, const(rest.type, 28))))


IQ2_XXS = QuantType(
    name="iq2_xxs",
    block=BLOCK,
    block_bytes=66,
    chunk=BLOCK,
    parts=parts(8),
    largest=43 * 31,
    unpack=_unpack,
    offset=OFFSET,
)
