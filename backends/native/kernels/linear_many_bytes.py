"""y = W x for many activation rows of bytes: the product of prefill where speed is worth more than nearness.

As `linear_many`, but weights stay bytes in the strips, interleaved as [four columns][16 rows][4], for an instruction
that adds four products of bytes. Their scales are float32, so a conversion and a scaled add serve 16 or 32 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..emit import F32, I8, I32, Emitter, Value, const, vec
from ..kernel import Kernel
from ..target import Target
from .activation_bytes import INTEGERS_AT, RECORD, SCALES_AT, SUMS_AT
from .activations import GROUP, STEP
from .linear_many import LANES, Strip, Words, kernel
from .quant import QuantType, Unpacked, masked
from .types import QUANT_TYPES

_HALF = STEP // 2


def rounded_to_bytes(activations: int, target: Target) -> frozenset[str]:
    """The types whose products take activations of 8 bits where `activations` asks for so many: none but on a target
    that multiplies bytes, nor those with a scale for fewer than 16 columns."""
    if activations != 8 or not target.dots_bytes(False):
        return frozenset()
    return frozenset(name for name, kind in QUANT_TYPES.items() if _unit(kind) >= _HALF)


def linear_many_bytes(type_name: str, pairs: int = 1) -> Kernel:
    """y = x W^T for many activation rows, x as `quantize_bytes` writes it; the rest is as in `linear_many`."""
    return kernel(f"ggufc_linear_many_bytes_{type_name}", pairs, "i16", _Bytes(QUANT_TYPES[type_name]).emit)


def _lanes(kind: QuantType) -> list[int]:
    """The scale lane of each element of a chunk."""
    found = dict[int, int]()
    for part in kind.parts:
        for k, start in enumerate(part.starts):
            found |= dict.fromkeys(range(start, start + part.run), part.lanes[k * part.run // 4])
    return [found[n] for n in range(kind.chunk)]


def _unit(kind: QuantType) -> int:
    """Columns that share a scale: 32, 16, or fewer."""
    lanes = _lanes(kind)
    sizes = (STEP, _HALF, 8)
    return next(n for n in sizes if n == 8 or all(len({*lanes[at : at + n]}) == 1 for at in range(0, len(lanes), n)))


@dataclass(frozen=True)
class _Bytes(Words):
    line: ClassVar[int] = GROUP
    record: ClassVar[int] = RECORD
    sums_at: ClassVar[dict[int, int]] = SUMS_AT

    @property
    def unit(self) -> int:
        return _unit(self.type)

    @property
    def _bias(self) -> int:
        """What is taken from the bytes in the strips, which are unsigned."""
        return self.type.offset + (128 if self.type.signed else 0)

    def spread(self, e: Emitter, chunk: Unpacked, line: Value, scales: Value, minima: Value) -> None:
        kind = self.type
        for part, values in zip(kind.parts, chunk.parts, strict=True):
            bytes_ = masked(e, values, part.mask)
            bytes_ = e.lshr(bytes_, const(bytes_.type, part.shift)) if part.shift else bytes_
            bytes_ = e.xor(bytes_, const(bytes_.type, 128)) if kind.signed else bytes_
            for k, start in enumerate(part.starts):
                e.write(e.take(bytes_, range(part.run * k, part.run * k + part.run)), line, start)
        lanes, full = _lanes(kind), kind.scales(e, chunk)
        for start in range(0, kind.chunk, self.unit):
            e.write(e.extract_element(full, const(I32, lanes[start])), scales, 4 * LANES * (start // self.unit))
        self.spread_minima(e, full, minima)

    def product(self, e: Emitter, records: list[Value], strips: list[Strip], width: Value) -> list[Value]:
        real, whole, bytes_ = vec(F32, LANES), vec(I32, LANES), vec(I8, 4 * LANES)
        n, unit = len(records) * len(strips), self.unit

        def integers(c: Value, start: int) -> list[Value]:
            """The integer products of the columns of a unit, which begins at c + start."""
            sums: list[Value] = []
            for record in records:
                first = const(whole, 0)
                if self._bias:
                    place = e.times(e.over(c, unit), 4)
                    total = e.read(I32, e.at(record, place), INTEGERS_AT[unit] + 4 * (start // unit), align=4)
                    first = e.splat(e.mul(total, const(I32, -self._bias)), LANES)
                sums += [first] * len(strips)
            for word in range(start // 4, (start + unit) // 4):
                at = e.times(c, LANES)
                weights = [e.read(bytes_, e.at(s.weights, at), 4 * LANES * word, align=64) for s in strips]
                before, sums = iter(sums), []
                for record in records:
                    four = e.splat(e.read(I32, e.at(record, c), 4 * word, align=4), LANES)
                    sums += [e.dot_bytes(next(before), w, e.bitcast(four, bytes_), False) for w in weights]
            return sums

        def step(c: Value, *totals: Value) -> list[Value]:
            """Adds the products of 32 columns."""
            place = e.times(e.over(c, STEP), 4)
            factors = [e.splat(e.read(F32, e.at(r, place), SCALES_AT, align=4), LANES) for r in records]
            results: Sequence[Value] = totals
            for start in range(0, STEP, unit):
                at = e.times(e.over(c, unit), 4 * LANES)
                scales = [e.read(real, e.at(s.scales, at), 4 * LANES * (start // unit), align=64) for s in strips]
                both = [e.fmul(scale, factor) for factor in factors for scale in scales]
                products = [e.sitofp(i, real) for i in integers(c, start)]
                results = [e.fma_(i, scale, t) for i, scale, t in zip(products, both, results, strict=True)]
            return self.add_minima(e, records, strips, c, results)

        return e.loop(0, width, STEP, [const(real, 0.0)] * n, step)
