"""INT8, which no GGUF has: a row is a float32 scale, then a signed byte for each of its weights."""

from __future__ import annotations

from ..emit import I8, Emitter, Value, vec
from .quant import Part, QuantType, Unpacked

_LANES = tuple(range(16))


def _unpack(e: Emitter, address: Value, factors: Value | None) -> Unpacked:
    assert factors is not None  # the row's scale
    return Unpacked(tuple(e.read(vec(I8, 64), address, at) for at in (0, 64)), factors)


INT8 = QuantType(
    name="int8",
    block=32,
    block_bytes=32,
    chunk=128,
    parts=(Part((0, 16, 32, 48), _LANES), Part((64, 80, 96, 112), _LANES)),
    largest=128,
    unpack=_unpack,
    signed=True,
    head=4,
)
