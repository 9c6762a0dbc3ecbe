"""`ggufc export`."""

from pathlib import Path
from time import perf_counter

import click

from .options import PATH, common_options, kv_option, model_argument
from .output import print_json, print_table, size_text, tell
from .progress import Progress


@click.command(short_help="Compile MODEL into a bundle.")
@model_argument
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="The bundle to write or replace.")
@kv_option
@click.option("--copy-weights", is_flag=True, help="Put the weights into the bundle, so that it can be moved alone.")
@common_options
def export(
    model: Path, output: Path, kv: str | None, copy_weights: bool, archdefs: tuple[Path, ...], as_json: bool
) -> None:
    """Compile MODEL into the bundle DIR.

    \b
    Example: ggufc export gemma.gguf -o gemma/
             ggufc export gemma3:270m -o gemma/ --kv f16
             ggufc export ggml-org/gemma-3-270m-GGUF:Q8_0 -o gemma/ --copy-weights
    """
    from ..backends.export import export as write

    start = perf_counter()
    with Progress() as progress:
        bundle = write(model, output, kv=kv, copy_weights=copy_weights, archdefs=archdefs, progress=progress)
    manifest = bundle.manifest
    said = manifest["tokenizer"]
    for note in (*said.get("notes", ()), *([f"{said['missing']}: it runs on ids"] if "missing" in said else [])):
        tell(note)
    report = {
        "bundle": str(bundle.path),
        "architecture": manifest["architecture"]["name"],
        "targets": list(manifest["targets"]),
        "kv": manifest["kv"],
        "files": {name: entry["size"] for name, entry in manifest["files"].items()},
        "weights": manifest["weights"],
        "seconds": perf_counter() - start,
    }
    if as_json:
        print_json(report)
        return
    size = sum(file["size"] for file in manifest["weights"])
    held = "copied" if copy_weights else f"linked to {model}"
    print_table(
        [(name, size_text(size)) for name, size in report["files"].items()]
        + [
            ("weights", f"{size_text(size)}, {held}"),
            ("bundle", str(bundle.path)),
        ]
    )
