"""Rows over the root of the mean of their squares, as they are or about their mean."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..emit import F32, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .elementwise import LANES, each_lane, like

_SUMS = 4


def rms_norm(has_weight: bool, adds: bool = False) -> Kernel:
    """y = x / sqrt(mean(x^2) + eps) [* w] [+ r], over the last axis.

    x, r, y: float32 (rows, row); w, if it has one: float32 (row,).
    """
    given = (*((Buffer("w", "f32"),) if has_weight else ()), *((Buffer("r", "f32"),) if adds else ()))

    def emit(e: Emitter, a: Arguments) -> None:
        row = a["row"]
        start = e.times(e.mul(a["@rows"], row), 4)
        x, y = e.at(a["x"], start), e.at(a["y"], start)
        factor = rms_factor(e, x, row, a["eps"])

        def scale(kind: ir.Type, i: Value) -> None:
            at = e.times(i, 4)
            value = e.fmul(e.read(kind, x, at), like(e, factor, kind))
            value = e.fmul(value, e.read(kind, a["w"], at)) if has_weight else value
            e.write(e.fadd(value, e.read(kind, a["r"], e.add(start, at))) if adds else value, y, at)

        each_lane(e, row, scale)

    return Kernel(
        f"ggufc_rms_norm{'_weight' if has_weight else ''}{'_add' if adds else ''}",
        (Buffer("x", "f32"), *given, Buffer("y", "f32", output=True)),
        (Scalar("rows"), Scalar("row"), Scalar("eps", "f32")),
        (("rows", 1),),
        emit,
    )


def rms_factor(e: Emitter, x: Value, row: Value, eps: Value) -> Value:
    """1 / sqrt(mean(x^2) + eps) of the `row` float32 at x."""
    mean = e.fdiv(_sum(e, x, row, lambda value: e.fmul(value, value)), e.sitofp(row, F32))
    root = e.call(e.declare("llvm.sqrt.f32", F32, F32), [e.fadd(mean, eps)])
    return e.fdiv(const(F32, 1.0), root)


def layer_norm(weights: int) -> Kernel:
    """y = (x - mean(x)) / sqrt(variance(x) + eps) [* w [+ b]], over the last axis, with the biased variance.

    x, y: float32 (rows, row); `weights`, 0 to 2, says how many it has of w and b: float32 (row,).
    """
    given = tuple(Buffer(name, "f32") for name in ("w", "b")[:weights])

    def emit(e: Emitter, a: Arguments) -> None:
        row = a["row"]
        start = e.times(e.mul(a["@rows"], row), 4)
        x, y, count = e.at(a["x"], start), e.at(a["y"], start), e.sitofp(row, F32)
        mean = e.fdiv(_sum(e, x, row, lambda value: value), count)

        def centred(value: Value) -> Value:
            return e.fsub(value, like(e, mean, value.type))

        def square(value: Value) -> Value:
            return e.fmul(centred(value), centred(value))

        variance = e.fdiv(_sum(e, x, row, square), count)
        root = e.call(e.declare("llvm.sqrt.f32", F32, F32), [e.fadd(variance, a["eps"])])
        factor = e.fdiv(const(F32, 1.0), root)

        def scale(kind: ir.Type, i: Value) -> None:
            at = e.times(i, 4)
            value = e.fmul(centred(e.read(kind, x, at)), like(e, factor, kind))
            for buffer, combine in zip(given, (e.fmul, e.fadd), strict=False):
                value = combine(value, e.read(kind, a[buffer.name], at))
            e.write(value, y, at)

        each_lane(e, row, scale)

    return Kernel(
        "ggufc_layer_norm" + ("", "_weight", "_weight_bias")[weights],
        (Buffer("x", "f32"), *given, Buffer("y", "f32", output=True)),
        (Scalar("rows"), Scalar("row"), Scalar("eps", "f32")),
        (("rows", 1),),
        emit,
    )


def _sum(e: Emitter, x: Value, count: Value, term: Callable[[Value], Value]) -> Value:
    """The sum of a term of each element, in _SUMS * LANES partial sums, which keeps the rounding low."""
    kind, step = vec(F32, LANES), _SUMS * LANES
    whole = e.times(e.over(count, step), step)

    def add(i: Value, *sums: Value) -> list[Value]:
        values = [e.read(kind, x, e.times(e.add(i, e.index(LANES * k)), 4)) for k in range(_SUMS)]
        return [e.fadd(total, term(value)) for value, total in zip(values, sums, strict=True)]

    def one(i: Value, total: Value) -> list[Value]:
        return [e.fadd(total, term(e.read(F32, x, e.times(i, 4))))]

    a, b, c, d = e.loop(0, whole, step, [const(kind, 0.0)] * _SUMS, add)
    (rest,) = e.loop(whole, count, 1, [const(F32, 0.0)], one)
    return e.fadd(e.sum_lanes(e.fadd(e.fadd(a, b), e.fadd(c, d))), rest)
