"""Where the time of an entry point goes: each operation with its bytes and its share, on the native kernels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....frontend.errors import InputError
from ....graph.ir import Op
from ....graph.ops import PRODUCTS
from ....graph.types import ring_window
from ....passes.pipeline import entry_graphs
from ...bundles.source import activations_of, check_own_kv, located, lowered
from ...caches import chosen_kv
from ...host.cores import usable_cores
from ...native.executor import NativeExecutor, Timed
from ...progress import Progress, silent
from ...sessions.rings import CHUNK
from ..costs import chosen, operation_bytes


def profile(
    model: Path,
    *,
    prompt_tokens: int = 512,
    depth: int = 512,
    threads: Sequence[int] = (),
    runs: int = 5,
    kv: str | None = None,
    weights: Path | None = None,
    archdefs: Sequence[Path] = (),
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Times every operation of `decode` and `prefill`, or of `encode`, on the native backend, whose kernels are those
    of a compiled module.

    Args:
        model: a bundle or a `.gguf`.
        prompt_tokens: of one call of prefill, which takes no more than CHUNK, or of encode.
        depth: tokens before the one that is decoded.
        threads: numbers of workers; none given: one for each core.
        runs: of which medians are taken.
        kv, weights, archdefs, progress: as for `bench`.

    Returns:
        For each entry point and number of threads `entry`, `threads`, `tokens`, `depth`, `ms`, `bytes` (of `decode`
        those that `decode_bytes` counts) and `rows`, the longest first: those operations that have the same name and
        size, as `operation` and `of`, with `count`, `ms`, `share` of the time, `bytes` read from memory, `gb_s`, of
        products `gop_s` (1e9 multiplications and additions per second), and `kernels`.

    Raises:
        InputError, UnsupportedError: as `load`.
    """
    bundle, file = located(model, weights)
    check_own_kv(bundle, kv)
    opened = lowered(bundle, file, archdefs)
    if max(prompt_tokens, depth + 1) > opened.context_length:
        raise InputError(
            f"{file}: {max(prompt_tokens, depth + 1)} tokens exceed its context of {opened.context_length}"
        )
    graphs = entry_graphs(opened, bundle.manifest["kv"] if bundle else chosen_kv(opened.graph, kv))
    calls = {"decode": (1, depth), "prefill": (min(prompt_tokens, CHUNK), 0), "encode": (prompt_tokens, 0)}
    wanted = ("decode", "prefill") if opened.definition.kind == "decoder" else ("encode",)
    tables = []
    for workers in threads or (usable_cores(),):
        executor = NativeExecutor(graphs, opened.file.tensor_bytes, workers, False, activations_of(bundle))
        for entry in wanted:
            tokens, position = calls[entry]
            progress(f"timing the operations of {entry}")
            ids = np.random.default_rng(0).integers(0, opened.vocabulary, tokens, np.int32)
            timed = executor.profile(entry, ids, position, runs)
            read = dict(
                zip(graphs[entry].ops, operation_bytes(graphs[entry], tokens, position + tokens - 1), strict=True)
            )
            setting = {"entry": entry, "threads": workers, "tokens": tokens, "depth": position}
            tables.append(setting | _table(timed, read, tokens))
    return tables


def _table(timed: Sequence[Timed], read: dict[Op, int], tokens: int) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[Timed]] = {}
    for one in timed:
        groups.setdefault((one.op.name, _size(one.op)), []).append(one)
    total = sum(one.seconds for one in timed)
    rows: list[dict[str, Any]] = [
        {"operation": name, "of": size} | _row(group, sum(read[one.op] for one in group), total, tokens)
        for (name, size), group in groups.items()
    ]
    rows.sort(key=lambda row: -row["ms"])
    return {"ms": total * 1e3, "bytes": sum(row["bytes"] for row in rows), "rows": rows}


def _row(group: Sequence[Timed], read: int, total: float, tokens: int) -> dict[str, Any]:
    seconds = max(sum(one.seconds for one in group), 1e-9)  # what a clock tells apart
    done = sum(product_operations(one.op, tokens) for one in group)
    row = {
        "count": len(group),
        "ms": seconds * 1e3,
        "share": seconds / total,
        "bytes": read,
        "gb_s": read / seconds / 1e9,
    }
    row |= {"gop_s": done / seconds / 1e9} if done else {}
    return row | {"kernels": sorted({kernel for one in group for kernel in one.kernels})}


def product_operations(op: Op, tokens: int) -> int:
    """Multiplications and additions of a product with weights in a call of so many tokens; 0 for what is none."""
    if op.name not in PRODUCTS:
        return 0
    matrices = [weight.type.shape[-2:] for weight in op.weights if len(weight.type.shape) > 1]
    rows = op.values[0].type.shape[0]
    times = (rows if isinstance(rows, int) else tokens) * (chosen(op) if op.name == "expert_linear" else 1)
    return 2 * times * sum(int(height) * int(width) for height, width in matrices)


def _size(op: Op) -> str:
    """What tells an operation from others of its name: its largest weights, or how far it sees in a cache."""
    weights = [weight.type for weight in op.weights]
    largest = max(weights, key=lambda t: len(t.shape) and int(t.shape[0]) * t.row_size, default=None)
    if largest is not None:
        times = sum(t == largest for t in weights)
        return f"{f'{times} x ' if times > 1 else ''}{largest.dtype} {'x'.join(map(str, largest.shape))}"
    windows = [ring_window(value.type.shape[0]) for value in op.values if value.type.shape]
    window = next((found for found in windows if found is not None), None)
    return "" if window is None else f"window {window}" if window else "all positions"
