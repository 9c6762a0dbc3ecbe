"""Q4_1: blocks of 32 weights d * q + m; d f16 @0, m f16 @2, 16 bytes @4 with elements 0-15 in the low nibbles."""

from __future__ import annotations

from ..emit import Emitter, Value
from .quant import HALVES_OF_FOUR_PAIRS, MINIMA_OF_FOUR, QuantType, Unpacked, four_nibbles, four_pairs

_BYTES = 20


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    return Unpacked(four_nibbles(e, address, 4, _BYTES), four_pairs(e, address, _BYTES, factors))


Q4_1 = QuantType(
    name="q4_1",
    block=32,
    block_bytes=_BYTES,
    chunk=128,
    parts=HALVES_OF_FOUR_PAIRS,
    largest=15,
    unpack=_unpack,
    minima=MINIMA_OF_FOUR,
)
