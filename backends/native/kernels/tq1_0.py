"""TQ1_0: blocks of 256 weights that are -d, 0 or d; base-3 digits 52 bytes @0, d f16 @52.

A byte b holds the fraction b / 256, whose ternary digits are weights. Digit n is the first one of b * 3^n. The first 32
bytes give elements 0-159, all first digits before all second ones and so on; the next 16 bytes elements 160-239, five
digits each; the last four elements 240-255, four digits each.
"""

from __future__ import annotations

from ..emit import I8, I16, I32, Emitter, Value, const, vec
from .quant import Part, QuantType, Unpacked, scaled, spread


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    sixteens = [e.read(vec(I8, 16), address, at) for at in (0, 16, 32)]
    sixteens.append(e.concat([e.read(vec(I8, 4), address, 48)] * 4))
    digits = [(byte, n) for n in range(5) for byte in (0, 1)] + [(2, n) for n in range(5)]
    powers = [[3**n] * 16 for _, n in digits] + [[3**n for n in range(4) for _ in range(4)]]
    sources = [sixteens[byte] for byte, _ in digits] + [sixteens[3]]
    parts = tuple(_digits(e, sources[at : at + 4], powers[at : at + 4]) for at in range(0, 16, 4))
    return Unpacked(parts, scaled(e, e.splat(e.half_to_float(e.read(I16, address, 52)), 1), factors))


def _digits(e: Emitter, sources: list[Value], powers: list[list[int]]) -> Value:
    """The first digits of the sources times the powers of three, modulo one."""
    words = vec(I16, 32)
    bytes_ = e.bitcast(e.concat(sources), words)
    factors = const(words, [power for run in powers for power in run[::2]])

    def first(fractions: Value) -> Value:
        """The first digits of fractions of 2^16: what three times them carries over."""
        wide = e.zext(e.mul(fractions, factors), vec(I32, 32))
        return e.trunc(e.lshr(e.mul(wide, const(wide.type, 3)), const(wide.type, 16)), words)

    eight = const(words, 8)
    even, odd = first(e.shl(bytes_, eight)), first(e.and_(bytes_, const(words, 0xFF00)))
    return e.bitcast(e.or_(even, e.shl(odd, eight)), vec(I8, 64))


TQ1_0 = QuantType(
    name="tq1_0",
    block=256,
    block_bytes=54,
    chunk=256,
    parts=tuple(Part((at, at + 16, at + 32, at + 48), spread(0)) for at in range(0, 256, 64)),
    largest=2,
    unpack=_unpack,
    is_made_of_words=True,
    offset=1,
)
