"""Where in a model two executors part: the first layer after which the stream of values differs.

A module gives logits alone, so each executor runs the model cut short behind a layer. The layer is found by halving:
a difference that arose in one layer is taken to be there after every later one too.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ...graph.ir import Graph
from ...graph.model import Model
from ...passes import pipeline
from ...passes.first_layers import FirstLayers
from ..executor import Executor
from ..progress import Progress

KV = "f32"
"""The type of caches for all executors, so that it makes no difference."""


def _native(model: Model, graph: Graph, threads: int, activations: int, exact: bool = False) -> Executor:
    from ..native.executor import NativeExecutor

    shown = graph if exact else pipeline.fused(graph)
    return NativeExecutor({graph.name: shown}, model.file.tensor_bytes, threads, exact, activations)


def _xla(model: Model, graph: Graph, threads: int, activations: int) -> Executor:
    from ..jax.executor import XlaExecutor
    from ..jax.module import portable_module

    return XlaExecutor(portable_module([graph]), {graph.name: graph}, model.file.tensor_bytes)


def _iree(model: Model, graph: Graph, threads: int, activations: int) -> Executor:
    from ..caches import cache_specs
    from ..iree.compile import compile_module
    from ..iree.parameters import places
    from ..iree.runtime import IreeExecutor
    from ..jax.module import portable_module
    from ..native.target import host_target

    fused = pipeline.fused(graph)
    compiled = compile_module(portable_module([fused]), places(model.file), host_target(), activations=activations)
    weights = [part.path for part in model.file.parts]
    with tempfile.NamedTemporaryFile(suffix=".vmfb") as file:
        file.write(compiled.vmfb)
        file.flush()
        path, caches = Path(file.name), cache_specs({fused.name: fused})
        return IreeExecutor(path, weights, compiled.parameters, caches, (fused.name,), threads)


EXECUTORS: dict[str, Callable[[Model, Graph, int, int], Executor]] = {
    "native exact": partial(_native, exact=True),
    "native": _native,
    "iree": _iree,
    "xla": _xla,
}
"""By the names of `verify`: an executor of one entry point of a model, made with so many threads and activations of so
many bits, where it rounds them."""


class Layers:
    """Streams of a model behind each of its layers, computed when they are first wanted.

    Args:
        model: a decoder or an encoder.
        prompts: token ids, all equally long. A decoder runs each through `prefill`, and its last row is looked at; of
            an encoder all rows are.
        threads: workers.
        progress: told of each run.
        activations: the bits that a bundle's prompts round them to.
    """

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Sequence[int]],
        threads: int,
        progress: Progress,
        activations: int = 16,
    ) -> None:
        self._model, self._prompts, self._threads, self._progress = model, prompts, threads, progress
        self._activations = activations
        self._streams: dict[tuple[str, int], np.ndarray] = {}
        self.count = len(model.hyperparameters.layers)

    def stream(self, executor: str, count: int) -> np.ndarray:
        """What an executor has behind the first `count` layers: float32 (rows, width)."""
        if (executor, count) not in self._streams:
            self._progress(f"running {executor} over {count} layers")
            made = EXECUTORS[executor](self._model, _probe(self._model, count), self._threads, self._activations)
            rows = _rows if self._model.definition.kind == "encoder" else _last_row
            self._streams[executor, count] = np.concatenate([rows(made, prompt) for prompt in self._prompts])
        return self._streams[executor, count]

    def difference(self, executor: str, against: str, count: int) -> float:
        """How far two streams behind `count` layers are apart, as a part of the second one's length; the most of any
        row."""
        wanted, found = (self.stream(name, count).astype(np.float64) for name in (against, executor))
        apart = np.linalg.norm(found - wanted, axis=-1) / np.maximum(np.linalg.norm(wanted, axis=-1), 1e-30)
        return float(np.nan_to_num(apart, nan=np.inf).max())

    def first_difference(self, executor: str, against: str, most: float) -> int | None:
        """The first layer, from 0, behind which two executors are further apart than `most`; None where none is."""
        if self.difference(executor, against, self.count) <= most:
            return None
        low, high = 0, self.count
        while high - low > 1:
            middle = (low + high) // 2
            if self.difference(executor, against, middle) > most:
                high = middle
            else:
                low = middle
        return low


def _probe(model: Model, count: int) -> Graph:
    """The entry point that gives what stands behind the first layers."""
    cut = FirstLayers(count, epilogue=False)(model.graph)
    return pipeline.encode(cut) if model.definition.kind == "encoder" else pipeline.prefill(cut, KV)


def _rows(executor: Executor, prompt: Sequence[int]) -> np.ndarray:
    return executor.encode(np.asarray(prompt, np.int32)).copy()


def _last_row(executor: Executor, prompt: Sequence[int]) -> np.ndarray:
    tokens = np.asarray(prompt, np.int32)
    rows = [spec.rows or len(tokens) for spec in executor.caches]
    buffers = [executor.allocate(spec, count) for spec, count in zip(executor.caches, rows, strict=True)]
    return executor.run("prefill", tokens, 0, buffers, rows)[None].copy()
