"""Rotary position embeddings by tables of cosines and sines, which all heads and layers of a call share."""

from __future__ import annotations

from llvmlite import ir

from ..emit import F32, Emitter, Value
from ..kernel import Arguments, Buffer, Kernel, Scalar
from .elementwise import each_lane


def rope(style: str) -> Kernel:
    """Rotates the first 2 * half elements of each head: "neox" pairs i with i + half, "norm" pairs 2i with 2i + 1.

    x, y: float32 (tokens, heads, head_dim); table: float32 (tokens, 2, half), cosines and sines of each token's angles.
    """
    rotate = {"neox": _rotate_halves, "norm": _rotate_neighbours}[style]

    def emit(e: Emitter, a: Arguments) -> None:
        token, heads, head_dim, half = a["@tokens"], a["heads"], a["head_dim"], a["half"]
        cos = e.at(a["table"], e.times(e.mul(token, half), 8))
        sin = e.at(cos, e.times(half, 4))

        def head(h: Value) -> None:
            start = e.times(e.mul(e.add(e.mul(token, heads), h), head_dim), 4)
            x, y = e.at(a["x"], start), e.at(a["y"], start)

            def pairs(kind: ir.Type, i: Value) -> None:
                at = e.times(i, 4)
                rotate(e, kind, x, y, i, half, e.read(kind, cos, at), e.read(kind, sin, at))

            each_lane(e, half, pairs)
            turned = e.times(half, 2)
            e.each(turned, head_dim, 1, lambda i: e.write(e.read(F32, x, e.times(i, 4)), y, e.times(i, 4)))

        e.each(0, heads, 1, head)

    return Kernel(
        f"ggufc_rope_{style}",
        (Buffer("x", "f32"), Buffer("table", "f32"), Buffer("y", "f32", output=True)),
        (Scalar("tokens"), Scalar("heads"), Scalar("head_dim"), Scalar("half")),
        (("tokens", 1),),
        emit,
    )


def _turned(e: Emitter, a: Value, b: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    return e.fsub(e.fmul(a, cos), e.fmul(b, sin)), e.fadd(e.fmul(a, sin), e.fmul(b, cos))


def _rotate_halves(
    e: Emitter, kind: ir.Type, x: Value, y: Value, i: Value, half: Value, cos: Value, sin: Value
) -> None:
    places = e.times(i, 4), e.times(e.add(i, half), 4)
    a, b = (e.read(kind, x, at) for at in places)
    for value, at in zip(_turned(e, a, b, cos, sin), places, strict=True):
        e.write(value, y, at)


def _rotate_neighbours(
    e: Emitter, kind: ir.Type, x: Value, y: Value, i: Value, half: Value, cos: Value, sin: Value
) -> None:
    at = e.times(i, 8)
    if not isinstance(kind, ir.VectorType):
        for n, value in enumerate(_turned(e, e.read(kind, x, at), e.read(kind, x, e.add(at, e.index(4))), cos, sin)):
            e.write(value, y, e.add(at, e.index(4 * n)))
        return
    lanes = kind.count
    low, high = e.read(kind, x, at), e.read(kind, x, e.add(at, e.index(4 * lanes)))
    a, b = (e.take(low, range(n, 2 * lanes, 2), high) for n in range(2))
    even, odd = _turned(e, a, b, cos, sin)
    e.write(e.take(even, [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)], odd), y, at)
