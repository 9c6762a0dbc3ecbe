"""Q4_K: blocks of 256 weights in 8 groups of 32; d f16 @0, dmin f16 @2, 8 six-bit scales and minima @4, 128 bytes @16.

Group 2k is in the low nibbles of bytes 32k..32k+31, group 2k+1 in the high ones.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .quant import Minimum, Part, QuantType, Unpacked, scaled, spread


def six_bit_scales(e: Emitter, address: Value) -> Value:
    """The 12 bytes that Q4_K and Q5_K pack scales and minima in, as 16 i32: 8 scales, then 8 minima.

    With the bytes as the words A, B, C: the first four scales and minima are the low six bits of A and B; the others
    have their low four bits in the nibbles of C and their high two in the top of A and B.
    """
    kind = vec(I32, 4)
    words = e.read(kind, address, -4)
    low = e.lshr(e.take(words, (1, 3, 2, 3)), const(kind, (0, 0, 0, 4)))
    low = e.and_(low, const(kind, (0x3F3F3F3F, 0x0F0F0F0F, 0x3F3F3F3F, 0x0F0F0F0F)))
    high = e.and_(e.lshr(e.take(words, (1, 1, 2, 2)), const(kind, 2)), const(kind, (0, 0x30303030, 0, 0x30303030)))
    return e.zext(e.bitcast(e.or_(low, high), vec(I8, 16)), vec(I32, 16))


def block_scales(e: Emitter, address: Value, factors: Value | None) -> Value:
    """d in the 8 lanes of the scales and dmin in the 8 of the minima, times the factors."""
    halves = e.half_to_float(e.read(vec(I16, 2), address))
    return scaled(e, e.take(halves, [0] * 8 + [1] * 8), factors)


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    parts: list[Value] = []
    for half in range(2):
        parts += [e.read(vec(I8, 64), address, 16 + 64 * half)] * 2
    return Unpacked(tuple(parts), block_scales(e, address, factors), six_bit_scales(e, e.at(address, 4)))


def _groups(first: int, second: int, mask: int) -> Part:
    return Part((32 * first, 32 * first + 16, 32 * second, 32 * second + 16), spread(first, second), mask)


GROUP_MINIMA = tuple(Minimum(8 + g, 32 * g, 32) for g in range(8))

Q4_K = QuantType(
    name="q4_k",
    block=256,
    block_bytes=144,
    chunk=256,
    parts=(_groups(0, 2, 15), _groups(1, 3, 0xF0), _groups(4, 6, 15), _groups(5, 7, 0xF0)),
    largest=15 * 63,
    unpack=_unpack,
    minima=GROUP_MINIMA,
)
