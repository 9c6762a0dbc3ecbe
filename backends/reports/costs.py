"""What running a model costs: the bytes that its operations read, and its caches."""

import math
from collections.abc import Callable

from ...frontend.ggml_types import by_name
from ...graph.ir import Graph, Op, Value, Weight
from ...graph.model import Model
from ...graph.types import ring_window
from ...passes import pipeline
from ..caches import CacheSpec, cache_specs


def caches_of(model: Model, kv: str) -> tuple[CacheSpec, ...]:
    """The caches of a decoder; an encoder has none."""
    if model.definition.kind != "decoder":
        return ()
    return cache_specs({"prefill": pipeline.prefill(model.graph, kv)})


def weight_bytes(model: Model) -> int:
    """Bytes of weights that decoding one token reads: every tensor of the graph once, as far as it is read."""
    return sum(operation_bytes(pipeline.forward(model.graph), 1, 0))


def operation_bytes(graph: Graph, tokens: int, position: int) -> list[int]:
    """Bytes of weights and caches that each operation of an entry point reads from memory.

    A tensor or a cache counts once, for the first of the operations that read most of it: the others find it in the
    processor's own caches.

    Args:
        graph: `prefill`, `decode` or `encode`, or a run without a cache.
        tokens: of the call. Of a mixture as many experts count as they can choose.
        position: of the last token. An attention reads a cache up to there, or its window.
    """
    most: dict[Weight | Value, tuple[int, int]] = {}  # bytes, number of the operation
    for n, op in enumerate(graph.ops):
        sizes: dict[Weight | Value, int] = {weight: _weight_read(op, weight, tokens) for weight in op.weights}
        sizes |= {v: _cache_read(v, position) for v in op.values[_CACHES.get(op.name, slice(0))]}
        most |= {operand: (size, n) for operand, size in sizes.items() if size > most.get(operand, (0, 0))[0]}
    read = [0] * len(graph.ops)
    for size, n in most.values():
        read[n] += size
    return read


def _weight_read(op: Op, weight: Weight, tokens: int) -> int:
    first, *rest = (int(d) for d in weight.type.shape)
    rows = min(first, _ROWS_READ[op.name](op, tokens)) if op.name in _ROWS_READ else first
    *lines, cols = (rows, *rest)
    return by_name(weight.type.dtype).nbytes(cols, math.prod(lines))


_ROWS_READ: dict[str, Callable[[Op, int], int]] = {
    "embed": lambda op, tokens: tokens,
    "add_row": lambda op, tokens: 1,
    "expert_linear": lambda op, tokens: tokens * chosen(op),
    "expert_gain": lambda op, tokens: tokens * chosen(op),
}
"""Of a tensor's first axis, what a call reads where that isn't all: its tokens' rows, the matrices of their experts."""


def chosen(op: Op) -> int:
    """The number of experts that each token goes to, of an operation over them."""
    return int(op.values[1].type.shape[-1])


def _cache_read(cache: Value, position: int) -> int:
    """Of a ring all rows up to the position, or its window; of a state all; of what is no cache none."""
    rows, size = cache.type.shape[0], by_name(cache.type.dtype).nbytes(cache.type.row_size)
    window = ring_window(rows)
    if window is not None:
        return min(position, window or position) * size
    return rows * size if isinstance(rows, int) else 0


_CACHES = {"attention": slice(1, 3), "short_conv": slice(1, 2)}
"""Which values of an operation may be caches that it reads."""


def decode_bytes(model: Model, kv: str, position: int) -> int:
    """Bytes that decoding the token at `position` reads: the weights, and of each cache what attention sees."""
    caches = caches_of(model, kv)
    return weight_bytes(model) + sum(c.nbytes(c.rows or min(position, c.window or position)) for c in caches)
