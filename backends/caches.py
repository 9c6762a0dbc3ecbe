"""The caches that a model's entry points take: their element types, and the layout that all executors agree on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..frontend.errors import InputError
from ..frontend.ggml_types import by_name
from ..graph.ir import Graph
from ..graph.types import ring_window

KV_TYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "q8_0": np.dtype(np.int8)}
"""The element types of KV caches, and what an array of one holds; of `q8_0` the bytes of its blocks."""


def check_kv(kv: str | None) -> None:
    """Refuses an element type of KV caches that there isn't.

    Raises:
        InputError: it is not None, and there is no such type.
    """
    if kv is not None and kv not in KV_TYPES:
        raise InputError(f"no KV cache of type {kv!r}; there are {', '.join(KV_TYPES)}")


def chosen_kv(graph: Graph, kv: str | None = None, exact: bool = False) -> str:
    """The element type of KV caches: the one asked for, or f16, half of what a token reads beside the weights. Where
    nothing else is rounded, because all matrices are f32 or arithmetic is exact, it is f32.

    Raises:
        InputError: there is no such type.
    """
    check_kv(kv)
    if kv == "q8_0":
        _need_whole_blocks(graph)
    if kv:
        return kv
    matrices = {weight.type.dtype for weight in graph.weights().values() if len(weight.type.shape) > 1}
    return "f32" if exact or matrices <= {"f32"} else "f16"


def _need_whole_blocks(graph: Graph) -> None:
    block = by_name("q8_0").block_elements
    for op in graph.ops:
        for value in op.values[1:3] if op.name == "attention" else ():
            size = value.type.shape[-1]
            if int(size) % block:
                raise InputError(f"no q8_0 KV cache for heads of {size} elements: wanted a multiple of {block}")


@dataclass(frozen=True)
class CacheSpec:
    """One cache argument of an entry point: a ring of rows, one row for each position.

    Attributes:
        name: the argument's name in the graph, such as `k.0`.
        dtype: a key of KV_TYPES.
        row: the shape of a row, `(kv_heads, head_dim)`.
        window: positions that an attention sees of it, 0 for all.
        rows: for a state of fixed size (of a convolution) its rows; 0 for a ring.
    """

    name: str
    dtype: str
    row: tuple[int, ...]
    window: int = 0
    rows: int = 0

    @property
    def array_row(self) -> tuple[int, ...]:
        """The shape of a row in an array of `KV_TYPES[dtype]`."""
        *heads, size = self.row
        return (*heads, by_name(self.dtype).nbytes(size) // KV_TYPES[self.dtype].itemsize)

    def nbytes(self, rows: int) -> int:
        """Bytes of so many rows."""
        return rows * int(np.prod(self.array_row)) * KV_TYPES[self.dtype].itemsize


def cache_specs(entries: Mapping[str, Graph]) -> tuple[CacheSpec, ...]:
    """The caches of a model's `prefill`, from its arguments."""
    found = []
    for cache in entries["prefill"].caches() if "prefill" in entries else ():
        rows, *row = cache.type.shape
        shape = tuple(int(d) for d in row)
        fixed = rows if isinstance(rows, int) else 0
        found.append(CacheSpec(cache.name, cache.type.dtype, shape, ring_window(rows) or 0, fixed))
    return tuple(found)
