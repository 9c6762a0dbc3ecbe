"""Mixtures of experts: which ones a token goes to, their products, and their weighted sum."""

from __future__ import annotations

from llvmlite import ir

from ..emit import F32, I32, I64, Emitter, Value, const
from ..kernel import Arguments, Buffer, Kernel, Scalar
from . import math
from .elementwise import each_lane, like
from .embed import embed
from .linear_one import linear_one
from .types import TYPES

_ROWS = 64
_LEAST_SUM = 6.103515625e-5  # the smallest normal half: llama.cpp, src/llama-graph.cpp, build_moe_ffn


def top_k() -> Kernel:
    """Numbers of the k largest, largest first, ties to the lower. x: float32 (tokens, count); y: int32 (tokens, k)."""

    def emit(e: Emitter, a: Arguments) -> None:
        token, count = a["@tokens"], a["count"]
        x = e.at(a["x"], e.times(e.mul(token, count), 4))
        y = e.at(a["y"], e.times(e.mul(token, a["k"]), 4))

        def slot(n: Value, last: Value, last_at: Value) -> list[Value]:
            def better(i: Value, best: Value, at: Value) -> list[Value]:
                value = e.read(F32, x, e.times(i, 4))
                is_tie = e.and_(e.fcmp_ordered("==", value, last), e.icmp_signed(">", i, last_at))
                is_left = e.or_(e.fcmp_unordered("<", value, last), is_tie)
                is_more = e.or_(e.fcmp_ordered(">", value, best), e.icmp_signed("<", at, e.index(0)))
                wins = e.and_(is_left, is_more)
                return [e.select(wins, value, best), e.select(wins, i, at)]

            best, at = e.loop(0, count, 1, [const(F32, -float("inf")), e.index(-1)], better)
            e.write(e.trunc(at, I32), y, e.times(n, 4))
            return [best, at]

        e.loop(0, a["k"], 1, [const(F32, float("inf")), e.index(-1)], slot)

    return Kernel(
        "ggufc_top_k",
        (Buffer("x", "f32"), Buffer("y", "i32", output=True)),
        (Scalar("tokens"), Scalar("count"), Scalar("k")),
        (("tokens", 1),),
        emit,
    )


def route(normalize: bool) -> Kernel:
    """Softmax over all logits at the chosen experts, made to sum to 1 if `normalize`, times `by`.

    x: float32 (tokens, count); experts: int32 (tokens, k); y: float32 (tokens, k).
    """

    def emit(e: Emitter, a: Arguments) -> None:
        token, count, k = a["@tokens"], a["count"], a["k"]
        x = e.at(a["x"], e.times(e.mul(token, count), 4))
        experts, y = (e.at(a[name], e.times(e.mul(token, k), 4)) for name in ("experts", "y"))

        def larger(i: Value, most: Value) -> list[Value]:
            value = e.read(F32, x, e.times(i, 4))
            return [e.select(e.fcmp_ordered(">", value, most), value, most)]

        (most,) = e.loop(0, count, 1, [const(F32, -float("inf"))], larger)

        def power(i: Value) -> Value:
            return math.exp(e, e.fsub(e.read(F32, x, e.times(i, 4)), most))

        def expert(n: Value) -> Value:
            return e.sext(e.read(I32, experts, e.times(n, 4)), I64)

        (total,) = e.loop(0, count, 1, [const(F32, 0.0)], lambda i, sum_: [e.fadd(sum_, power(i))])

        def share(n: Value) -> Value:
            return e.fdiv(power(expert(n)), total)

        chosen = const(F32, 1.0)
        if normalize:
            (chosen,) = e.loop(0, k, 1, [const(F32, 0.0)], lambda n, sum_: [e.fadd(sum_, share(n))])
            least = const(F32, _LEAST_SUM)
            chosen = e.select(e.fcmp_ordered("<", chosen, least), least, chosen)
        e.each(0, k, 1, lambda n: e.write(e.fmul(e.fdiv(share(n), chosen), a["by"]), y, e.times(n, 4)))

    return Kernel(
        f"ggufc_route{'_normalize' if normalize else ''}",
        (Buffer("x", "f32"), Buffer("experts", "i32"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("count"), Scalar("k"), Scalar("by", "f32")),
        (("tokens", 1),),
        emit,
    )


def expert_linear(type_name: str, exact_cols: int = 0) -> Kernel:
    """y[p] = W[experts[p]] x[p / share] for every pair p of a token and one of its experts.

    w: the raw rows of all experts' matrices; x: float32 (pairs / share, cols); experts: int32 (pairs,); y: float32
    (pairs, rows). `exact_cols`, if it isn't 0, is `cols`: the weights are then dequantized row by row instead of
    rounding the activations.
    """
    product = linear_one("f32" if exact_cols else type_name, _ROWS)
    kind = TYPES[type_name]

    def emit(e: Emitter, a: Arguments) -> None:
        pair, rows, cols = a["@pairs"], a["rows"], a["cols"]
        expert = e.sext(e.read(I32, a["experts"], e.times(pair, 4)), I64)
        matrix = e.at(a["w"], e.mul(e.mul(expert, rows), kind.row_bytes(e, cols)))
        x = e.at(a["x"], e.times(e.mul(e.udiv(pair, a["share"]), cols), 4))
        y = e.at(a["y"], e.times(e.mul(pair, rows), 4))
        given = {"x": x, "cols": cols}
        if not exact_cols:
            product.emit(e, given | {"w": matrix, "y": y, "rows": rows, "@rows": a["@rows"]})
            return
        line, number = e.scratch(4 * exact_cols), e.scratch(4)
        first = e.times(a["@rows"], _ROWS)

        def row(r: Value) -> None:
            e.write(e.trunc(r, I32), number)
            one = {"tokens": e.index(1), "rows": rows, "cols": cols, "@tokens": e.index(0)}
            embed(type_name).emit(e, one | {"ids": number, "w": matrix, "y": line})
            into = e.at(y, e.times(r, 4))
            product.emit(e, given | {"w": line, "y": into, "rows": e.index(1), "@rows": e.index(0)})

        e.each(first, e.minimum(e.add(first, e.index(_ROWS)), rows), 1, row)

    suffix = f"_exact_{exact_cols}" if exact_cols else ""
    return Kernel(
        f"ggufc_expert_linear_{type_name}{suffix}",
        (Buffer("w", "i8"), Buffer("x", "f32"), Buffer("experts", "i32"), Buffer("y", "f32", output=True)),
        (Scalar("pairs"), Scalar("rows"), Scalar("cols"), Scalar("share")),
        (("pairs", 1), ("rows", _ROWS)),
        emit,
    )


def expert_gain() -> Kernel:
    """y[p] = x[p] * w[experts[p]]. x, y: float32 (pairs, row); experts: int32 (pairs,); w: float32 (experts,)."""

    def emit(e: Emitter, a: Arguments) -> None:
        pair, row = a["@pairs"], a["row"]
        start = e.times(e.mul(pair, row), 4)
        x, y = e.at(a["x"], start), e.at(a["y"], start)
        expert = e.sext(e.read(I32, a["experts"], e.times(pair, 4)), I64)
        factor = e.read(F32, a["w"], e.times(expert, 4))

        def scale(kind: ir.Type, i: Value) -> None:
            e.write(e.fmul(e.read(kind, x, e.times(i, 4)), like(e, factor, kind)), y, e.times(i, 4))

        each_lane(e, row, scale)

    return Kernel(
        "ggufc_expert_gain",
        (Buffer("x", "f32"), Buffer("experts", "i32"), Buffer("w", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("pairs"), Scalar("row")),
        (("pairs", 1),),
        emit,
    )


def mix() -> Kernel:
    """y[t] = sum over n of x[t, n] * shares[t, n].

    x: float32 (tokens, k, row); shares: float32 (tokens, k); y: float32 (tokens, row).
    """

    def emit(e: Emitter, a: Arguments) -> None:
        token, row, k = a["@tokens"], a["row"], a["k"]
        first = e.mul(token, k)
        x, shares = e.at(a["x"], e.times(e.mul(first, row), 4)), e.at(a["shares"], e.times(first, 4))
        y = e.at(a["y"], e.times(e.mul(token, row), 4))

        def column(kind: ir.Type, i: Value) -> None:
            def add(n: Value, total: Value) -> list[Value]:
                value = e.read(kind, x, e.times(e.add(e.mul(n, row), i), 4))
                return [e.fadd(total, e.fmul(value, like(e, e.read(F32, shares, e.times(n, 4)), kind)))]

            (total,) = e.loop(0, k, 1, [const(kind, 0.0)], add)
            e.write(total, y, e.times(i, 4))

        each_lane(e, row, column)

    return Kernel(
        "ggufc_mix",
        (Buffer("x", "f32"), Buffer("shares", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("k"), Scalar("row")),
        (("tokens", 1),),
        emit,
    )
