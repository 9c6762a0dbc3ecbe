"""Q6_K: blocks of 256 weights; low nibbles 128 bytes @0, high bit pairs 64 bytes @128, int8 scales @192, d f16 @208.

Of each 128 weights the first 64 are in the low nibbles of 64 bytes and the rest in the high ones; the high bits of
weight r are bits 2 * (r // 32) and up of byte r % 32.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .quant import Part, QuantType, Unpacked, high_nibbles, low_nibbles, scaled, spread


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    bits, words = vec(I8, 64), vec(I32, 16)
    parts: list[Value] = []
    for n in range(2):
        nibbles = e.read(bits, address, 64 * n)
        high = e.bitcast(e.read_pieces(address, [128 + 32 * n] * 2, 32, 210), words)
        # Bits 0 and 2 of the two halves go up to bit 4, bits 4 and 6 down; what crosses a byte is masked away.
        up = e.bitcast(e.shl(high, const(words, [4] * 8 + [2] * 8)), bits)
        down = e.bitcast(e.lshr(high, const(words, [0] * 8 + [2] * 8)), bits)
        mask = const(bits, 48)
        parts.append(e.or_(low_nibbles(e, nibbles), e.and_(up, mask)))
        parts.append(e.or_(high_nibbles(e, nibbles), e.and_(down, mask)))
    d = scaled(e, e.splat(e.half_to_float(e.read(I16, address, 208)), 16), factors)
    return Unpacked(tuple(parts), d, e.sext(e.read(vec(I8, 16), address, 192), words))


def _part(z: int) -> Part:
    starts = (64 * z, 64 * z + 16, 64 * z + 32, 64 * z + 48)
    return Part(starts, spread(4 * z, 4 * z + 1, 4 * z + 2, 4 * z + 3))


Q6_K = QuantType(
    name="q6_k",
    block=256,
    block_bytes=210,
    chunk=256,
    parts=(_part(0), _part(1), _part(2), _part(3)),
    largest=32 * 128,
    unpack=_unpack,
    offset=32,
)
