"""Q5_1: blocks of 32 weights d * q + m; d f16 @0, m f16 @2, the fifth bits u32 @4, 16 bytes of nibbles @8."""

from __future__ import annotations

from ..emit import Emitter, Value
from .q5_0 import five_bits
from .quant import HALVES_OF_FOUR_PAIRS, MINIMA_OF_FOUR, QuantType, Unpacked, four_pairs

_BYTES = 24


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    return Unpacked(five_bits(e, address, 4, _BYTES), four_pairs(e, address, _BYTES, factors))


Q5_1 = QuantType(
    name="q5_1",
    block=32,
    block_bytes=_BYTES,
    chunk=128,
    parts=HALVES_OF_FOUR_PAIRS,
    largest=31,
    unpack=_unpack,
    minima=MINIMA_OF_FOUR,
)
