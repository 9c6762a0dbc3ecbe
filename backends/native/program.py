"""A graph as a program of kernels for a known number of tokens: which kernels, on which memory, with which numbers.

Values live in one arena, where a place is free again when its value was last read. Addresses stay relative to their
memory until the executor binds them, for the arena may move when a larger program comes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...frontend.ggml_types import by_name
from ...graph.ir import Graph, Op, Value, Weight
from ...graph.rope import frequencies
from .kernel import Kernel
from .kernels.activations import activation_width, quantize_rows
from .kernels.attention import attention_many, attention_one, shared_heads
from .kernels.elementwise import by_row, elementwise, gain_by_one
from .kernels.embed import embed
from .kernels.experts import expert_gain, expert_linear, mix, route, top_k
from .kernels.kv_update import kv_update
from .kernels.linear_many import linear_many
from .kernels.linear_one import linear_one, rows_per_group
from .kernels.norm import layer_norm, rms_norm
from .kernels.rope import rope
from .kernels.rotation import rotation
from .kernels.rows import conv_update, copy_rows, mean_rows, positions, short_conv
from .kernels.types import QUANT_TYPES

WeightBytes = Callable[[str], np.ndarray]
_ALIGNMENT = 64
_TILE_BYTES = 2 << 20
"""Of dequantized weights in exact mode at a time: about what a core's cache holds."""


@dataclass(frozen=True)
class Place:
    """Memory: `offset` bytes into the arena, into cache number `cache`, or where `array` begins."""

    offset: int = 0
    cache: int | None = None
    array: np.ndarray | None = None

    def at(self, offset: int) -> Place:
        """The place so many bytes further on."""
        return Place(self.offset + offset, self.cache, self.array)


@dataclass(frozen=True)
class CacheRows:
    """The number of rows of a cache, which is known when the program runs."""

    cache: int


Number = int | float | CacheRows


@dataclass(frozen=True)
class Call:
    """One kernel with its operands by buffer name and its numbers by scalar name."""

    kernel: Kernel
    operands: Mapping[str, Place]
    scalars: Mapping[str, Number]

    def groups(self) -> tuple[int, ...]:
        """Work groups on each axis of the kernel's grid."""
        return self.kernel.groups({n: v for n, v in self.scalars.items() if not isinstance(v, CacheRows)})


@dataclass
class Program:
    """What `lower` makes of a graph.

    Attributes:
        tokens, position: int32 (tokens,) and (1,), to be set before a run, like `angles`.
        calls: the kernels in order.
        logits: the place of the first result, float32 of the shape `logits_shape`.
        arena_bytes: memory that the places need.
    """

    tokens: np.ndarray
    position: np.ndarray
    calls: list[Call] = field(default_factory=list)
    logits: Place = field(default_factory=Place)
    logits_shape: tuple[int, ...] = ()
    arena_bytes: int = 0


def lower(graph: Graph, tokens: int, weights: WeightBytes, exact: bool) -> Program:
    """The program of a graph for calls of `tokens` tokens.

    Args:
        graph: an entry point.
        tokens: the value of its symbol T.
        weights: gives the raw bytes of a tensor.
        exact: multiply with dequantized float32 weights instead of quantizing activations.
    """
    lowering = _Lowering(graph, tokens, weights, exact)
    for n, op in enumerate(graph.ops):
        RULES[op.name](lowering, op)
        lowering.release(n)
    program, result = lowering.program, graph.results[0]
    program.logits, program.logits_shape = lowering.places[result], lowering.shape(result)
    program.arena_bytes = lowering.arena.size
    return program


class _Arena:
    """Hands out places so that those in use at one time never overlap: the first gap that is wide enough."""

    def __init__(self) -> None:
        self.size = 0
        self._taken: list[tuple[int, int]] = []  # (begin, end), in order

    def take(self, nbytes: int) -> Place:
        begin = 0
        for low, high in self._taken:
            if low - begin >= nbytes:
                break
            begin = high
        end = begin + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._taken = sorted([*self._taken, (begin, end)])
        self.size = max(self.size, end)
        return Place(begin)

    def give_back(self, place: Place) -> None:
        self._taken = [t for t in self._taken if t[0] != place.offset]


class _Lowering:
    """The state of `lower`: where values are, and what to give back when they were last read."""

    def __init__(self, graph: Graph, tokens: int, weights: WeightBytes, exact: bool) -> None:
        self.tokens, self.weights, self.exact = tokens, weights, exact
        self.arena = _Arena()
        self.program = Program(np.zeros(tokens, np.int32), np.zeros(1, np.int32))
        arguments = {"tokens": self.program.tokens, "position": self.program.position}
        self.caches = {cache: n for n, cache in enumerate(graph.caches())}
        self.places: dict[Value, Place] = {
            a: Place(array=arguments[a.name]) for a in graph.arguments if a.name in arguments
        } | {cache: Place(cache=n) for cache, n in self.caches.items()}
        last_read = {value: n for n, op in enumerate(graph.ops) for value in (op.result, *op.values)}
        self._dying: dict[int, list[Value]] = {}
        for value, n in last_read.items():
            if value not in graph.results:
                self._dying.setdefault(n, []).append(value)
        self._owned: dict[object, list[Place]] = {}  # what goes with a value
        self._quantized: dict[Value, Place] = {}
        self._rotations: dict[object, tuple[Place, Place]] = {}

    # Shapes

    def shape(self, value: Value) -> tuple[int, ...]:
        return tuple(self.tokens if d == "T" else int(d) for d in value.type.shape)

    def rows(self, value: Value) -> int:
        return self.shape(value)[0]

    def cache_rows(self, value: Value) -> CacheRows | int:
        """The rows of keys or values: of a cache, or of the call."""
        return CacheRows(self.caches[value]) if value in self.caches else self.rows(value)

    # Memory

    def take(self, nbytes: int, owner: object = None) -> Place:
        """Memory until its owner is last read; without one, until the operation is done."""
        place = self.arena.take(nbytes)
        self._owned.setdefault(owner, []).append(place)
        return place

    def result(self, op: Op) -> Place:
        """New memory for the result of an operation."""
        place = self.places[op.result] = self.take(4 * math.prod(self.shape(op.result)), op.result)
        return place

    def release(self, n: int) -> None:
        """Gives back what is not needed after operation number n."""
        for owner in (None, *self._dying.get(n, ())):
            for place in self._owned.pop(owner, ()):
                self.arena.give_back(place)

    def weight(self, weight: Weight) -> Place:
        return Place(array=self.weights(weight.name))

    def quantized(self, x: Value) -> Place:
        """The activations as integers, quantized once for all that read them."""
        if x not in self._quantized:
            cols = x.type.row_size
            self._quantized[x] = self.take(2 * self.rows(x) * activation_width(cols), x)
            operands = {"x": self.places[x], "q": self._quantized[x]}
            self.call(quantize_rows(), operands, {"tokens": self.rows(x), "cols": cols})
        return self._quantized[x]

    def rotation(self, op: Op) -> tuple[Place, Place]:
        """The tables of cosines and sines that a rope reads, made once for all that turn alike."""
        turning = tuple(_number(op, name) for name in ("base", "dims", "scale", "yarn"))
        magnitude = _number(op, "magnitude")
        key = (turning, magnitude, op.weights)
        if key not in self._rotations:
            half = turning[1] // 2
            tables = self.take(2 * 4 * self.tokens * half, "for the whole call")
            cos, sin = tables, tables.at(4 * self.tokens * half)
            operands = {"turns": Place(array=frequencies(*turning)), "position": Place(array=self.program.position)}
            operands |= {"cos": cos, "sin": sin}
            for factors in op.weights:
                operands["factors"] = self.weight(factors)
            scalars = {"tokens": self.tokens, "half": half, "magnitude": magnitude}
            self.call(rotation(bool(op.weights)), operands, scalars)
            self._rotations[key] = (cos, sin)
        return self._rotations[key]

    def call(self, kernel: Kernel, operands: Mapping[str, Place], scalars: Mapping[str, Number]) -> None:
        self.program.calls.append(Call(kernel, operands, scalars))


def _number(op: Op, name: str) -> Any:
    return op.attribute(name)


def _embed(at: _Lowering, op: Op) -> None:
    table = op.weights[0]
    rows, cols = (int(d) for d in table.type.shape)
    operands = {"ids": at.places[op.values[0]], "w": at.weight(table), "y": at.result(op)}
    at.call(embed(table.type.dtype), operands, {"tokens": at.rows(op.result), "rows": rows, "cols": cols})


def _linear(at: _Lowering, op: Op) -> None:
    if at.exact:
        _linear_exact(at, op)
        return
    (x,), (weight,) = op.values, op.weights
    type_name = weight.type.dtype
    rows, cols = (int(d) for d in weight.type.shape)
    operands = {"w": at.weight(weight), "x": at.places[x], "y": at.result(op)}
    if at.rows(x) == 1:
        at.call(linear_one(type_name, rows_per_group(rows)), operands, {"rows": rows, "cols": cols})
        return
    if type_name in QUANT_TYPES:
        operands["x"] = at.quantized(x)
    at.call(linear_many(type_name), operands, {"tokens": at.rows(x), "rows": rows, "cols": cols})


def _linear_exact(at: _Lowering, op: Op) -> None:
    """Tile by tile of dequantized rows, with one kernel for any number of tokens, so that it never changes a result."""
    (x,), (weight,) = op.values, op.weights
    tokens, type_name = at.rows(x), weight.type.dtype
    rows, cols = (int(d) for d in weight.type.shape)
    source, y = at.weight(weight), at.result(op)
    height = rows if type_name == "f32" else min(rows, max(16, _TILE_BYTES // (4 * cols)))
    is_direct = tokens == 1 or height == rows  # else a tile's columns of y are not side by side
    tile = source if type_name == "f32" else at.take(4 * height * cols)
    part = y if is_direct else at.take(4 * tokens * height)
    ids = Place(array=_counting(height))
    for first in range(0, rows, height):
        count = min(height, rows - first)
        if type_name != "f32":
            raw = source.at(first * by_name(type_name).nbytes(cols))
            at.call(embed(type_name), {"ids": ids, "w": raw, "y": tile}, {"tokens": count, "rows": count, "cols": cols})
        into = y.at(4 * first) if is_direct else part
        scalars = {"tokens": tokens, "rows": count, "cols": cols}
        at.call(linear_many("f32"), {"w": tile, "x": at.places[x], "y": into}, scalars)
        if not is_direct:
            scalars = {"tokens": tokens, "row": count, "start": 0, "from": count, "to": rows}
            at.call(copy_rows(), {"x": part, "y": y.at(4 * first)}, scalars)


@functools.cache
def _counting(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def _bias(at: _Lowering, op: Op) -> None:
    (x,), (weight,) = op.values, op.weights
    operands = {"x": at.places[x], "w": at.weight(weight), "y": at.result(op)}
    at.call(by_row("add"), operands, {"rows": at.rows(x), "row": x.type.row_size})


def _add_row(at: _Lowering, op: Op) -> None:
    (x,), (table,) = op.values, op.weights
    row = x.type.row_size
    operands = {"x": at.places[x], "w": at.weight(table).at(4 * row * _number(op, "row")), "y": at.result(op)}
    at.call(by_row("add"), operands, {"rows": at.rows(x), "row": row})


def _gain(at: _Lowering, op: Op) -> None:
    (x,), (weight,) = op.values, op.weights
    operands = {"x": at.places[x], "w": at.weight(weight), "y": at.result(op)}
    is_one = weight.type.shape == (1,)
    row = x.type.row_size if is_one else math.prod(int(d) for d in weight.type.shape)
    kernel = gain_by_one() if is_one else by_row("mul")
    at.call(kernel, operands, {"rows": math.prod(at.shape(x)) // row, "row": row})


def _rms_norm(at: _Lowering, op: Op) -> None:
    (x,) = op.values
    *rows, row = at.shape(x)
    weight = {"w": at.weight(op.weights[0])} if op.weights else {}
    operands = {"x": at.places[x], "y": at.result(op)} | weight
    at.call(rms_norm(bool(op.weights)), operands, {"rows": math.prod(rows), "row": row, "eps": _number(op, "eps")})


def _layer_norm(at: _Lowering, op: Op) -> None:
    (x,) = op.values
    *rows, row = at.shape(x)
    weights = dict(zip("wb", (at.weight(w) for w in op.weights), strict=False))
    operands = {"x": at.places[x], "y": at.result(op)} | weights
    scalars = {"rows": math.prod(rows), "row": row, "eps": _number(op, "eps")}
    at.call(layer_norm(len(weights)), operands, scalars)


def _positions(at: _Lowering, op: Op) -> None:
    operands = {"position": Place(array=at.program.position), "y": at.result(op)}
    at.call(positions(), operands, {"tokens": at.rows(op.result), "groups": 1})


def _rope(at: _Lowering, op: Op) -> None:
    x = op.values[0]
    tokens, heads, head_dim = at.shape(x)
    half = _number(op, "dims") // 2
    cos, sin = at.rotation(op)
    operands = {"x": at.places[x], "cos": cos, "sin": sin, "y": at.result(op)}
    scalars = {"tokens": tokens, "heads": heads, "head_dim": head_dim, "half": half}
    at.call(rope(_number(op, "style")), operands, scalars)


def _kv_update(at: _Lowering, op: Op) -> None:
    cache, x, position = op.values
    at.places[op.result] = at.places[cache]
    at.caches[op.result] = at.caches[cache]
    operands = {"cache": at.places[cache], "x": at.places[x], "position": at.places[position]}
    scalars = {"tokens": at.rows(x), "rows": at.cache_rows(cache), "row": x.type.row_size}
    at.call(kv_update(cache.type.dtype), operands, scalars)


def _attention(at: _Lowering, op: Op) -> None:
    q, k, v = op.values[:3]
    tokens, heads, head_dim = at.shape(q)
    kv_heads, value_dim = (int(d) for d in v.type.shape[1:])
    position = Place(array=at.program.position)  # stays 0 where the graph has none
    operands = {"q": at.places[q], "k": at.places[k], "v": at.places[v], "position": position, "out": at.result(op)}
    attributes = {name: _number(op, name) for name in ("window", "scale", "cap", "ahead")}
    scalars: dict[str, Number] = {"rows": at.cache_rows(k), "heads": heads, "kv_heads": kv_heads} | attributes
    shape = (k.type.dtype, head_dim, value_dim)
    if tokens == 1:
        at.call(attention_one(*shape, shared_heads(heads, kv_heads)), operands, scalars)
    else:
        at.call(attention_many(*shape), operands, scalars | {"tokens": tokens})


def _short_conv(at: _Lowering, op: Op) -> None:
    (x, *state), (kernel,) = op.values, op.weights
    row, taps = (int(d) for d in kernel.type.shape)
    operands = {"x": at.places[x], "w": at.weight(kernel), "y": at.result(op)}
    if state:
        operands["state"] = at.places[state[0]]
    at.call(short_conv(bool(state)), operands, {"tokens": at.rows(x), "row": row, "taps": taps})


def _conv_update(at: _Lowering, op: Op) -> None:
    state, x = op.values
    at.places[op.result] = at.places[state]
    operands = {"state": at.places[state], "x": at.places[x]}
    at.call(conv_update(), operands, {"tokens": at.rows(x), "rows": at.rows(state), "row": x.type.row_size})


def _top_k(at: _Lowering, op: Op) -> None:
    (x,) = op.values
    tokens, count = at.shape(x)
    operands = {"x": at.places[x], "y": at.result(op)}
    at.call(top_k(), operands, {"tokens": tokens, "count": count, "k": _number(op, "k")})


def _route(at: _Lowering, op: Op) -> None:
    x, experts = op.values
    (tokens, k), (_, count) = at.shape(experts), at.shape(x)
    operands = {"x": at.places[x], "experts": at.places[experts], "y": at.result(op)}
    scalars = {"tokens": tokens, "count": count, "k": k, "by": _number(op, "by")}
    at.call(route(bool(_number(op, "normalize"))), operands, scalars)


def _expert_linear(at: _Lowering, op: Op) -> None:
    (x, experts), (weight,) = op.values, op.weights
    _, rows, cols = (int(d) for d in weight.type.shape)
    pairs = math.prod(at.shape(experts))
    operands = {"w": at.weight(weight), "x": at.places[x], "experts": at.places[experts], "y": at.result(op)}
    share = pairs // (math.prod(at.shape(x)) // cols)
    kernel = expert_linear(weight.type.dtype, cols if at.exact else 0)
    at.call(kernel, operands, {"pairs": pairs, "rows": rows, "cols": cols, "share": share})


def _expert_gain(at: _Lowering, op: Op) -> None:
    (x, experts), (weight,) = op.values, op.weights
    operands = {"x": at.places[x], "experts": at.places[experts], "w": at.weight(weight), "y": at.result(op)}
    tokens, k, *row = at.shape(x)
    at.call(expert_gain(), operands, {"pairs": tokens * k, "row": math.prod(row)})


def _mix(at: _Lowering, op: Op) -> None:
    x, shares = op.values
    tokens, k, row = at.shape(x)
    operands = {"x": at.places[x], "shares": at.places[shares], "y": at.result(op)}
    at.call(mix(), operands, {"tokens": tokens, "k": k, "row": row})


def _copy(at: _Lowering, op: Op, start: int, axes: int = 1) -> None:
    """The result's rows begin at element `start` of the operand's, both having the first `axes` axes alike."""
    (x,) = op.values
    sizes = [math.prod(at.shape(value)[axes:]) for value in (x, op.result)]
    scalars = {"tokens": math.prod(at.shape(op.result)[:axes]), "row": sizes[1], "from": sizes[0], "to": sizes[1]}
    at.call(copy_rows(), {"x": at.places[x], "y": at.result(op)}, scalars | {"start": start})


def _part(at: _Lowering, op: Op) -> None:
    _copy(at, op, _number(op, "start"))


def _half(at: _Lowering, op: Op) -> None:
    size = int(op.result.type.shape[-1])
    _copy(at, op, size * _number(op, "number"), len(op.result.type.shape) - 1)


def _last_row(at: _Lowering, op: Op) -> None:
    (x,) = op.values
    _copy(at, op, x.type.row_size * (at.rows(x) - 1))


def _pool(at: _Lowering, op: Op) -> None:
    (x,) = op.values
    kind = _number(op, "kind")
    if kind == 1:
        operands = {"x": at.places[x], "y": at.result(op)}
        at.call(mean_rows(), operands, {"tokens": at.rows(x), "row": x.type.row_size})
    elif kind == 2:
        _copy(at, op, 0)
    else:
        _last_row(at, op)


def _elementwise(parameters: Sequence[str], at: _Lowering, op: Op) -> None:
    operands = dict(zip("ab", (at.places[value] for value in op.values), strict=False)) | {"y": at.result(op)}
    scalars = {"count": math.prod(at.shape(op.result))} | {name: _number(op, name) for name in parameters}
    at.call(elementwise(op.name), operands, scalars)


RULES: dict[str, Callable[[_Lowering, Op], None]] = {
    "embed": _embed,
    "linear": _linear,
    "bias": _bias,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "add_row": _add_row,
    "gain": _gain,
    "part": _part,
    "half": _half,
    "positions": _positions,
    "rope": _rope,
    "kv_update": _kv_update,
    "attention": _attention,
    "short_conv": _short_conv,
    "conv_update": _conv_update,
    "top_k": _top_k,
    "route": _route,
    "expert_linear": _expert_linear,
    "expert_gain": _expert_gain,
    "mix": _mix,
    "last_row": _last_row,
    "pool": _pool,
    **{name: functools.partial(_elementwise, ()) for name in ("add", "mul", "gelu", "silu", "relu", "tanh")},
    "scale": functools.partial(_elementwise, ("by",)),
    "softcap": functools.partial(_elementwise, ("cap",)),
}
