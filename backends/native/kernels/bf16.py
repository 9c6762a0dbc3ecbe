"""BF16: the upper half of a single's bits."""

from __future__ import annotations

from ..emit import I32, Emitter, Value, const
from .plain import PlainType, as_float, like


def _widen(e: Emitter, bits: Value) -> Value:
    wide = e.zext(bits, like(bits, I32))
    return as_float(e, e.shl(wide, const(wide.type, 16)))


BF16 = PlainType("bf16", 2, _widen)
