"""Q5_K: Q4_K with 32 bytes of fifth bits; d f16 @0, dmin f16 @2, scales and minima @4, fifth bits @16, 128 bytes @48.

Bit g of byte l of the fifth bits belongs to element l of group g.
"""

from __future__ import annotations

from ..emit import I8, I32, Emitter, Value, const, vec
from .q4_k import GROUP_MINIMA, block_scales, six_bit_scales
from .quant import Part, QuantType, Unpacked, high_nibbles, low_nibbles, spread

_BYTES = 176


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    bits, words = vec(I8, 64), vec(I32, 16)
    fifth = e.bitcast(e.read_pieces(address, [16, 16], 32, _BYTES), words)

    def bits_of(first: int) -> Value:
        """The fifth bits of groups `first` and `first` + 2 as 16 or 0; what crosses a byte is masked away."""
        shift, by = (e.lshr, (first - 4, first - 2)) if first >= 4 else (e.shl, (4 - first, 2 - first))
        moved = shift(fifth, const(words, [by[0]] * 8 + [by[1]] * 8))
        return e.and_(e.bitcast(moved, bits), const(bits, 16))

    parts: list[Value] = []
    for half in range(2):
        nibbles = e.read(bits, address, 48 + 64 * half)
        parts.append(e.or_(low_nibbles(e, nibbles), bits_of(4 * half)))
        parts.append(e.or_(high_nibbles(e, nibbles), bits_of(4 * half + 1)))
    return Unpacked(tuple(parts), block_scales(e, address, factors), six_bit_scales(e, e.at(address, 4)))


def _groups(first: int) -> Part:
    at = 32 * first
    return Part((at, at + 16, at + 64, at + 80), spread(first, first + 2))


Q5_K = QuantType(
    name="q5_k",
    block=256,
    block_bytes=_BYTES,
    chunk=256,
    parts=(_groups(0), _groups(1), _groups(4), _groups(5)),
    largest=31 * 63,
    unpack=_unpack,
    minima=GROUP_MINIMA,
)
