"""What a model is: architecture, numbers, layers, tensors, entry points."""

from collections import Counter
from typing import Any

from ...frontend.errors import InputError
from ...graph.ir import Graph
from ...graph.model import Model
from ...passes import pipeline
from .costs import caches_of, decode_bytes, weight_bytes


def entry_graph(model: Model, name: str, kv: str) -> Graph:
    """The graph of one of `pipeline.ENTRIES` or of `encode` (which gives an embedding) as it is compiled, or that of
    `forward`, the run without a cache.

    Raises:
        InputError: the model has no such entry point.
    """
    if name == "forward":
        return pipeline.forward(model.graph)
    if name == "encode" and model.embedding:
        return pipeline.fused(pipeline.encode(model.embedding))
    if name == "encode" or model.definition.kind != "decoder":
        raise InputError(f"{model.file.path}: {model.definition.name} as this file has it gives no {name}")
    return pipeline.fused(pipeline.ENTRIES[name](model.graph, kv))


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
