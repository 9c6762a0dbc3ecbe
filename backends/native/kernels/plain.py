"""How a plain type is described: numbers of their own, each of which stands for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from ..emit import F32, Emitter, Value, vec


@dataclass(frozen=True)
class PlainType:
    """A plain type. `widen(e, bits)` makes float32 of integers that hold its bits, a scalar or a vector of them."""

    name: str
    block_bytes: int
    widen: Callable[[Emitter, Value], Value]
    block: int = 1

    def row_bytes(self, e: Emitter, cols: Value) -> Value:
        """Bytes of a row of `cols` weights."""
        return e.times(cols, self.block_bytes)

    def read(self, e: Emitter, address: Value, lanes: int = 0) -> Value:
        """The float32 at `address`, or a vector of so many from there on."""
        bits = ir.IntType(8 * self.block_bytes)
        return self.widen(e, e.read(vec(bits, lanes) if lanes else bits, address))


def like(value: Value, kind: ir.Type) -> ir.Type:
    """The type with as many lanes as `value` has."""
    return vec(kind, value.type.count) if isinstance(value.type, ir.VectorType) else kind


def as_float(e: Emitter, bits: Value) -> Value:
    """The float32 whose bits the i32 are."""
    return e.bitcast(bits, like(bits, F32))
