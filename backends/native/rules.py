"""Which kernels do the work of which operation, and with which numbers: the same for every home of the kernels.

A rule gets the operation's operands in the graph's order, its attributes, and the shape of its result, in which a size
that only the running program knows means nothing. It calls `Site.dispatch` as often as it needs and returns the
operation's result. What an operand is, the home knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeVar

import numpy as np

from ...graph.rope import frequencies
from ...graph.types import TensorType
from .kernel import Kernel
from .kernels.activation_bytes import activation_byte_width, quantize_bytes
from .kernels.activations import activation_width, quantize_rows
from .kernels.argmax import PARTS, argmax_merge, argmax_parts
from .kernels.attention import (
    attention_many,
    attention_merge,
    attention_one,
    attention_spans,
    shared_heads,
    spans_of_keys,
)
from .kernels.elementwise import by_row, elementwise, gain_by_one, gated
from .kernels.embed import embed
from .kernels.experts import expert_gain, expert_linear, mix, route, top_k
from .kernels.kv_update import kv_update
from .kernels.linear_many import linear_many, pairs_per_group
from .kernels.linear_many_bytes import linear_many_bytes
from .kernels.linear_one import glu_one, linear_one, rows_per_group
from .kernels.norm import layer_norm, rms_norm
from .kernels.rope import rope
from .kernels.rotation import rotation
from .kernels.rows import conv_update, copy_rows, positions, short_conv
from .kernels.types import QUANT_TYPES

V = TypeVar("V")
"""An operand in some home: memory, or a value of another IR."""
Number = Any
"""A number, or in some home what stands for one that the running program knows."""


class Site(Protocol[V]):
    """The place of one operation in the program that a home makes of a graph."""

    def shape(self, value: V) -> Sequence[int]:
        """The sizes of an operand; those that only the running program knows mean nothing, and are not 1. A quantized
        weight's last one may count bytes."""
        ...

    def size(self, value: V, axis: int) -> Number:
        """One size of an operand."""
        ...

    def dtype(self, value: V) -> str:
        """The element type of a value."""
        ...

    def times(self, number: Number, factor: int) -> Number:
        """The product of a number and a constant."""
        ...

    def rounds_to_bytes(self, type_name: str) -> bool:
        """Whether products of many rows with weights of a type round their activations to 8 bits."""
        ...

    def constant(self, array: np.ndarray) -> V:
        """Numbers that are the same in every run."""
        ...

    def once(self, owner: V | None, key: object, make: Callable[[], V]) -> V:
        """What `make` gives, made once for all operations that ask for it by the same owner, as long as that one is
        read; without an owner, for the whole run."""
        ...

    def dispatch(
        self, kernel: Kernel, operands: Mapping[str, V], scalars: Mapping[str, Number], result: TensorType | None = None
    ) -> V:
        """Calls a kernel with operands by buffer name. Gives its output: the operand that it updates in place, or new
        memory of the type `result`, by default the operation's."""
        ...


Rule = Callable[[Site[V], list[V], Mapping[str, Any], Sequence[int]], V]


def _embed(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    tokens, table = operands
    scalars = {"tokens": at.size(tokens, 0), "rows": at.shape(table)[0], "cols": result[1]}
    return at.dispatch(embed(attributes["type_name"]), {"ids": tokens, "w": table}, scalars)


def _linear(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, weight = operands
    return _product(at, x, None, weight, attributes)


def _norm_linear(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, norm, weight = operands
    return _product(at, x, norm, weight, attributes)


def _product(
    at: Site[V], x: V, norm: V | None, weight: V, attributes: Mapping[str, Any], result: TensorType | None = None
) -> V:
    """The product of the rows of x, or of their norms.

    What gives heads (queries, keys or values) never takes bytes: a rounding of those is in every later token, and makes
    more than half of the distance, while they are the smaller part of the work.
    """
    type_name, rows, cols = attributes["type_name"], at.shape(weight)[0], prod(at.shape(x)[1:])
    if norm is not None and type_name not in QUANT_TYPES:
        x, norm = _normed(at, x, norm, attributes["eps"], cols), None
    given, scalars = {"w": weight, "x": x}, {"rows": rows, "cols": cols}
    fuses, eps = ({"norm": norm}, {"eps": attributes["eps"]}) if norm is not None else ({}, {})
    if at.shape(x)[0] == 1:
        kernel = linear_one(type_name, rows_per_group(rows), bool(fuses))
        return at.dispatch(kernel, given | fuses, scalars | eps, result)
    scalars["tokens"] = at.size(x, 0)
    heads = len(attributes["shape"]) > 1
    rounding = BYTES if at.rounds_to_bytes(type_name) and not heads else WORDS
    if type_name in QUANT_TYPES:
        given["x"] = _quantized(at, x, norm, scalars | eps, rounding)
    return at.dispatch(rounding.product(type_name, pairs_per_group(rows)), given, scalars, result)


def _normed(at: Site[V], x: V, norm: V, eps: float, cols: int) -> V:
    """The norm of x, for products that can't take it themselves."""

    def make() -> V:
        scalars = {"rows": at.size(x, 0), "row": cols, "eps": eps}
        shape = (1 if at.shape(x)[0] == 1 else "T", cols)
        return at.dispatch(rms_norm(True), {"x": x, "w": norm}, scalars, TensorType("f32", shape))

    return at.once(x, ("rms_norm", norm, eps), make)


@dataclass(frozen=True)
class Rounding:
    """How products of many rows round their activations: the kernel, by whether it takes the norm; how many i16 it
    makes of so many columns; and the product, by type and pairs of strips."""

    quantize: Callable[[bool], Kernel]
    width: Callable[[int], int]
    product: Callable[[str, int], Kernel]


WORDS = Rounding(quantize_rows, activation_width, linear_many)
BYTES = Rounding(quantize_bytes, activation_byte_width, linear_many_bytes)


def _quantized(at: Site[V], x: V, norm: V | None, scalars: Mapping[str, Number], rounding: Rounding) -> V:
    """The integers of x, or of its norm."""
    given = {"x": x} if norm is None else {"x": x, "w": norm}
    wide = TensorType("i16", ("T", rounding.width(scalars["cols"])))
    make = functools.partial(at.dispatch, rounding.quantize(norm is not None), given, scalars, wide)
    return at.once(x, (rounding, norm, scalars.get("eps")), make)


def _glu(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, *norm, gate, up = operands
    type_name, act, rows, cols = attributes["type_name"], attributes["act"], at.shape(gate)[0], prod(at.shape(x)[1:])
    if at.shape(x)[0] == 1 and type_name in QUANT_TYPES:
        given = {"gate": gate, "up": up, "x": x} | dict(zip(["norm"], norm, strict=False))
        scalars = {"rows": rows, "cols": cols, "eps": attributes.get("eps")}
        return at.dispatch(glu_one(type_name, act, rows_per_group(rows), bool(norm)), given, scalars)
    wide = TensorType("f32", (1 if at.shape(x)[0] == 1 else "T", rows))
    gate, up = (_product(at, x, norm[0] if norm else None, w, attributes, wide) for w in (gate, up))
    return at.dispatch(gated(act), {"a": gate, "b": up}, {"count": at.times(at.size(x, 0), rows)})


def _norm_add(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    a, x, norm = operands
    *inner, row = at.shape(a)[1:]
    scalars = {"rows": at.times(at.size(a, 0), prod(inner)), "row": row, "eps": attributes["eps"]}
    return at.dispatch(rms_norm(True, adds=True), {"x": a, "w": norm, "r": x}, scalars)


def _bias(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, weight = operands
    return at.dispatch(by_row("add"), {"x": x, "w": weight}, {"rows": at.size(x, 0), "row": prod(at.shape(x)[1:])})


def _gain(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, weight = operands
    inner, ending = at.shape(x)[1:], prod(at.shape(weight))
    if ending == 1:
        return at.dispatch(gain_by_one(), {"x": x, "w": weight}, {"rows": at.size(x, 0), "row": prod(inner)})
    rows = at.times(at.size(x, 0), prod(inner) // ending)
    return at.dispatch(by_row("mul"), {"x": x, "w": weight}, {"rows": rows, "row": ending})


def _norm(
    kernel: Callable[[int], Kernel],
    at: Site[V],
    operands: list[V],
    attributes: Mapping[str, Any],
    result: Sequence[int],
) -> V:
    x, *weights = operands
    *inner, row = at.shape(x)[1:]
    scalars = {"rows": at.times(at.size(x, 0), prod(inner)), "row": row, "eps": attributes["eps"]}
    return at.dispatch(kernel(len(weights)), {"x": x} | dict(zip("wb", weights, strict=False)), scalars)


def _positions(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    tokens, *position = operands
    scalars = {"tokens": at.size(tokens, 0), "groups": 1}
    return at.dispatch(positions(), {"position": _position(at, position)}, scalars)


def _position(at: Site[V], given: list[V]) -> V:
    """Where the tokens begin: at 0 in a graph without positions."""
    return given[0] if given else at.constant(np.zeros(1, np.int32))


def _rope(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, position, others = _apart(at, operands)
    return _rotated(at, x, None, position, others, attributes)


def _norm_rope(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, position, (norm, *others) = _apart(at, operands)
    return _rotated(at, x, norm, position, others, attributes)


def _apart(at: Site[V], operands: list[V]) -> tuple[V, V, list[V]]:
    """What is rotated, the position, and weights."""
    x, *others = operands
    given = [v for v in others if at.dtype(v) == "i32"]
    return x, _position(at, given), [v for v in others if at.dtype(v) != "i32"]


def _rotated(at: Site[V], x: V, norm: V | None, position: V, factors: list[V], attributes: Mapping[str, Any]) -> V:
    _, heads, head_dim = at.shape(x)
    tokens, half = at.size(x, 0), attributes["dims"] // 2
    turning = tuple(attributes[n] for n in ("base", "dims", "scale", "yarn"))

    def angles() -> V:
        given = {"turns": at.constant(frequencies(*turning)), "position": position}
        scalars = {"tokens": tokens, "half": half, "magnitude": attributes["magnitude"]}
        table = TensorType("f32", (1 if at.shape(x)[0] == 1 else "T", 2, half))
        return at.dispatch(
            rotation(bool(factors)), given | dict(zip(["factors"], factors, strict=False)), scalars, table
        )

    table = at.once(None, ("rotation", turning, attributes["magnitude"], *factors), angles)
    given, scalars = {"x": x, "table": table}, {"tokens": tokens, "heads": heads, "head_dim": head_dim, "half": half}
    if norm is not None:
        given, scalars = given | {"w": norm}, scalars | {"eps": attributes["eps"]}
    return at.dispatch(rope(attributes["style"], norm is not None), given, scalars)


def _kv_update(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    cache, x, position = operands
    scalars = {"tokens": at.size(x, 0), "rows": at.size(cache, 0), "row": prod(at.shape(x)[1:])}
    return at.dispatch(kv_update(at.dtype(cache)), {"cache": cache, "x": x, "position": position}, scalars)


def attention(
    at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int], by_spans: bool = True
) -> V:
    """Attention; a token alone may share its keys among work groups, which changes the last bits."""
    q, k, v, *position = operands
    tokens, heads, head_dim = at.shape(q)
    kv_heads, value_dim = at.shape(v)[1], result[-1]
    given = {"q": q, "k": k, "v": v, "position": _position(at, position)}
    scalars = {"tokens": at.size(q, 0), "rows": at.size(k, 0), "heads": heads, "kv_heads": kv_heads} | dict(attributes)
    shape = (at.dtype(k), head_dim, value_dim)
    if tokens != 1:
        return at.dispatch(attention_many(*shape), given, scalars)
    spans = spans_of_keys(heads, kv_heads) if by_spans else 1
    share = shared_heads(heads, kv_heads, spans)
    if spans == 1:
        return at.dispatch(attention_one(*shape, share), given, scalars)
    parts = TensorType("f32", (spans, heads, value_dim + 2))
    part = at.dispatch(attention_spans(*shape, share), given, scalars | {"spans": spans}, parts)
    return at.dispatch(attention_merge(), {"part": part}, {"heads": heads, "spans": spans, "value_dim": value_dim})


def _argmax(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    (x,) = operands
    scalars = {"tokens": at.size(x, 0), "count": at.shape(x)[1], "parts": PARTS}
    parts = TensorType("f32", (1 if at.shape(x)[0] == 1 else "T", PARTS, 2))
    return at.dispatch(
        argmax_merge(), {"part": at.dispatch(argmax_parts(), {"x": x}, scalars, parts)}, {"tokens": scalars["tokens"]}
    )


def _short_conv(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, *state, kernel = operands
    row, taps = at.shape(kernel)
    given = {"x": x, "w": kernel} | dict(zip(["state"], state, strict=False))
    return at.dispatch(short_conv(bool(state)), given, {"tokens": at.size(x, 0), "row": row, "taps": taps})


def _conv_update(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    state, x = operands
    rows, row = at.shape(state)
    scalars = {"tokens": at.size(x, 0), "rows": rows, "row": row}
    return at.dispatch(conv_update(), {"x": x, "state": state}, scalars)


def _top_k(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    (x,) = operands
    scalars = {"tokens": at.size(x, 0), "count": at.shape(x)[1], "k": attributes["k"]}
    return at.dispatch(top_k(), {"x": x}, scalars)


def _route(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, experts = operands
    scalars = {"tokens": at.size(x, 0), "count": at.shape(x)[1], "k": at.shape(experts)[1], "by": attributes["by"]}
    return at.dispatch(route(bool(attributes["normalize"])), {"x": x, "experts": experts}, scalars)


def _expert_linear(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    return expert_linear_by(expert_linear, at, operands, attributes)


def expert_linear_by(kernel: Callable[..., Kernel], at: Site[V], operands: list[V], attributes: Mapping[str, Any]) -> V:
    """The product by the kernel that `kernel(type name)` gives."""
    x, experts, weight = operands
    k, cols = at.shape(experts)[1], at.shape(x)[-1]
    share = k if len(at.shape(x)) == 2 else 1
    scalars = {"pairs": at.times(at.size(x, 0), k), "rows": at.shape(weight)[1], "cols": cols, "share": share}
    return at.dispatch(kernel(attributes["type_name"]), {"w": weight, "x": x, "experts": experts}, scalars)


def _expert_gain(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, experts, weight = operands
    k, *row = at.shape(x)[1:]
    scalars = {"pairs": at.times(at.size(x, 0), k), "row": prod(row)}
    return at.dispatch(expert_gain(), {"x": x, "experts": experts, "w": weight}, scalars)


def _mix(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    x, shares = operands
    k, row = at.shape(x)[1:]
    return at.dispatch(mix(), {"x": x, "shares": shares}, {"tokens": at.size(x, 0), "k": k, "row": row})


def _part(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    return copied(at, operands[0], attributes["start"], prod(result[1:]))


def copied(at: Site[V], x: V, start: Number, taken: int, axes: int = 1) -> V:
    """The operation's result: `taken` elements from `start` of whatever stands behind the first `axes` axes of x."""
    shape = at.shape(x)
    rows = at.times(at.size(x, 0), prod(shape[1:axes]))
    scalars = {"tokens": rows, "row": taken, "start": start, "from": prod(shape[axes:]), "to": taken}
    return at.dispatch(copy_rows(), {"x": x}, scalars)


def _half(at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    return copied(at, operands[0], result[-1] * attributes["number"], result[-1], len(result) - 1)


def _elementwise(name: str, at: Site[V], operands: list[V], attributes: Mapping[str, Any], result: Sequence[int]) -> V:
    scalars = {"count": at.times(at.size(operands[0], 0), prod(at.shape(operands[0])[1:]))} | dict(attributes)
    return at.dispatch(elementwise(name), dict(zip("ab", operands, strict=False)), scalars)


_ELEMENTWISE = ("add", "mul", "gelu", "silu", "relu", "tanh", "scale", "softcap")
RULES: dict[str, Rule[Any]] = {
    "embed": _embed,
    "linear": _linear,
    "norm_linear": _norm_linear,
    "glu": _glu,
    "norm_glu": _glu,
    "norm_add": _norm_add,
    "norm_rope": _norm_rope,
    "bias": _bias,
    "rms_norm": functools.partial(_norm, lambda weights: rms_norm(weights > 0)),
    "layer_norm": functools.partial(_norm, layer_norm),
    "gain": _gain,
    "part": _part,
    "half": _half,
    "positions": _positions,
    "rope": _rope,
    "kv_update": _kv_update,
    "attention": attention,
    "short_conv": _short_conv,
    "conv_update": _conv_update,
    "argmax": _argmax,
    "top_k": _top_k,
    "route": _route,
    "expert_linear": _expert_linear,
    "expert_gain": _expert_gain,
    "mix": _mix,
    **{name: functools.partial(_elementwise, name) for name in _ELEMENTWISE},
}
