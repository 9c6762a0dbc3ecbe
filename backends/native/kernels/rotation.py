"""The cosines and sines of rotary position embeddings, once for all heads and layers of a call."""

from __future__ import annotations

import math
from math import factorial

from llvmlite import ir

from ..emit import F32, I32, I64, Emitter, Value, const
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .elementwise import each_lane, like

F64 = ir.DoubleType()
_ROUND = 1.5 * 2.0**52
"""Added to a float64 below 2^51 it leaves the nearest whole number in the lowest bits."""


def rotation(with_factors: bool) -> Kernel:
    """cos and sin of the angle of each pair of a head, times the magnitude.

    turns: float32 (half,), the angles at position 1; factors: float32 (half,), which these are divided by; position:
    int32 (1,), of the first token; table: float32 (tokens, 2, half), the cosines and the sines of each token.
    """
    buffers = ["turns", *(["factors"] if with_factors else [])]

    def emit(e: Emitter, a: Arguments) -> None:
        token, half = a["@tokens"], a["half"]
        position = e.add(e.sext(e.read(I32, a["position"]), I64), token)
        row = e.at(a["table"], e.times(e.mul(token, half), 8))

        def pairs(kind: ir.Type, i: Value) -> None:
            at = e.times(i, 4)
            turns = e.read(kind, a["turns"], at)
            if with_factors:
                turns = e.fdiv(turns, e.read(kind, a["factors"], at))
            angle = e.fmul(like(e, e.sitofp(position, F32), kind), turns)
            for value, line in zip(cos_sin(e, angle), (row, e.at(row, e.times(half, 4))), strict=True):
                e.write(e.fmul(value, like(e, a["magnitude"], kind)), line, at)

        each_lane(e, half, pairs)

    return Kernel(
        f"ggufc_rotation{'_by_factors' if with_factors else ''}",
        (
            *(Buffer(name, "f32") for name in buffers),
            Buffer("position", "i32"),
            Buffer("table", "f32", output=True),
        ),
        (Scalar("tokens"), Scalar("half"), Scalar("magnitude", "f32")),
        (("tokens", 1),),
        emit,
    )


def cos_sin(e: Emitter, angle: Value) -> tuple[Value, Value]:
    """Both of a float32 angle (scalar or vector) below 2^30, to half a last place: reduced and summed in float64."""
    lanes = angle.type.count if isinstance(angle.type, ir.VectorType) else 0
    wide, whole = (ir.VectorType(t, lanes) if lanes else t for t in (F64, I64))
    x = e.fpext(angle, wide)
    shifted = e.fadd(e.fmul(x, const(wide, 2 / math.pi)), const(wide, _ROUND))
    quarter = e.bitcast(shifted, whole)
    r = e.fsub(x, e.fmul(e.fsub(shifted, const(wide, _ROUND)), const(wide, math.pi / 2)))
    square = e.fmul(r, r)
    cos = _series(e, square, [(-1) ** k / factorial(2 * k) for k in range(8)])
    sin = e.fmul(r, _series(e, square, [(-1) ** k / factorial(2 * k + 1) for k in range(8)]))
    odd = e.trunc(quarter, ir.VectorType(ir.IntType(1), lanes) if lanes else ir.IntType(1))
    first, second = e.select(odd, sin, cos), e.select(odd, cos, sin)

    def signed(value: Value, turns: Value) -> Value:
        """Minus the value where bit 1 of the quarter turns is set."""
        bit = e.shl(e.and_(turns, const(whole, 2)), const(whole, 62))
        return e.fptrunc(e.bitcast(e.xor(e.bitcast(value, whole), bit), wide), angle.type)

    return signed(first, e.add(quarter, const(whole, 1))), signed(second, quarter)


def _series(e: Emitter, x: Value, coefficients: list[float]) -> Value:
    """The polynomial in x, lowest coefficient first."""
    total = const(x.type, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = e.fadd(e.fmul(total, x), const(x.type, c))
    return total
