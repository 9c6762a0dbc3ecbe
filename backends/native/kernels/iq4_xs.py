"""IQ4_XS: blocks of 256 weights in 8 groups; d f16 @0, the scales' high bits u16 @2 and low nibbles 4 bytes @4, 128
bytes @8, for each group 16 with elements 0-15 in the low nibbles. The nibbles go through IQ4_NL's table.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .iq4_nl import OFFSET, look_up
from .quant import Part, QuantType, Unpacked, high_nibbles, low_nibbles, scaled, spread


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    parts: list[Value] = []
    for half in range(2):
        nibbles = e.read(vec(I8, 64), address, 8 + 64 * half)
        parts += [look_up(e, low_nibbles(e, nibbles)), look_up(e, high_nibbles(e, nibbles))]
    d = scaled(e, e.splat(e.half_to_float(e.read(I16, address)), 8), factors)
    return Unpacked(tuple(parts), d, _scales(e, address))


def _scales(e: Emitter, address: Value) -> Value:
    kind = vec(I32, 8)
    low = e.lshr(e.splat(e.read(I32, address, 4), 8), const(kind, range(0, 32, 4)))
    high = e.lshr(e.splat(e.zext(e.read(I16, address, 2), I32), 8), const(kind, range(0, 16, 2)))
    unsigned = e.or_(e.and_(low, const(kind, 15)), e.shl(e.and_(high, const(kind, 3)), const(kind, 4)))
    return e.sub(unsigned, const(kind, 32))


def _part(group: int, start: int) -> Part:
    at = 32 * group + start
    return Part((at, at + 32, at + 64, at + 96), spread(group, group + 1, group + 2, group + 3))


IQ4_XS = QuantType(
    name="iq4_xs",
    block=256,
    block_bytes=136,
    chunk=256,
    parts=(_part(0, 0), _part(0, 16), _part(4, 0), _part(4, 16)),
    largest=127 * 32,
    unpack=_unpack,
    offset=OFFSET,
)
