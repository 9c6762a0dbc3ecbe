"""Q2_K: blocks of 256 weights in 16 groups of 16; scales in the low nibbles and minima in the high ones of 16 bytes @0,
bit pairs 64 bytes @16, d f16 @80, dmin f16 @82.

Pair j of byte 32n + l is element 128n + 32j + l.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .quant import PAIR_STARTS, Minimum, Part, QuantType, Unpacked, high_nibbles, low_nibbles, scaled, spread


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    pairs, packed = e.read(vec(I8, 64), address, 16), e.read(vec(I8, 16), address)
    parts = tuple(e.and_(pairs, const(pairs.type, 3 << 2 * j)) for j in range(4))
    halves = e.half_to_float(e.read(vec(I16, 2), address, 80))
    sub = e.concat([low_nibbles(e, packed), high_nibbles(e, packed)])
    return Unpacked(parts, scaled(e, e.take(halves, [0] * 16 + [1] * 16), factors), e.zext(sub, vec(I32, 32)))


Q2_K = QuantType(
    name="q2_k",
    block=256,
    block_bytes=84,
    chunk=256,
    parts=tuple(
        Part(starts, spread(2 * j, 2 * j + 1, 2 * j + 8, 2 * j + 9), 2 * j) for j, starts in enumerate(PAIR_STARTS)
    ),
    largest=3 * 15,
    unpack=_unpack,
    minima=tuple(Minimum(16 + g, 16 * g, 16) for g in range(16)),
)
