"""IQ2_XS: blocks of 256 weights, 16 groups; d f16 @0, 32 u16 @2, scales as nibbles 8 bytes @66.

The low 9 bits of a u16 name a grid entry of 8 weights, the upper 7 are signs.
"""

from __future__ import annotations

from ..emit import I8, I16, I64, Emitter, Value, const, vec
from .grid import BLOCK, OFFSET, even, half, nibbles, odd, parts, signed
from .quant import QuantType, Unpacked


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    words = e.read(vec(I16, 32), address, 2)
    signs = e.bitcast(even(e, e.lshr(words, const(words.type, 9))), vec(I64, 8))
    values = signed(e, "iq2_xs", [e.and_(words, const(words.type, 511))], signs, 16)
    d = half(e, e.read(I16, address), 1 / 8, 16, factors)
    return Unpacked(values, d, odd(e, nibbles(e, e.read(vec(I8, 8), address, 66))))


IQ2_XS = QuantType(
    name="iq2_xs",
    block=BLOCK,
    block_bytes=74,
    chunk=BLOCK,
    parts=parts(16),
    largest=43 * 31,
    unpack=_unpack,
    offset=OFFSET,
)
