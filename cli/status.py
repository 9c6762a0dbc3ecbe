"""`ggufc status`."""

from pathlib import Path
from typing import Any

import click

from .options import common_options
from .output import print_json, print_rows, size_text
from .progress import Progress


@click.command(short_help="List what is on this machine.")
@common_options
def status(archdefs: tuple[Path, ...], as_json: bool) -> None:
    """Show which models, architectures and backends are on this machine, and what is missing.

    Models are those in this folder, in the Ollama store ($OLLAMA_MODELS), in the Hugging Face cache ($HF_HUB_CACHE,
    $HF_HOME). With --json every path and whole hashes are printed.

    \b
    Example: ggufc status
             ggufc status --json
    """
    from ..backends.reports.status import status as look

    with Progress() as progress:
        found = look(archdefs, progress)
    if as_json:
        print_json(found)
        return
    cache = found["cache"]
    looked = [("none in", folder) for folders in found["stores"].values() for folder in folders]
    sections = {
        "Models": ([_model(model) for model in found["models"]] or looked)
        + [("can't be read", said) for said in found["unreadable"]],
        "Architectures": [_architecture(entry) for entry in found["architectures"]],
        "Backends": [_backend(name, entry) for name, entry in found["backends"].items()],
        "Processor": [_processor(found["cpu"])],
        "Targets": [_target(name, lacks) for name, lacks in found["targets"].items()]
        or [("none", "compiling needs ggufc[export]")],
        "Cache": [(cache["folder"], f"{cache['bundles']} compiled models, {size_text(cache['size'])}")],
    }
    for title, rows in sections.items():
        click.secho(title, bold=True)
        print_rows(rows, indent=2)


def _model(model: dict[str, Any]) -> tuple[str, ...]:
    sha256 = f"sha256 {model['sha256'][:12]}" if model["sha256"] else ""
    if "size" not in model:
        return model["name"], model["origin"], f"can't be read: {model['error']}"
    types = ", ".join(list(model["types"])[:3])
    targets = f" for {', '.join(model['targets'])}" if "targets" in model else ""
    fault = f"can't be run: {model['error']}" if "error" in model else ""
    return (
        model["name"],
        model["origin"],
        size_text(model["size"]),
        model["architecture"],
        f"{model['kind']}: {types}{targets}",
        sha256,
        fault,
    )


def _architecture(entry: dict[str, Any]) -> tuple[str, ...]:
    if "error" in entry:
        return entry["name"], entry["origin"], "broken", entry["error"]
    return entry["name"], entry["origin"], entry["kind"], f"sha256 {entry['sha256'][:12]}"


def _backend(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    missing = [package for package, version in entry["packages"].items() if version is None]
    if missing:
        return name, f"missing: pip install {' '.join(missing)}"
    return name, f"ready: {', '.join(f'{package} {version}' for package, version in entry['packages'].items())}"


def _processor(cpu: dict[str, Any]) -> tuple[str, ...]:
    features = "features can't be told" if cpu["features"] is None else " ".join(cpu["features"])
    return cpu["arch"], f"{cpu['cores']} cores", features


def _target(name: str, lacks: list[str]) -> tuple[str, ...]:
    return name, f"this machine lacks {', '.join(lacks)}" if lacks else "runs here"
