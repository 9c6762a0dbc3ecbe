"""TQ2_0: blocks of 256 weights that are -d, 0 or d; bit pairs 64 bytes @0, d f16 @64.

Pair j of byte 32n + l is element 128n + 32j + l.
"""

from __future__ import annotations

from ..emit import I8, I16, Emitter, Value, const, vec
from .quant import PAIR_STARTS, Part, QuantType, Unpacked, scaled, spread


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    pairs = e.read(vec(I8, 64), address)
    three = const(pairs.type, 3)
    parts = tuple(e.and_(e.lshr(pairs, const(pairs.type, 2 * j)), three) for j in range(4))
    return Unpacked(parts, scaled(e, e.splat(e.half_to_float(e.read(I16, address, 64)), 1), factors))


TQ2_0 = QuantType(
    name="tq2_0",
    block=256,
    block_bytes=66,
    chunk=256,
    parts=tuple(Part(starts, spread(0)) for starts in PAIR_STARTS),
    largest=2,
    unpack=_unpack,
    offset=1,
)
