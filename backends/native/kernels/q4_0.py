"""Q4_0: blocks of 32 weights; d f16 @0, 16 bytes @2 with elements 0-15 in the low nibbles."""

from __future__ import annotations

from ..emit import Emitter, Value
from .quant import HALVES_OF_FOUR, QuantType, Unpacked, four_halves, four_nibbles

_BYTES = 18


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    return Unpacked(four_nibbles(e, address, 2, _BYTES), four_halves(e, address, _BYTES, 4, factors))


Q4_0 = QuantType(
    name="q4_0",
    block=32,
    block_bytes=_BYTES,
    chunk=128,
    parts=HALVES_OF_FOUR,
    largest=8,
    unpack=_unpack,
    offset=8,
)
