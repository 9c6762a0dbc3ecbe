"""Q3_K: blocks of 256 weights, 16 groups; third bits 32 bytes @0, bit pairs 64 @32, scales 12 @96, d f16 @108.

Pair j of byte 32n + l is element 128n + 32j + l, and its third bit is bit 4n + j of byte l.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .quant import PAIR_STARTS, Part, QuantType, Unpacked, scaled, spread

_BYTES = 110


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    bits, words = vec(I8, 64), vec(I32, 16)
    pairs = e.read(bits, address, 32)
    # Bit j of each byte is now the third bit of pair j; what crosses a byte is masked away.
    third = e.lshr(e.bitcast(e.read_pieces(address, [0, 0], 32, _BYTES), words), const(words, [0] * 8 + [4] * 8))
    parts: list[Value] = []
    for j in range(3):
        bit = e.bitcast(e.shl(third, const(words, 2 + j)), bits)
        parts.append(e.or_(e.and_(pairs, const(bits, 3 << 2 * j)), e.and_(bit, const(bits, 4 << 2 * j))))
    bit = e.bitcast(e.lshr(third, const(words, 1)), bits)
    parts.append(e.or_(e.lshr(pairs, const(bits, 6)), e.and_(bit, const(bits, 4))))
    d = scaled(e, e.splat(e.half_to_float(e.read(I16, address, 108)), 16), factors)
    return Unpacked(tuple(parts), d, _scales(e, address))


def _scales(e: Emitter, address: Value) -> Value:
    """The 16 scales. Their low four bits are the nibbles of 8 bytes, their high two in the four bytes that follow."""
    kind = vec(I32, 4)
    words = e.read(kind, address, 92)
    low = e.and_(e.lshr(e.take(words, (1, 2, 1, 2)), const(kind, (0, 0, 4, 4))), const(kind, 0x0F0F0F0F))
    high = e.and_(e.lshr(e.take(words, (3, 3, 3, 3)), const(kind, (0, 2, 4, 6))), const(kind, 0x03030303))
    unsigned = e.bitcast(e.or_(low, e.shl(high, const(kind, 4))), vec(I8, 16))
    return e.sub(e.zext(unsigned, vec(I32, 16)), const(vec(I32, 16), 32))


Q3_K = QuantType(
    name="q3_k",
    block=256,
    block_bytes=_BYTES,
    chunk=256,
    parts=tuple(
        Part(starts, spread(2 * j, 2 * j + 1, 2 * j + 8, 2 * j + 9), (0, 2, 4, 0)[j])
        for j, starts in enumerate(PAIR_STARTS)
    ),
    largest=4 * 32,
    unpack=_unpack,
    offset=4,
)
