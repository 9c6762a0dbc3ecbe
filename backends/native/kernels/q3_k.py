"""Q3_K: blocks of 256 weights, 16 groups; third bits 32 bytes @0, bit pairs 64 @32, scales 12 @96, d f16 @108.

Pair j of byte 32n + l is element 128n + 32j + l, and its third bit is bit 4n + j of byte l.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .quant import BY_RUNS, PAIR_STARTS, Part, QuantType, Unpacked, scaled, spread

_BYTES = 110


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    bits, words = vec(I8, 64), vec(I32, 16)
    pairs, third = e.read(bits, address, 32), e.bitcast(e.read_pieces(address, [0, 0], 32, _BYTES), words)
    # Bit j of each byte is now the third bit of pair j, and others aren't taken.
    third = e.bitcast(e.lshr(third, const(words, [0] * 8 + [4] * 8)), bits)

    def two(j: int) -> Value:
        """The weights of pairs j and j + 1 in the nibbles of each byte."""
        low = e.move_bits(pairs, {0: 2 * j, 1: 2 * j + 1, 4: 2 * j + 2, 5: 2 * j + 3})
        return e.or_(low, e.move_bits(third, {2: j, 6: j + 1}))

    low, high = two(0), two(2)
    d = scaled(e, e.splat(e.half_to_float(e.read(I16, address, 108)), 16), factors)
    return Unpacked((low, low, high, high), d, _scales(e, address))


def _scales(e: Emitter, address: Value) -> Value:
    """The 16 scales. Their low four bits are the nibbles of 8 bytes, their high two in the four bytes that follow."""
    kind = vec(I32, 4)
    words = e.read(kind, address, 92)
    low = e.and_(e.lshr(e.take(words, (1, 2, 1, 2)), const(kind, (0, 0, 4, 4))), const(kind, 0x0F0F0F0F))
    high = e.and_(e.lshr(e.take(words, (3, 3, 3, 3)), const(kind, (0, 2, 4, 6))), const(kind, 0x03030303))
    unsigned = e.take(e.bitcast(e.or_(low, e.shl(high, const(kind, 4))), vec(I8, 16)), BY_RUNS)
    return e.sext(e.sub(unsigned, const(unsigned.type, 32)), vec(I32, 16))


Q3_K = QuantType(
    name="q3_k",
    block=256,
    block_bytes=_BYTES,
    chunk=256,
    parts=tuple(
        Part(starts, spread(j, 4 + j, 8 + j, 12 + j), (0x07, 0x70)[j % 2]) for j, starts in enumerate(PAIR_STARTS)
    ),
    largest=4 * 32,
    unpack=_unpack,
    offset=4,
)
