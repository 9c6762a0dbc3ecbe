"""IQ4_NL: Q4_0 with a table in place of the offset; d f16 @0, 16 bytes of nibbles @2."""

from __future__ import annotations

from ..emit import Emitter, Value
from .quant import HALVES_OF_FOUR, QuantType, Unpacked, four_halves, four_nibbles

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What a nibble stands for: ggml/src/ggml-common.h, kvalues_iq4nl."""
OFFSET = 128
"""What is added to it: products with unsigned bytes take fewer instructions."""
_BYTES = 18


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    parts = tuple(look_up(e, nibbles) for nibbles in four_nibbles(e, address, 2, _BYTES))
    return Unpacked(parts, four_halves(e, address, _BYTES, 4, factors))


def look_up(e: Emitter, nibbles: Value) -> Value:
    """What the nibbles stand for, plus OFFSET."""
    return e.look_up([value + OFFSET for value in TABLE], nibbles)


IQ4_NL = QuantType(
    name="iq4_nl",
    block=32,
    block_bytes=_BYTES,
    chunk=128,
    parts=HALVES_OF_FOUR,
    largest=127,
    unpack=_unpack,
    offset=OFFSET,
)
