"""`ggufc verify`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..frontend.errors import UnsupportedError
from .options import against_option, common_options, kv_option, model_argument, threads_option, weights_option
from .output import print_columns, print_json, print_rows, printable, stream_text
from .progress import Progress

if TYPE_CHECKING:
    from ..backends.bundles.check import Check
    from ..backends.reports.agreement import EmbeddingRow, Row


@click.command(short_help="Hold MODEL's executors against each other.")
@model_argument
@threads_option
@kv_option
@against_option
@click.option("--layers", is_flag=True, help="Look for the first layer behind which two executors differ.")
@weights_option
@common_options
def verify(
    model: Path,
    threads: int | None,
    kv: str | None,
    against: str | None,
    layers: bool,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Hold the executors of MODEL against each other; exit code 1 when two disagree, 3 when llama.cpp can't be run.

    A bundle is held against its manifest first, and isn't run where it is another: every file by its sha256, the
    weights by size, header and samples of each tensor, tables and entry points by what its definition makes of them.

    The reference is the native backend in exact mode. Bounds on the mean KL divergence, and on the reference's margin
    wherever another token is likeliest: XLA 1e-5 and 0.02 nats (the same arithmetic; no logit differs by more than
    1e-3), or 1e-4 and 0.05 with caches of f16, 4e-4 of q8_0, the fast kernels 4e-4 and 0.05 (15-bit activations),
    llama.cpp 2e-2 and 1 (8-bit activations). `worst` is the largest divergence of any position, its text (of four) and
    position. With --layers, two executors differ behind a layer when they are apart by 2e-2 of the stream's length, by
    1e-4 where both are exact. The same bounds hold for embeddings and the scores of classifiers, llama.cpp's being
    0.25; of these `cosine` is the least, and `apart` the largest distance as a part of the length.

    \b
    Example: ggufc verify gemma/
             ggufc verify minilm.gguf
             ggufc verify gemma/ --against llama.cpp --json
             ggufc verify gemma/ --layers
    """
    from ..backends.reports.verify import verify as run_checks

    with Progress() as progress:
        verdict = run_checks(
            model,
            threads=threads,
            kv=kv,
            llama_cpp=against is not None,
            layers=layers,
            weights=weights_file,
            archdefs=archdefs,
            progress=progress,
        )
    rows, missing = verdict.rows, verdict.not_available
    if as_json:
        print_json(
            {
                "ok": verdict.ok,
                "checks": [dataclasses.asdict(check) for check in verdict.checks],
                "rows": [dataclasses.asdict(row) for row in rows],
                "not_available": dict(missing),
            }
        )
    else:
        if verdict.checks:
            print_rows([(c.what, _judged(c)) for c in verdict.checks])
        _print_comparisons(rows)
        for name, why in missing.items():
            stream_text(f"{name} is not available: {printable(why)}\n")
    sys.exit(1 if not verdict.ok else UnsupportedError.exit_code if missing else 0)


def _judged(check: "Check") -> str:
    if not check.ok:
        return f"FAILED: {check.said}"
    return f"ok ({check.said})" if check.said else "ok"


def _print_comparisons(rows: "Sequence[Row | EmbeddingRow]") -> None:
    """The pairs of executors, and where they are furthest apart."""
    from ..backends.reports.agreement import Row

    logits = [
        (
            *(row.executor, row.against, f"{row.max_abs:.1e}", f"{row.mean_kl:.1e}", f"{row.top1_agreement:.3f}"),
            *(row.fed, f"{row.worst_kl:.1e} at {row.worst_text + 1}:{row.worst_position}", _passed(row)),
        )
        for row in rows
        if isinstance(row, Row)
    ]
    embeddings = [
        (
            *(row.executor, row.against, f"{row.max_abs:.1e}", f"{row.cosine:.6f}", f"{row.apart:.1e}"),
            *(row.fed, f"{row.worst_text + 1}", _passed(row)),
        )
        for row in rows
        if not isinstance(row, Row)
    ]
    if logits:
        print_columns(("executor", "against", "max_abs", "mean_kl", "top1_agreement", "fed", "worst", ""), logits)
    if embeddings:
        print_columns(("executor", "against", "max_abs", "cosine", "apart", "fed", "worst", ""), embeddings)
    for row in rows:
        if row.layer_difference is not None:
            first = "no layer differs" if row.first_layer is None else f"the first to differ is layer {row.first_layer}"
            stream_text(f"{row.executor}, {row.against}: {first}; {row.layer_difference:.1e} apart behind the last\n")


def _passed(row: "Row | EmbeddingRow") -> str:
    return "ok" if row.ok else f"FAILED: {row.why}"
