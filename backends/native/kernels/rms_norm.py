"""Rows over the root of the mean of their squares."""

from __future__ import annotations

from llvmlite import ir

from ..emit import F32, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .elementwise import LANES, each_lane, like

_SUMS = 4


def rms_norm(has_weight: bool) -> Kernel:
    """y = x / sqrt(mean(x^2) + eps) [* w], over the last axis.

    x, y: float32 (rows, row); w, if it has one: float32 (row,).
    """

    def emit(e: Emitter, a: Arguments) -> None:
        row = a["row"]
        start = e.times(e.mul(a["@rows"], row), 4)
        x, y = e.at(a["x"], start), e.at(a["y"], start)
        mean = e.fdiv(_sum_of_squares(e, x, row), e.sitofp(row, F32))
        root = e.call(e.declare("llvm.sqrt.f32", F32, F32), [e.fadd(mean, a["eps"])])
        factor = e.fdiv(const(F32, 1.0), root)

        def scale(kind: ir.Type, i: Value) -> None:
            at = e.times(i, 4)
            value = e.fmul(e.read(kind, x, at), like(e, factor, kind))
            e.write(e.fmul(value, e.read(kind, a["w"], at)) if has_weight else value, y, at)

        each_lane(e, row, scale)

    weight = (Buffer("w", "f32"),) if has_weight else ()
    return Kernel(
        f"ggufc_rms_norm{'_weight' if has_weight else ''}",
        (Buffer("x", "f32"), *weight, Buffer("y", "f32", output=True)),
        (Scalar("rows"), Scalar("row"), Scalar("eps", "f32")),
        (("rows", 1),),
        emit,
    )


def _sum_of_squares(e: Emitter, x: Value, count: Value) -> Value:
    """In _SUMS * LANES partial sums, which keeps the rounding far below that of one."""
    kind, step = vec(F32, LANES), _SUMS * LANES
    whole = e.times(e.over(count, step), step)

    def add(i: Value, *sums: Value) -> list[Value]:
        values = [e.read(kind, x, e.times(e.add(i, e.index(LANES * k)), 4)) for k in range(_SUMS)]
        return [e.fma_(value, value, total) for value, total in zip(values, sums, strict=True)]

    def one(i: Value, total: Value) -> list[Value]:
        value = e.read(F32, x, e.times(i, 4))
        return [e.fma_(value, value, total)]

    a, b, c, d = e.loop(0, whole, step, [const(kind, 0.0)] * _SUMS, add)
    (rest,) = e.loop(whole, count, 1, [const(F32, 0.0)], one)
    return e.fadd(e.sum_lanes(e.fadd(e.fadd(a, b), e.fadd(c, d))), rest)
