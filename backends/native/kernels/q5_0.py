"""Q5_0: blocks of 32 weights; d f16 @0, the fifth bits u32 @2, 16 bytes @6 with elements 0-15 in the low nibbles."""

from __future__ import annotations

from ..emit import I8, I32, Emitter, Value, const, vec
from .quant import HALVES_OF_FOUR, QuantType, Unpacked, four_halves, four_nibbles

_BYTES = 22


def five_bits(e: Emitter, address: Value, at: int, stride: int) -> tuple[Value, Value]:
    """The weights 0-15 and 16-31 of four blocks, whose u32 of fifth bits is at byte `at` and nibbles behind it."""
    nibbles = four_nibbles(e, address, at + 4, stride)
    fifth = _fifth_bits(e, address, [b * stride + at for b in range(4)], 4 * stride)
    return e.or_(nibbles[0], fifth[0]), e.or_(nibbles[1], fifth[1])


def _fifth_bits(e: Emitter, address: Value, offsets: list[int], extent: int) -> tuple[Value, Value]:
    """For each nibble its fifth bit as 16 or 0: those of the low nibbles and those of the high ones."""
    kind = vec(I8, 64)
    if e.target.has_vbmi:
        # The u32 of each block twice in both quadwords of its 16 bytes; then byte j takes the 8 bits that end in bit j.
        words = e.read_pieces(address, [o for o in offsets for _ in range(4)], 4, extent)
        select = e.declare("llvm.x86.avx512.pmultishift.qb.512", kind, kind, kind)
        sixteen = const(kind, 16)
        bits = [e.call(select, [const(kind, [(j % 16 + at - 4) % 64 for j in range(64)]), words]) for at in (0, 16)]
        return e.and_(bits[0], sixteen), e.and_(bits[1], sixteen)
    blocks = [e.read(I32, address, o) for o in offsets]
    masks = const(kind, [1 << j % 8 for j in range(64)])
    results = []
    for at in (0, 2):
        spread = [e.take(e.bitcast(b, vec(I8, 4)), [at] * 8 + [at + 1] * 8) for b in blocks]
        bits = e.and_(e.concat(spread), masks)
        is_set = e.icmp_unsigned("!=", bits, const(kind, 0))
        results.append(e.select(is_set, const(kind, 16), const(kind, 0)))
    return results[0], results[1]


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    return Unpacked(five_bits(e, address, 2, _BYTES), four_halves(e, address, _BYTES, 4, factors))


Q5_0 = QuantType(
    name="q5_0",
    block=32,
    block_bytes=_BYTES,
    chunk=128,
    parts=HALVES_OF_FOUR,
    largest=16,
    unpack=_unpack,
    offset=16,
)
