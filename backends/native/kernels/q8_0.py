"""Q8_0: blocks of 32 weights; d f16 @0, 32 signed bytes @2."""

from __future__ import annotations

from ..emit import Emitter, Value
from .quant import Part, QuantType, Unpacked, four_halves, spread

_BYTES = 34


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    parts = tuple(e.read_pieces(address, [b * _BYTES + 2, (b + 1) * _BYTES + 2], 32, 4 * _BYTES) for b in (0, 2))
    return Unpacked(parts, four_halves(e, address, _BYTES, 1, factors))


Q8_0 = QuantType(
    name="q8_0",
    block=32,
    block_bytes=_BYTES,
    chunk=128,
    parts=(Part((0, 16, 32, 48), spread(0, 1)), Part((64, 80, 96, 112), spread(2, 3))),
    largest=128,
    unpack=_unpack,
    signed=True,
)
