"""The portable module as an executor of sessions: the second opinion on every other backend."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import numpy as np

from ...graph.ir import Graph
from ..caches import KV_TYPES, CacheSpec, cache_specs
from .trace import weight_spec
from .xla import XlaModule


class XlaExecutor:
    """Runs a portable module's entry points on XLA. Each new number of tokens or rows is compiled once.

    Args:
        text: the portable module.
        graphs: its entry points, which name caches and weights.
        weights: gives the raw bytes of a tensor.
    """

    def __init__(self, text: str, graphs: Mapping[str, Graph], weights: Callable[[str], np.ndarray]) -> None:
        self.caches = cache_specs(graphs)
        arrays = {}
        for graph in graphs.values():
            for name, weight in graph.weights().items():
                spec = weight_spec(weight)
                arrays[name] = weights(name).view(spec.dtype).reshape(spec.shape)
        self._module = XlaModule(text, arrays)

    def allocate(self, spec: CacheSpec, rows: int) -> jax.Array:
        return jax.device_put(np.zeros((rows, *spec.array_row), KV_TYPES[spec.dtype]))

    def resize(self, spec: CacheSpec, buffer: object, rows: int) -> jax.Array:
        assert isinstance(buffer, jax.Array)
        longer = np.zeros((rows, *spec.array_row), KV_TYPES[spec.dtype])
        longer[: len(buffer)] = buffer
        return jax.device_put(longer)

    def run(
        self, entry: str, tokens: np.ndarray, position: int, buffers: list[object], rows: Sequence[int]
    ) -> np.ndarray:
        logits, *buffers[:] = self._module.call(
            entry, [tokens, np.asarray(position, np.int32), *cast(list[jax.Array], buffers)]
        )
        return np.asarray(logits) if entry == "decode_greedy" else np.asarray(logits)[0]

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self._module.call("encode", [tokens])[0])
