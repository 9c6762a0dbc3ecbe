"""What running a model takes of memory, and how fast memory alone lets it go."""

from collections.abc import Sequence
from typing import Any

from ...frontend.errors import InputError
from ...frontend.ggml_types import by_name
from ...graph.ir import Graph, Value
from ...graph.model import Model
from ...graph.report import tensors_read
from ...passes import pipeline
from ..caches import KV_TYPES, chosen_kv
from ..sessions.rings import CHUNK
from .bandwidth import ReadBandwidth
from .costs import caches_of, decode_bytes

SHORTEST, STEP = 512, 4
"""Of the context lengths in a plan the first, and by how much the next is longer; the model's own is the last."""


def plan(model: Model) -> dict[str, Any]:
    """The memory plan of a model, ready for JSON; sizes in bytes.

    `weights` are mapped from the file and may be given back and read again; `caches` grow with the text, here by type
    and length; `scratch` are the values of one call that live at the same time, of a call of so many tokens.
    """
    decoder = model.definition.kind == "decoder"
    made = pipeline.prefill(model.graph, chosen_kv(model.graph)) if decoder else pipeline.encode(model.graph)
    graph = pipeline.fused(made)
    return {
        "weights": sum(model.file.tensors[name].nbytes for name in tensors_read(model)),
        "caches": {kv: _cache_bytes(model, kv) for kv in _cache_types(model)} if decoder else {},
        "scratch": {tokens: scratch_bytes(graph, tokens) for tokens in (1, CHUNK)},
    }


def lengths(context: int) -> list[int]:
    """The context lengths of a plan, rising."""
    found = [context]
    length = SHORTEST
    while length < context:
        found.append(length)
        length *= STEP
    return sorted(found)


def _cache_types(model: Model) -> list[str]:
    found = []
    for kv in KV_TYPES:
        try:
            found.append(chosen_kv(model.graph, kv))
        except InputError:  # heads that don't divide into blocks
            continue
    return found


def _cache_bytes(model: Model, kv: str) -> dict[int, int]:
    """By context length; a window's ring holds its window and the tokens of one call."""
    caches = caches_of(model, kv)
    return {
        length: sum(c.nbytes(c.rows or min(length, c.window + CHUNK if c.window else length)) for c in caches)
        for length in lengths(model.context_length)
    }


def scratch_bytes(graph: Graph, tokens: int) -> int:
    """The most bytes that the values of a call of so many tokens take at one time, caches apart."""
    caches = set(graph.caches()) | set(graph.results[1:])
    last: dict[Value, int] = {}
    for n, op in enumerate(graph.ops):
        last |= dict.fromkeys(op.values, n)
    last |= dict.fromkeys(graph.results, len(graph.ops))
    alive = most = 0
    for n, op in enumerate(graph.ops):
        alive += 0 if op.result in caches else _value_bytes(op.result, tokens)
        most = max(most, alive)
        made = {value for value in (*op.values, op.result) if last.get(value, n) == n and value not in caches}
        alive -= sum(_value_bytes(value, tokens) for value in made if value not in graph.arguments)
    return most


def _value_bytes(value: Value, tokens: int) -> int:
    """Of a value whose rows, where they are a symbol, are the tokens of the call."""
    *lead, last = (tokens if isinstance(size, str) else int(size) for size in value.type.shape or (1,))
    rows = 1
    for size in lead:
        rows *= size
    return by_name(value.type.dtype).nbytes(last, rows)


def predicted_speed(model: Model, kv: str, threads: int, positions: Sequence[int]) -> dict[str, Any]:
    """How fast this machine's memory lets the model decode, ready for JSON.

    `read_gb_s` is what so many threads read now; `decode_tok_s` by position what that makes where a token costs its
    bytes alone, which nothing can be faster than.
    """
    meter = ReadBandwidth(threads)
    try:
        read = meter.measure()
    finally:
        meter.close()
    return {
        "threads": threads,
        "read_gb_s": read / 1e9,
        "decode_tok_s": {position: read / decode_bytes(model, kv, position) for position in positions},
    }
