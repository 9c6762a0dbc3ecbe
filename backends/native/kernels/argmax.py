"""The number of the largest element of a row, by parts that work groups share."""

from __future__ import annotations

from ..emit import F32, I32, Emitter, Value, const, vec
from ..kernel import Arguments, Buffer, Kernel, Scalar

PARTS = 32
"""Into how many parts a row is cut."""
_LANES = 16
_LOWEST, _NONE = -float("inf"), -1
"""What any element but -inf is above, and the number of no element."""


def argmax_parts() -> Kernel:
    """The largest element of each part of a row, and its number.

    x: float32 (tokens, count); part: float32 (tokens, PARTS, 2): the element, and the bits of its int32 number.
    NaN counts as infinity, which no element should be: a part with either has the number -1. Of equals the
    first counts.
    """

    def emit(e: Emitter, a: Arguments) -> None:
        token, count = a["@tokens"], a["count"]
        row = e.at(a["x"], e.times(e.mul(token, count), 4))
        size = e.times(e.over(e.add(count, e.index(PARTS * _LANES - 1)), PARTS * _LANES), _LANES)
        first = e.mul(a["@parts"], size)
        last = e.maximum(first, e.minimum(e.add(first, size), count))
        whole = e.add(first, e.times(e.over(e.sub(last, first), _LANES), _LANES))
        real, numbers = vec(F32, _LANES), vec(I32, _LANES)

        def checked(value: Value, number: Value) -> tuple[Value, Value]:
            most = const(value.type, float("inf"))
            is_finite = e.fcmp_ordered("<", value, most)  # or -inf, as a token may be ruled out
            return e.select(is_finite, value, most), e.select(is_finite, number, const(number.type, _NONE))

        def lanes(i: Value, most: Value, at: Value) -> list[Value]:
            here = e.add(e.splat(e.trunc(i, I32), _LANES), const(numbers, range(_LANES)))
            x, here = checked(e.read(real, row, e.times(i, 4)), here)
            wins = e.fcmp_ordered(">", x, most)
            return [e.select(wins, x, most), e.select(wins, here, at)]

        start = [const(real, _LOWEST), const(numbers, 2**31 - 1)]
        most, at = e.loop(first, whole, _LANES, start, lanes)

        def better(value: Value, number: Value, most: Value, at: Value) -> list[Value]:
            is_tie = e.and_(e.fcmp_ordered("==", value, most), e.icmp_signed("<", number, at))
            wins = e.or_(e.fcmp_ordered(">", value, most), is_tie)
            return [e.select(wins, value, most), e.select(wins, number, at)]

        best = [const(F32, _LOWEST), const(I32, 2**31 - 1)]
        for lane in range(_LANES):
            best = better(*(e.extract_element(v, const(I32, lane)) for v in (most, at)), *best)

        def one(i: Value, most: Value, at: Value) -> list[Value]:
            return better(*checked(e.read(F32, row, e.times(i, 4)), e.trunc(i, I32)), most, at)

        largest, number = e.loop(whole, last, 1, best, one)
        into = e.at(a["part"], e.times(e.add(e.times(token, PARTS), a["@parts"]), 8))
        e.write(largest, into)
        e.write(number, into, 4)

    return Kernel(
        "ggufc_argmax_parts",
        (Buffer("x", "f32"), Buffer("part", "f32", output=True)),
        (Scalar("tokens"), Scalar("count"), Scalar("parts")),
        (("tokens", 1), ("parts", 1)),
        emit,
    )


def argmax_merge() -> Kernel:
    """The number of each row's largest element from its parts; -1 where a row has NaN or infinity, or -inf alone.

    part: float32 (tokens, PARTS, 2) of `argmax_parts`; y: int32 (tokens,).
    """

    def emit(e: Emitter, a: Arguments) -> None:
        token = a["@tokens"]
        row = e.at(a["part"], e.times(token, 8 * PARTS))

        def part(i: Value, most: Value, at: Value) -> list[Value]:
            value, number = (e.read(kind, e.at(row, e.times(i, 8)), 4 * n) for n, kind in enumerate((F32, I32)))
            wins = e.fcmp_ordered(">", value, most)  # parts are in order, so equals keep the first
            return [e.select(wins, value, most), e.select(wins, number, at)]

        _, number = e.loop(0, PARTS, 1, [const(F32, _LOWEST), const(I32, _NONE)], part)
        e.write(number, a["y"], e.times(token, 4))

    return Kernel(
        "ggufc_argmax_merge",
        (Buffer("part", "f32"), Buffer("y", "i32", output=True)),
        (Scalar("tokens"),),
        (("tokens", 1),),
        emit,
    )
