"""Q2_K: blocks of 256 weights in 16 groups of 16; scales in the low nibbles and minima in the high ones of 16 bytes @0,
bit pairs 64 bytes @16, d f16 @80, dmin f16 @82.

Pair j of byte 32n + l is element 128n + 32j + l.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, vec
from .quant import BY_RUNS, PAIR_STARTS, Minimum, Part, QuantType, Unpacked, high_nibbles, low_nibbles, scaled, spread


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    pairs, packed = e.read(vec(I8, 64), address, 16), e.take(e.read(vec(I8, 16), address), BY_RUNS)
    halves = e.half_to_float(e.read(vec(I16, 2), address, 80))
    wide = e.zext(packed, vec(I32, 16))
    sub = e.concat([low_nibbles(e, wide), high_nibbles(e, wide)])
    return Unpacked((pairs,) * 4, scaled(e, e.take(halves, [0] * 16 + [1] * 16), factors), sub)


Q2_K = QuantType(
    name="q2_k",
    block=256,
    block_bytes=84,
    chunk=256,
    parts=tuple(Part(starts, spread(j, 4 + j, 8 + j, 12 + j), 3 << 2 * j) for j, starts in enumerate(PAIR_STARTS)),
    largest=3 * 15,
    unpack=_unpack,
    minima=tuple(Minimum(16 + lane, 16 * g, 16) for lane, g in enumerate(BY_RUNS)),
)
