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
from ...graph.types import TensorType
from .kernel import ELEMENTS, Kernel
from .kernels.elementwise import by_row
from .kernels.embed import embed
from .kernels.experts import expert_linear
from .kernels.linear_many import linear_many
from .kernels.rows import copy_rows, mean_rows
from .rules import RULES, attention, copied, expert_linear_by

_Rule = Callable[..., "Operand"]
"""A `rules.Rule`, or one that needs to know more of the memory."""
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


@dataclass(frozen=True, eq=False)
class Operand:
    """A value or a weight: its memory, and what it holds."""

    place: Place
    dtype: str
    shape: tuple[int | CacheRows, ...]


@dataclass(frozen=True)
class Call:
    """One kernel with its operands by buffer name and its numbers by scalar name; `op` is number so much of the graph,
    and the first one of those that share what the kernel gives."""

    kernel: Kernel
    operands: Mapping[str, Place]
    scalars: Mapping[str, Number]
    op: int

    def groups(self) -> tuple[int, ...]:
        """Work groups on each axis of the kernel's grid."""
        return self.kernel.groups({n: v for n, v in self.scalars.items() if not isinstance(v, CacheRows)})


@dataclass
class Program:
    """What `lower` makes of a graph.

    Attributes:
        tokens, position: int32 (tokens,) and (1,), to be set before a run.
        calls: the kernels in order.
        result, result_shape, result_dtype: where the first result is, such as logits, and what.
        arena_bytes: memory that the places need.
    """

    tokens: np.ndarray
    position: np.ndarray
    calls: list[Call] = field(default_factory=list)
    result: Place = field(default_factory=Place)
    result_shape: tuple[int, ...] = ()
    result_dtype: str = "f32"
    arena_bytes: int = 0


def lower(
    graph: Graph, tokens: int, weights: WeightBytes, exact: bool, by_bytes: frozenset[str] = frozenset()
) -> Program:
    """The program of a graph for calls of `tokens` tokens.

    Args:
        graph: an entry point.
        tokens: the value of its symbol T.
        weights: gives the raw bytes of a tensor.
        exact: multiply with dequantized float32 weights instead of quantizing activations.
        by_bytes: the types whose products of many rows round them to 8 bits, and not to 15.
    """
    lowering = _Lowering(graph, tokens, weights, by_bytes)
    rules = RULES | OWN | (EXACT if exact else {})
    for n, op in enumerate(graph.ops):
        lowering.lower(n, op, rules[op.name])
        lowering.release(n)
    program, result = lowering.program, lowering.operands[graph.results[0]]
    program.result, program.result_dtype = result.place, result.dtype
    program.result_shape = tuple(size for size in result.shape if isinstance(size, int))
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
    """The state of `lower`: where operands are, and what to give back when they were last read. The `Site` of rules."""

    def __init__(self, graph: Graph, tokens: int, weights: WeightBytes, by_bytes: frozenset[str]) -> None:
        self.tokens, self.weights, self._by_bytes = tokens, weights, by_bytes
        self.arena = _Arena()
        self.program = Program(np.zeros(tokens, np.int32), np.zeros(1, np.int32))
        given = {"tokens": self.program.tokens, "position": self.program.position}
        caches = {cache: n for n, cache in enumerate(graph.caches())}
        self.operands: dict[Value | Weight, Operand] = {
            argument: self._argument(argument.type, caches.get(argument), given.get(argument.name))
            for argument in graph.arguments
        }
        last_read = {value: n for n, op in enumerate(graph.ops) for value in (op.result, *op.values)}
        self._dying: dict[int, list[Value]] = {}
        for value, n in last_read.items():
            if value not in graph.results:
                self._dying.setdefault(n, []).append(value)
        self._owned: dict[object, list[Place]] = {}  # what goes with an operand
        self._made: dict[object, Operand] = {}
        self._number = 0
        self._op: Op | None = None
        self._owner: object = None

    def _argument(self, type_: TensorType, cache: int | None, array: np.ndarray | None) -> Operand:
        rows = CacheRows(cache) if cache is not None else self.tokens
        shape = tuple(rows if isinstance(d, str) else d for d in type_.shape)
        return Operand(Place(cache=cache, array=array), type_.dtype, shape)

    def lower(self, n: int, op: Op, rule: _Rule) -> None:
        """Adds the calls of operation number n."""
        for weight in op.weights:
            if weight not in self.operands:
                shape = tuple(int(d) for d in weight.type.shape)
                self.operands[weight] = Operand(Place(array=self.weights(weight.name)), weight.type.dtype, shape)
        attributes = dict(op.attributes) | ({"type_name": op.weights[-1].type.dtype} if op.weights else {})
        self._number, self._op = n, op
        self.operands[op.result] = rule(self, [self.operands[o] for o in op.operands], attributes, self._sizes(op))

    def _sizes(self, op: Op) -> tuple[int, ...]:
        return tuple(self.tokens if isinstance(d, str) else d for d in op.result.type.shape)

    # Memory

    def take(self, nbytes: int) -> Place:
        """Memory until the operation is done."""
        place = self.arena.take(nbytes)
        self._owned.setdefault(None, []).append(place)
        return place

    def release(self, n: int) -> None:
        """Gives back what is not needed after operation number n."""
        for owner in (None, *(self.operands.get(value) for value in self._dying.get(n, ()))):
            for place in self._owned.pop(owner, ()):
                self.arena.give_back(place)

    # The site

    def shape(self, value: Operand) -> tuple[int, ...]:
        return tuple(-1 if isinstance(size, CacheRows) else size for size in value.shape)

    def size(self, value: Operand, axis: int) -> Number:
        return value.shape[axis]

    def dtype(self, value: Operand) -> str:
        return value.dtype

    def times(self, number: Number, factor: int) -> Number:
        assert not isinstance(number, CacheRows)
        return number * factor

    def rounds_to_bytes(self, type_name: str) -> bool:
        return type_name in self._by_bytes

    def constant(self, array: np.ndarray) -> Operand:
        return Operand(Place(array=array), {"f": "f32", "i": "i32"}[array.dtype.kind], array.shape)

    def once(self, owner: Operand | None, key: object, make: Callable[[], Operand]) -> Operand:
        if (owner, key) not in self._made:
            before, self._owner = self._owner, owner or "the whole run"
            self._made[owner, key] = make()
            self._owner = before
        return self._made[owner, key]

    def dispatch(
        self,
        kernel: Kernel,
        operands: Mapping[str, Operand],
        scalars: Mapping[str, Number],
        result: TensorType | None = None,
    ) -> Operand:
        (output,) = (buffer.name for buffer in kernel.buffers if buffer.output)
        given = operands if output in operands else {**operands, output: self.new(result)}
        self.call(kernel, {name: operand.place for name, operand in given.items()}, scalars)
        return given[output]

    def new(self, type_: TensorType | None = None) -> Operand:
        """Memory for what the operation gives, or for what it needs on the way, of this type."""
        assert self._op is not None
        wanted = type_ or self._op.result.type
        shape = tuple(self.tokens if isinstance(d, str) else d for d in wanted.shape)
        operand = Operand(self.arena.take(ELEMENTS[wanted.dtype][1] * math.prod(shape)), wanted.dtype, shape)
        self._owned.setdefault(self._owner if type_ else operand, []).append(operand.place)
        return operand

    def call(self, kernel: Kernel, operands: Mapping[str, Place], scalars: Mapping[str, Number]) -> None:
        """Adds one call."""
        self.program.calls.append(Call(kernel, operands, scalars, self._number))


Attributes = Mapping[str, Any]


def _linear_exact(at: _Lowering, operands: list[Operand], attributes: Attributes, result: Sequence[int]) -> Operand:
    """Tile by tile of dequantized rows, with one kernel for any number of tokens, so that it never changes a result."""
    x, weight = operands
    tokens, type_name = result[0], weight.dtype
    rows, cols = at.shape(weight)
    y = at.new()
    height = rows if type_name == "f32" else min(rows, max(16, _TILE_BYTES // (4 * cols)))
    is_direct = tokens == 1 or height == rows  # else a tile's columns of y are not side by side
    tile = weight.place if type_name == "f32" else at.take(4 * height * cols)
    part = y.place if is_direct else at.take(4 * tokens * height)
    ids = Place(array=_counting(height))
    for first in range(0, rows, height):
        count = min(height, rows - first)
        if type_name != "f32":
            raw = weight.place.at(first * by_name(type_name).nbytes(cols))
            at.call(embed(type_name), {"ids": ids, "w": raw, "y": tile}, {"tokens": count, "rows": count, "cols": cols})
        into = y.place.at(4 * first) if is_direct else part
        scalars: dict[str, Number] = {"tokens": tokens, "rows": count, "cols": cols}
        at.call(linear_many("f32"), {"w": tile, "x": x.place, "y": into}, scalars)
        if not is_direct:
            scalars = {"tokens": tokens, "row": count, "start": 0, "from": count, "to": rows}
            at.call(copy_rows(), {"x": part, "y": y.place.at(4 * first)}, scalars)
    return y


@functools.cache
def _counting(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int32)


def _expert_linear_exact(
    at: _Lowering, operands: list[Operand], attributes: Attributes, result: Sequence[int]
) -> Operand:
    cols = at.shape(operands[0])[-1]
    return expert_linear_by(lambda type_name: expert_linear(type_name, cols), at, operands, attributes)


def _add_row(at: _Lowering, operands: list[Operand], attributes: Attributes, result: Sequence[int]) -> Operand:
    x, table = operands
    row = math.prod(at.shape(x)[1:])
    line = Operand(table.place.at(4 * row * attributes["row"]), table.dtype, (row,))
    return at.dispatch(by_row("add"), {"x": x, "w": line}, {"rows": at.size(x, 0), "row": row})


def _last_row(at: _Lowering, operands: list[Operand], attributes: Attributes, result: Sequence[int]) -> Operand:
    tokens, *inner = at.shape(operands[0])
    x = Operand(operands[0].place, "f32", (1, *operands[0].shape[1:]))
    return copied(at, x, math.prod(inner) * (tokens - 1), math.prod(inner))


def _pool(at: _Lowering, operands: list[Operand], attributes: Attributes, result: Sequence[int]) -> Operand:
    (x,) = operands
    tokens, *inner = at.shape(x)
    if attributes["kind"] == 1:
        return at.dispatch(mean_rows(), {"x": x}, {"tokens": tokens, "row": math.prod(inner)})
    row = Operand(x.place, "f32", (1, *x.shape[1:]))
    return copied(at, row, math.prod(inner) * (tokens - 1 if attributes["kind"] == 3 else 0), math.prod(inner))


OWN: dict[str, _Rule] = {"add_row": _add_row, "last_row": _last_row, "pool": _pool}
"""Operations that are kernels here alone: a compiled module does them without."""
EXACT: dict[str, _Rule] = {
    "linear": _linear_exact,
    "expert_linear": _expert_linear_exact,
    "attention": functools.partial(attention, by_spans=False),
}
"""Products with dequantized float32 weights, and what gives the same bits however tokens are fed."""
