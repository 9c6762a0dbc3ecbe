"""IQ1_M: blocks of 256 weights, 16 groups; indices of grid entries of 8 weights 32 bytes @0, for each entry a nibble 16
bytes @32 (the three high bits of the index, and whether the delta is negative), four u16 @48: four times three bits
of scale each, and at their tops the quarters of d f16.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, I64, Emitter, Value, const, vec
from .grid import BLOCK, OFFSET_OF_DELTAS, half, odd, parts, ternary
from .quant import QuantType, Unpacked


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    kind = vec(I16, 32)
    low = e.zext(e.read(vec(I8, 32), address), kind)
    rest = e.zext(e.take(e.read(vec(I8, 16), address, 32), [n // 2 for n in range(32)]), kind)
    rest = e.lshr(rest, const(kind, [0, 4] * 16))
    indices = e.or_(low, e.shl(e.and_(rest, const(kind, 7)), const(kind, 8)))
    negative = [e.multishift(e.bitcast(rest, vec(I64, 8)), [16 * n + 3] * 8, 2) for n in range(4)]
    scales = e.take(e.read(vec(I16, 4), address, 48), [n // 4 for n in range(16)])
    sub = e.and_(e.lshr(scales, const(scales.type, [0, 3, 6, 9] * 4)), const(scales.type, 7))
    d = half(e, _d(e, e.read(I64, address, 48)), 1 / 8, 16, factors)
    return Unpacked(ternary(e, "iq1_m", indices, negative), d, odd(e, e.zext(sub, vec(I32, 16))))


def _d(e: Emitter, words: Value) -> Value:
    """The half whose quarters stand at the tops of four u16."""
    quarters = [e.and_(e.lshr(words, const(I64, 12 + 12 * n)), const(I64, 15 << 4 * n)) for n in range(4)]
    return e.trunc(e.or_(e.or_(quarters[0], quarters[1]), e.or_(quarters[2], quarters[3])), I16)


IQ1_M = QuantType(
    name="iq1_m",
    block=BLOCK,
    block_bytes=56,
    chunk=BLOCK,
    parts=parts(16),
    largest=9 * 15,
    unpack=_unpack,
    offset=OFFSET_OF_DELTAS,
)
