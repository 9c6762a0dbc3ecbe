"""Rotary position embeddings by tables of cosines and sines, which all heads and layers of a call share."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from ..emit import F32, Emitter, Value
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .elementwise import each_lane, like
from .norm import rms_factor


def rope(style: str, normed: bool = False) -> Kernel:
    """Rotates the first 2 * half elements of each head: "neox" pairs i with i + half, "norm" pairs 2i with 2i + 1.
    If `normed`, of x / sqrt(mean(x^2) + eps) * w over each head.

    x, y: float32 (tokens, heads, head_dim); table: float32 (tokens, 2, half), cosines and sines of each token's
    angles; w, if normed: float32 (head_dim,).
    """
    rotate = {"neox": _rotate_halves, "norm": _rotate_neighbours}[style]

    def emit(e: Emitter, a: Arguments) -> None:
        token, heads, head_dim, half = a["@tokens"], a["heads"], a["head_dim"], a["half"]
        cos = e.at(a["table"], e.times(e.mul(token, half), 8))
        sin = e.at(cos, e.times(half, 4))

        def head(h: Value) -> None:
            start = e.times(e.mul(e.add(e.mul(token, heads), h), head_dim), 4)
            x, y = e.at(a["x"], start), e.at(a["y"], start)

            factor = rms_factor(e, x, head_dim, a["eps"]) if normed else None

            def read(kind: ir.Type, at: Value) -> Value:
                value = e.read(kind, x, at)
                return e.fmul(e.fmul(value, like(e, factor, kind)), e.read(kind, a["w"], at)) if normed else value

            def pairs(kind: ir.Type, i: Value) -> None:
                at = e.times(i, 4)
                rotate(e, kind, read, y, i, half, e.read(kind, cos, at), e.read(kind, sin, at))

            each_lane(e, half, pairs)
            turned = e.times(half, 2)
            e.each(turned, head_dim, 1, lambda i: e.write(read(F32, e.times(i, 4)), y, e.times(i, 4)))

        e.each(0, heads, 1, head)

    weight, eps = ((Buffer("w", "f32"),), (Scalar("eps", "f32"),)) if normed else ((), ())
    return Kernel(
        f"ggufc_{'norm_' if normed else ''}rope_{style}",
        (Buffer("x", "f32"), Buffer("table", "f32"), *weight, Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("heads"), Scalar("head_dim"), Scalar("half"), *eps),
        (("tokens", 1),),
        emit,
    )


_Read = Callable[[ir.Type, Value], Value]
"""The value of a type at so many bytes into a head."""


def _turned(e: Emitter, a: Value, b: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    return e.fsub(e.fmul(a, cos), e.fmul(b, sin)), e.fadd(e.fmul(a, sin), e.fmul(b, cos))


def _rotate_halves(
    e: Emitter, kind: ir.Type, read: _Read, y: Value, i: Value, half: Value, cos: Value, sin: Value
) -> None:
    places = e.times(i, 4), e.times(e.add(i, half), 4)
    a, b = (read(kind, at) for at in places)
    for value, at in zip(_turned(e, a, b, cos, sin), places, strict=True):
        e.write(value, y, at)


def _rotate_neighbours(
    e: Emitter, kind: ir.Type, read: _Read, y: Value, i: Value, half: Value, cos: Value, sin: Value
) -> None:
    at = e.times(i, 8)
    if not isinstance(kind, ir.VectorType):
        for n, value in enumerate(_turned(e, read(kind, at), read(kind, e.add(at, e.index(4))), cos, sin)):
            e.write(value, y, e.add(at, e.index(4 * n)))
        return
    lanes = kind.count
    low, high = read(kind, at), read(kind, e.add(at, e.index(4 * lanes)))
    a, b = (e.take(low, range(n, 2 * lanes, 2), high) for n in range(2))
    even, odd = _turned(e, a, b, cos, sin)
    e.write(e.take(even, [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)], odd), y, at)
