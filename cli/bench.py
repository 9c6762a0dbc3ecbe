"""`ggufc bench`."""

from pathlib import Path

import click

from .options import against_option, backend_option, common_options, model_argument, threads_option, weights_option
from .output import print_columns, print_json
from .progress import Progress


@click.command(short_help="Measure MODEL's speed.")
@model_argument
@click.option(
    "-p", "--prompt-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Length of the prompt."
)
@click.option("-n", "--tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens to decode.")
@click.option(
    "-r", "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds; medians are shown."
)
@backend_option
@threads_option
@against_option
@weights_option
@common_options
def bench(
    model: Path,
    prompt_tokens: int,
    tokens: int,
    rounds: int,
    backend: str,
    threads: int | None,
    against: str | None,
    weights_file: Path | None,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Measure MODEL's speed, beside the speed at which this machine reads memory.

    \b
    Example: ggufc bench gemma/
             ggufc bench gemma/ --threads 2 --against llama.cpp
    """
    from ..backends.bench import bench as measure

    with Progress() as progress:
        report = measure(
            model,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            threads=threads,
            backend=backend,
            llama_cpp=against is not None,
            rounds=rounds,
            weights=weights_file,
            archdefs=archdefs,
            progress=progress,
        )
    if as_json:
        print_json(report)
        return
    engines = [("ggufc", report)] + ([("llama.cpp", report["llama.cpp"])] if against else [])
    rows = [
        (
            name,
            f"{e['prefill_tok_s']:.1f}",
            f"{e['decode_tok_s']:.1f}",
            f"{e['decode_gb_s']:.1f}",
            f"{e['load_ms']:.0f}",
            f"{e['peak_rss_mb']:.0f}",
            e["kv"],
        )
        for name, e in engines
    ]
    if against:
        rows.append(("ratio", f"{report['ratio']['prefill']:.2f}", f"{report['ratio']['decode']:.2f}", "", "", "", ""))
    print_columns(("", "prefill_tok_s", "decode_tok_s", "decode_gb_s", "load_ms", "peak_rss_mb", "kv"), rows)
    click.echo(
        f"{prompt_tokens} prompt tokens, {tokens} decoded, {report['threads']} threads, backend {backend}; "
        f"memory reads {report['bandwidth_gb_s']:.1f} GB/s, decode uses {report['bandwidth_fraction']:.0%} of it"
    )
