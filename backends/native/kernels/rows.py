"""Kernels that move rows or combine neighbouring ones."""

from __future__ import annotations

from llvmlite import ir

from ..emit import F32, I32, Emitter, Value, const
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .elementwise import each_lane, like

_COLUMNS = 256


def copy_rows() -> Kernel:
    """`row` float32 from element `start` on of each row of x to y; rows of x are `from` elements apart, of y `to`."""

    def emit(e: Emitter, a: Arguments) -> None:
        token = a["@tokens"]
        x = e.at(a["x"], e.times(e.add(e.mul(token, a["from"]), a["start"]), 4))
        y = e.at(a["y"], e.times(e.mul(token, a["to"]), 4))
        each_lane(e, a["row"], lambda kind, i: e.write(e.read(kind, x, e.times(i, 4)), y, e.times(i, 4)))

    return Kernel(
        "ggufc_copy_rows",
        (Buffer("x", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("row"), Scalar("start"), Scalar("from"), Scalar("to")),
        (("tokens", 1),),
        emit,
    )


def positions() -> Kernel:
    """y[t] = position + t. position: int32 (1,); y: int32 (tokens,)."""

    def emit(e: Emitter, a: Arguments) -> None:
        first, count = e.read(I32, a["position"]), a["tokens"]
        e.each(0, count, 1, lambda t: e.write(e.add(first, e.trunc(t, I32)), a["y"], e.times(t, 4)))

    return Kernel(
        "ggufc_positions",
        (Buffer("position", "i32"), Buffer("y", "i32", output=True)),
        (Scalar("tokens"), Scalar("groups")),
        (("groups", 1),),
        emit,
    )


def mean_rows() -> Kernel:
    """The mean of all rows. x: float32 (tokens, row); y: float32 (row,)."""

    def emit(e: Emitter, a: Arguments) -> None:
        first = e.times(a["@row"], _COLUMNS)
        x, y = e.at(a["x"], e.times(first, 4)), e.at(a["y"], e.times(first, 4))
        stride, count = e.times(a["row"], 4), e.sitofp(a["tokens"], F32)

        def column(kind: ir.Type, i: Value) -> None:
            def add(t: Value, total: Value) -> list[Value]:
                return [e.fadd(total, e.read(kind, x, e.add(e.mul(t, stride), e.times(i, 4))))]

            (total,) = e.loop(0, a["tokens"], 1, [const(kind, 0.0)], add)
            e.write(e.fdiv(total, like(e, count, kind)), y, e.times(i, 4))

        each_lane(e, e.minimum(e.sub(a["row"], first), _COLUMNS), column)

    return Kernel(
        "ggufc_mean_rows",
        (Buffer("x", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("row")),
        (("row", _COLUMNS),),
        emit,
    )


def short_conv(has_state: bool) -> Kernel:
    """y[t, c] = sum over k of w[c, k] x[t - taps + 1 + k, c]; rows before the first are the state's, or zeros.

    x, y: float32 (tokens, row); state: float32 (taps - 1, row); w: float32 (row, taps).
    """

    def emit(e: Emitter, a: Arguments) -> None:
        token, row, taps = a["@tokens"], a["row"], a["taps"]
        before = e.sub(taps, e.index(1))

        def column(c: Value) -> None:
            def add(k: Value, total: Value) -> list[Value]:
                at = e.sub(e.add(token, k), before)  # the row of x, or of what was before
                is_new = e.icmp_signed(">=", at, e.index(0))
                held = e.select(is_new, at, e.add(at, before))
                source = e.select(is_new, a["x"], a["state"]) if has_state else a["x"]
                held = held if has_state else e.maximum(at, 0)
                value = e.read(F32, source, e.times(e.add(e.mul(held, row), c), 4))
                value = value if has_state else e.select(is_new, value, const(F32, 0.0))
                weight = e.read(F32, a["w"], e.times(e.add(e.mul(c, taps), k), 4))
                return [e.fadd(total, e.fmul(value, weight))]

            (total,) = e.loop(0, taps, 1, [const(F32, 0.0)], add)
            e.write(total, a["y"], e.times(e.add(e.mul(token, row), c), 4))

        e.each(0, row, 1, column)

    state = (Buffer("state", "f32"),) if has_state else ()
    return Kernel(
        f"ggufc_short_conv{'_state' if has_state else ''}",
        (Buffer("x", "f32"), *state, Buffer("w", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("row"), Scalar("taps")),
        (("tokens", 1),),
        emit,
    )


def conv_update() -> Kernel:
    """The last `rows` rows of state and x together become the state. x: float32 (tokens, row); state: (rows, row)."""

    def emit(e: Emitter, a: Arguments) -> None:
        first = e.times(a["@row"], _COLUMNS)
        count = e.minimum(e.sub(a["row"], first), _COLUMNS)

        def move(r: Value) -> None:  # upwards, so that nothing is overwritten that is still wanted
            at = e.sub(e.add(r, a["tokens"]), a["rows"])
            is_new = e.icmp_signed(">=", at, e.index(0))
            source = e.select(is_new, a["x"], a["state"])
            held = e.select(is_new, at, e.add(r, a["tokens"]))
            x = e.at(source, e.times(e.add(e.mul(held, a["row"]), first), 4))
            y = e.at(a["state"], e.times(e.add(e.mul(r, a["row"]), first), 4))
            each_lane(e, count, lambda kind, i: e.write(e.read(kind, x, e.times(i, 4)), y, e.times(i, 4)))

        e.each(0, a["rows"], 1, move)

    return Kernel(
        "ggufc_conv_update",
        (Buffer("x", "f32"), Buffer("state", "f32", output=True)),
        (Scalar("tokens"), Scalar("rows"), Scalar("row")),
        (("row", _COLUMNS),),
        emit,
    )
