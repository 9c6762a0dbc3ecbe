"""The portable module as an executor of sessions: the second opinion on every other backend."""

from collections.abc import Callable, Sequence
from typing import cast

import jax
import numpy as np

from ...graph.ir import Graph
from ..executor import DTYPES, CacheSpec, cache_specs
from .trace import weight_spec
from .xla import XlaModule


class XlaExecutor:
    """Runs a portable module's entry points on XLA. Each new number of tokens or rows is compiled once.

    Args:
        text: the portable module.
        prefill: the graph of its prefill, which names caches and weights.
        weights: gives the raw bytes of a tensor.
    """

    def __init__(self, text: str, prefill: Graph, weights: Callable[[str], np.ndarray]) -> None:
        self.caches = cache_specs(prefill)
        arrays = {}
        for name, weight in prefill.weights().items():
            spec = weight_spec(weight)
            arrays[name] = weights(name).view(spec.dtype).reshape(spec.shape)
        self._module = XlaModule(text, arrays)

    def allocate(self, spec: CacheSpec, rows: int) -> jax.Array:
        return jax.device_put(np.zeros((rows, *spec.row), DTYPES[spec.dtype]))

    def resize(self, spec: CacheSpec, buffer: object, rows: int) -> jax.Array:
        assert isinstance(buffer, jax.Array)
        longer = np.zeros((rows, *spec.row), DTYPES[spec.dtype])
        longer[: len(buffer)] = buffer
        return jax.device_put(longer)

    def run(
        self, entry: str, tokens: np.ndarray, position: int, buffers: list[object], rows: Sequence[int]
    ) -> np.ndarray:
        logits, *buffers[:] = self._module.call(
            entry, [tokens, np.asarray(position, np.int32), *cast(list[jax.Array], buffers)]
        )
        return np.asarray(logits)[0]
