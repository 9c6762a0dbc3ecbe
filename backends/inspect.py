"""What a model is: architecture, numbers, layers, tensors, and what running it costs."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from ..frontend.errors import InputError
from ..graph.ir import Graph, Op
from ..graph.model import Model
from ..passes import pipeline
from .executor import CacheSpec, cache_specs


def entry_graph(model: Model, name: str, kv: str) -> Graph:
    """The graph of `prefill`, `decode` or `encode` (which gives an embedding) as it is compiled, or of `forward`, the
    run without a cache.

    Raises:
        InputError: the model has no such entry point.
    """
    if name == "forward":
        return pipeline.forward(model.graph)
    if name == "encode" and model.embedding:
        return pipeline.fused(pipeline.encode(model.embedding))
    if name == "encode" or model.definition.kind != "decoder":
        raise InputError(f"{model.file.path}: {model.definition.name} as this file has it gives no {name}")
    return pipeline.fused({"prefill": pipeline.prefill, "decode": pipeline.decode}[name](model.graph, kv))


def describe(model: Model, kv: str) -> dict[str, Any]:
    """Everything about a model, ready for JSON; sizes in bytes.

    `cache.bytes_per_token` holds while the sequence is shorter than every sliding window,
    `cache.bytes_per_token_past_windows` beyond, where only the layers that see everything grow; `cache.fixed_bytes` is
    the state of convolutions, which never grows.
    """
    file, numbers = model.file, model.hyperparameters
    types: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        entry = types.setdefault(tensor.type.name, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += tensor.nbytes
    caches = caches_of(model, kv)
    return {
        "path": str(file.path),
        "name": model.name,
        "architecture": model.definition.name,
        "kind": model.definition.kind,
        "definition": {"source": model.definition.source, "sha256": model.definition.sha256},
        "file_bytes": file.size,
        "header_bytes": file.data_offset,
        "context_length": model.context_length,
        "vocabulary": model.vocabulary,
        "hyperparameters": {k: list(v) if isinstance(v, tuple) else v for k, v in numbers.values.items()},
        "layers": dict(Counter(" ".join(layer.kinds) for layer in numbers.layers)),
        "tensors": {"count": len(file.tensors), "types": types},
        "cache": {
            "kv": kv,
            "bytes_per_token": sum(c.nbytes(1) for c in caches if not c.rows),
            "bytes_per_token_past_windows": sum(c.nbytes(1) for c in caches if not (c.rows or c.window)),
            "fixed_bytes": sum(c.nbytes(c.rows) for c in caches if c.rows),
        },
        "decode_bytes": {
            "weights": weight_bytes(model),
            "with_full_context": decode_bytes(model, kv, model.context_length),
        },
    }


def caches_of(model: Model, kv: str) -> tuple[CacheSpec, ...]:
    """The caches of a decoder; an encoder has none."""
    if model.definition.kind != "decoder":
        return ()
    return cache_specs({"prefill": pipeline.prefill(model.graph, kv)})


def weight_bytes(model: Model) -> int:
    """Bytes of weights that decoding one token reads: every tensor of the graph once, as far as it is read."""
    read: dict[str, int] = {}
    for op in pipeline.forward(model.graph).ops:
        for weight in op.weights:
            tensor = model.file.tensors[weight.name]
            rows = _ROWS_READ[op.name](op) if op.name in _ROWS_READ else tensor.shape[0]
            nbytes = tensor.nbytes // tensor.shape[0] * rows
            read[weight.name] = max(nbytes, read.get(weight.name, 0))
    return sum(read.values())


_ROWS_READ: dict[str, Callable[[Op], int]] = {
    "embed": lambda op: 1,
    "add_row": lambda op: 1,
    "expert_linear": lambda op: int(op.values[1].type.shape[-1]),
    "expert_gain": lambda op: int(op.values[1].type.shape[-1]),
}
"""Of a tensor's first axis, what one token reads where that isn't all: its own row, the matrices of its experts."""


def decode_bytes(model: Model, kv: str, position: int) -> int:
    """Bytes that decoding the token at `position` reads: the weights, and of each cache what attention sees."""
    caches = caches_of(model, kv)
    return weight_bytes(model) + sum(c.nbytes(c.rows or min(position, c.window or position)) for c in caches)
