"""Operations on elements one by one, and on whole rows where they only move or are added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from ..emit import F32, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar
from . import math

LANES = 16
_PER_GROUP = 2048
_GELU = 0.79788456080286535587989211986876  # sqrt(2 / pi), ggml/src/ggml-cpu/vec.h


def each_lane(e: Emitter, stop: Value, body: Callable[[ir.Type, Value], None]) -> None:
    """body(type, i) over [0, stop): LANES elements at once as a vector type, then those that are left as scalars."""
    whole = e.times(e.over(stop, LANES), LANES)
    e.each(0, whole, LANES, lambda i: body(vec(F32, LANES), i))
    e.each(whole, stop, 1, lambda i: body(F32, i))


def like(e: Emitter, value: Value, kind: ir.Type) -> Value:
    """A scalar as a value of the type: itself, or in every lane."""
    return e.splat(value, kind.count) if isinstance(kind, ir.VectorType) else value


@dataclass(frozen=True)
class _Rule:
    """`emit(e, values, parameter)`; the values are operands, vectors or scalars alike."""

    operands: tuple[str, ...]
    emit: Callable[[Emitter, list[Value], Value], Value]
    parameter: str | None = None


def _gelu(e: Emitter, x: Value) -> Value:
    """The tanh form."""
    square = e.fmul(x, x)
    inner = e.fmul(e.fmul(x, const(x.type, _GELU)), e.fma_(square, const(x.type, 0.044715), const(x.type, 1.0)))
    return e.fmul(e.fmul(x, const(x.type, 0.5)), e.fadd(math.tanh(e, inner), const(x.type, 1.0)))


def _silu(e: Emitter, x: Value) -> Value:
    return e.fdiv(x, e.fadd(const(x.type, 1.0), math.exp(e, e.fneg(x))))


def _softcap(e: Emitter, x: Value, cap: Value) -> Value:
    return e.fmul(cap, math.tanh(e, e.fdiv(x, cap)))


def _relu(e: Emitter, x: Value) -> Value:
    zero = const(x.type, 0.0)
    return e.select(e.fcmp_ordered("<", x, zero), zero, x)  # NaN stays


_RULES: dict[str, _Rule] = {
    "add": _Rule(("a", "b"), lambda e, v, _: e.fadd(*v)),
    "mul": _Rule(("a", "b"), lambda e, v, _: e.fmul(*v)),
    "scale": _Rule(("a",), lambda e, v, by: e.fmul(v[0], by), "by"),
    "gelu": _Rule(("a",), lambda e, v, _: _gelu(e, v[0])),
    "silu": _Rule(("a",), lambda e, v, _: _silu(e, v[0])),
    "relu": _Rule(("a",), lambda e, v, _: _relu(e, v[0])),
    "tanh": _Rule(("a",), lambda e, v, _: math.tanh(e, v[0])),
    "softcap": _Rule(("a",), lambda e, v, cap: _softcap(e, v[0], cap), "cap"),
}


def elementwise(name: str) -> Kernel:
    """y = the operation of that name on `count` float32 elements: add or mul of a and b; scale (by), gelu, silu,
    relu, tanh or softcap (cap) of a. y may be one of its operands.
    """
    rule = _RULES[name]

    def emit(e: Emitter, a: Arguments) -> None:
        first = e.times(a["@count"], _PER_GROUP)
        count = e.minimum(e.sub(a["count"], first), _PER_GROUP)
        addresses = {buffer: e.at(a[buffer], e.times(first, 4)) for buffer in (*rule.operands, "y")}

        def apply(kind: ir.Type, i: Value) -> None:
            values = [e.read(kind, addresses[operand], e.times(i, 4)) for operand in rule.operands]
            parameter = like(e, a[rule.parameter], kind) if rule.parameter else None
            e.write(rule.emit(e, values, parameter), addresses["y"], e.times(i, 4))

        each_lane(e, count, apply)

    return Kernel(
        f"ggufc_{name}",
        (*(Buffer(operand, "f32") for operand in rule.operands), Buffer("y", "f32", output=True)),
        (Scalar("count"), *((Scalar(rule.parameter, "f32"),) if rule.parameter else ())),
        (("count", _PER_GROUP),),
        emit,
    )


def act(e: Emitter, name: str, value: Value) -> Value:
    """gelu, silu, relu or tanh of a scalar or vector."""
    return _RULES[name].emit(e, [value], None)


def gated(name: str) -> Kernel:
    """y = act(a) * b on `count` float32 elements, `name` being gelu, silu, relu or tanh. y may be one of the two."""

    def emit(e: Emitter, a: Arguments) -> None:
        first = e.times(a["@count"], _PER_GROUP)
        count = e.minimum(e.sub(a["count"], first), _PER_GROUP)
        addresses = {buffer: e.at(a[buffer], e.times(first, 4)) for buffer in "aby"}

        def apply(kind: ir.Type, i: Value) -> None:
            gate, value = (e.read(kind, addresses[buffer], e.times(i, 4)) for buffer in "ab")
            e.write(e.fmul(act(e, name, gate), value), addresses["y"], e.times(i, 4))

        each_lane(e, count, apply)

    return Kernel(
        f"ggufc_gated_{name}",
        (Buffer("a", "f32"), Buffer("b", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("count"),),
        (("count", _PER_GROUP),),
        emit,
    )


def by_row(name: str) -> Kernel:
    """y = x + w ("add") or x * w ("mul") in every row. x, y: float32 (rows, row); w: float32 (row,)."""

    def emit(e: Emitter, a: Arguments) -> None:
        row = a["row"]
        start = e.times(e.mul(a["@rows"], row), 4)
        x, y = e.at(a["x"], start), e.at(a["y"], start)

        def apply(kind: ir.Type, i: Value) -> None:
            at = e.times(i, 4)
            e.write(_RULES[name].emit(e, [e.read(kind, x, at), e.read(kind, a["w"], at)], None), y, at)

        each_lane(e, row, apply)

    return Kernel(
        f"ggufc_{name}_by_row",
        (Buffer("x", "f32"), Buffer("w", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("rows"), Scalar("row")),
        (("rows", 1),),
        emit,
    )


def gain_by_one() -> Kernel:
    """y = x * w[0] in each row. x, y: float32 (rows, row); w: float32 (1,)."""

    def emit(e: Emitter, a: Arguments) -> None:
        start, factor = e.times(e.mul(a["@rows"], a["row"]), 4), e.read(F32, a["w"])
        x, y = e.at(a["x"], start), e.at(a["y"], start)

        def apply(kind: ir.Type, i: Value) -> None:
            at = e.times(i, 4)
            e.write(e.fmul(e.read(kind, x, at), like(e, factor, kind)), y, at)

        each_lane(e, a["row"], apply)

    return Kernel(
        "ggufc_gain_by_one",
        (Buffer("x", "f32"), Buffer("w", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("rows"), Scalar("row")),
        (("rows", 1),),
        emit,
    )
