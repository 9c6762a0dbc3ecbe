"""`ggufc verify`."""

import dataclasses
import sys
from pathlib import Path

import click

from ..frontend.errors import UnsupportedError
from .options import against_option, common_options, model_argument, threads_option, weights_option
from .output import print_columns, print_json, printable, stream_text
from .progress import Progress


@click.command(short_help="Hold MODEL's executors against each other.")
@model_argument
@threads_option
@against_option
@weights_option
@common_options
def verify(
    model: Path,
    threads: int | None,
    against: str | None,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Hold the executors of MODEL against each other; exit code 1 when two disagree, 3 when llama.cpp can't be run.

    The reference is the native backend in exact mode. Bounds on the mean KL divergence, and on the reference's margin
    wherever another token is likeliest: XLA 1e-5 and 0.02 nats (the same arithmetic; no logit differs by more than
    1e-3), or 1e-4 and 0.05 for a bundle whose caches are rounded, the fast kernels 4e-4 and 0.05 (15-bit activations),
    llama.cpp 2e-2 and 1 (8-bit activations).

    \b
    Example: ggufc verify gemma/
             ggufc verify gemma/ --against llama.cpp --json
    """
    from ..backends.verify import verify as run_checks

    with Progress() as progress:
        verdict = run_checks(
            model,
            threads=threads,
            llama_cpp=against is not None,
            weights=weights_file,
            archdefs=archdefs,
            progress=progress,
        )
    rows, missing = verdict.rows, verdict.not_available
    ok = all(row.ok for row in rows)
    if as_json:
        print_json({"ok": ok, "rows": [dataclasses.asdict(row) for row in rows], "not_available": dict(missing)})
    else:
        print_columns(
            ("executor", "against", "max_abs", "mean_kl", "top1_agreement", "fed", ""),
            [
                (
                    r.executor,
                    r.against,
                    f"{r.max_abs:.1e}",
                    f"{r.mean_kl:.1e}",
                    f"{r.top1_agreement:.3f}",
                    r.fed,
                    "ok" if r.ok else f"FAILED: {r.why}",
                )
                for r in rows
            ],
        )
        for name, why in missing.items():
            stream_text(f"{name} is not available: {printable(why)}\n")
    sys.exit(1 if not ok else UnsupportedError.exit_code if missing else 0)
