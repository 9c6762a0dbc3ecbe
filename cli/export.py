"""`ggufc export`."""

from pathlib import Path
from time import perf_counter

import click

from .options import PATH, TEXT, common_options, kv_option, layers_option, model_argument
from .output import print_json, print_table, size_text, tell
from .progress import Progress
from .prompts import without_advice


@click.command(short_help="Compile MODEL into a bundle.")
@model_argument
@click.option("-o", "--output", type=PATH, required=True, metavar="DIR", help="The bundle to write or replace.")
@kv_option
@click.option(
    "--activations",
    type=click.Choice(["16", "8"]),
    default="16",
    show_default=True,
    help="Bits of activations in prompts: 8 makes them faster and less near to the truth, where a target multiplies "
    "bytes.",
)
@click.option(
    "--weights",
    type=click.Choice(["gguf", "irpa", "f32", "bf16", "int8"]),
    default="gguf",
    show_default=True,
    help="Where the weights are: in the GGUF, or all in one archive that IREE's own tools load, as they are (irpa) or "
    "with every matrix encoded anew.",
)
@click.option(
    "--keep",
    type=TEXT,
    multiple=True,
    metavar="NAME",
    help="Leave this matrix as it is, such as token_embd.weight or '*ffn_down*'; may be given several times.",
)
@click.option(
    "--target",
    "targets",
    type=TEXT,
    multiple=True,
    metavar="NAME",
    help="Compile for this machine: host (the default), x86-64-v3, aarch64 ... (ggufc status lists them), or a triple, "
    "with features or without, such as aarch64-linux-gnu:+dotprod; may be given several times.",
)
@click.option(
    "--emit",
    type=click.Choice(["mlir", "mlirbc", "vmfb"]),
    multiple=True,
    default=["mlir", "vmfb"],
    show_default=True,
    help="What to write: the portable module as text, as StableHLO's versioned artifact, or compiled for each target; "
    "may be given several times.",
)
@click.option(
    "--static-library", is_flag=True, help="Write an object and a header as well, to link the code into a program."
)
@click.option(
    "--iree-flag",
    "flags",
    type=TEXT,
    multiple=True,
    metavar="FLAG",
    help="Pass a flag such as --iree-opt-level=O2 to iree-compile; may be given several times.",
)
@layers_option
@click.option("--copy-weights", is_flag=True, help="Put the weights into the bundle, so that it can be moved alone.")
@common_options
def export(
    model: Path,
    output: Path,
    kv: str | None,
    activations: str,
    weights: str,
    keep: tuple[str, ...],
    targets: tuple[str, ...],
    emit: tuple[str, ...],
    static_library: bool,
    flags: tuple[str, ...],
    layers: int | None,
    copy_weights: bool,
    archdefs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Compile MODEL into the bundle DIR.

    \b
    Example: ggufc export gemma.gguf -o gemma/
             ggufc export gemma3:270m -o gemma/ --kv f16
             ggufc export ggml-org/gemma-3-270m-GGUF:Q8_0 -o gemma/ --copy-weights
             ggufc export gemma.gguf -o gemma/ --target x86-64-v3 --target aarch64-linux-gnu:+dotprod
             ggufc export gemma.gguf -o int8/ --weights int8 --keep token_embd.weight
    """
    from ..backends.bundles.bundle import MANIFEST
    from ..backends.bundles.export import export as write
    from ..backends.bundles.stock_tools import commands

    start = perf_counter()
    with Progress() as progress:
        bundle = write(
            model,
            output,
            kv=kv,
            activations=int(activations),
            weights=weights,
            keep=keep,
            targets=targets,
            emit=emit,
            static_library=static_library,
            flags=flags,
            layers=layers,
            copy_weights=copy_weights,
            archdefs=archdefs,
            progress=progress,
        )
    manifest = bundle.manifest
    if copy_weights and bundle.has_archive:
        tell(f"--copy-weights adds nothing to --weights {weights}: the bundle holds {bundle.weight_files[0]} anyway")
    said = manifest["tokenizer"]
    missing = [f"ids instead of text: {without_advice(said['missing'])}"] if "missing" in said else []
    for note in (*said.get("notes", ()), *missing):
        tell(note)
    report = {
        "bundle": str(bundle.path),
        "architecture": manifest["architecture"]["name"],
        "targets": list(manifest["targets"]),
        "kv": manifest["kv"],
        "activations": manifest["activations"],
        "files": {MANIFEST: (bundle.path / MANIFEST).stat().st_size}
        | {name: entry["size"] for name, entry in manifest["files"].items()},
        "weights": manifest["weights"],
        "encoding": weights,
        "commands": commands(bundle) if bundle.has_archive else {},
        "seconds": perf_counter() - start,
    }
    if as_json:
        print_json(report)
        return
    size = sum(file["size"] for file in manifest["weights"])
    linked = "copied" if copy_weights else f"linked to {model}"
    held = f"{bundle.weight_files[0]}, {weights}" if bundle.has_archive else linked
    print_table(
        [(name, size_text(size)) for name, size in report["files"].items()]
        + [
            ("weights", f"{size_text(size)}, {held}"),
            ("bundle", str(bundle.path)),
        ]
    )
    for line in report["commands"].values():
        click.echo(line)
