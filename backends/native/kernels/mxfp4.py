"""MXFP4: blocks of 32 weights; the scale's exponent, a byte @0, 16 bytes of E2M1 @1, elements 0-15 low."""

from __future__ import annotations

from ..emit import F32, I8, I32, Emitter, Value, const, vec
from .quant import HALVES_OF_FOUR, QuantType, Unpacked, four_nibbles, scaled, spread

TABLE = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice what a nibble stands for, so that the scale is 2^(exponent - 128)."""
OFFSET = 12
"""What is added to it: products with unsigned bytes take fewer instructions."""
_BYTES = 17


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    table = [value + OFFSET for value in TABLE]
    parts = tuple(e.look_up(table, nibbles) for nibbles in four_nibbles(e, address, 1, _BYTES))
    return Unpacked(parts, scaled(e, _powers(e, address), factors))


def _powers(e: Emitter, address: Value) -> Value:
    """The scales of four blocks, each four times; 2^-128 and 2^-127 are subnormal."""
    words = vec(I32, 4)
    exponents = e.read_pieces(address, [b * _BYTES for b in range(4)], 1, 4 * _BYTES)
    exponents = e.zext(e.bitcast(exponents, vec(I8, 4)), words)
    normal = e.shl(e.sub(exponents, const(words, 1)), const(words, 23))
    subnormal = e.shl(const(words, 1 << 21), exponents)
    is_subnormal = e.icmp_unsigned("<", exponents, const(words, 2))
    return e.take(e.bitcast(e.select(is_subnormal, subnormal, normal), vec(F32, 4)), spread(0, 1, 2, 3))


MXFP4 = QuantType(
    name="mxfp4",
    block=32,
    block_bytes=_BYTES,
    chunk=128,
    parts=HALVES_OF_FOUR,
    largest=12,
    unpack=_unpack,
    offset=OFFSET,
)
