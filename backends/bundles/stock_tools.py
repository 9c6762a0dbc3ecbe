"""The lines with which IREE's own tools run a bundle that has an archive."""

import shlex
from typing import Any

from ...frontend.errors import InputError
from ...frontend.ggml_types import by_name
from ..iree.parameters import SCOPE
from .bundle import ARCHIVE, Bundle

PROMPT, CONTEXT = 4, 128
"""Tokens of a call of many, and positions before a call of one."""


def command(bundle: Bundle, tool: str, entry: str, target: str) -> str:
    """A line for the shell that calls an entry point once, with token 1 everywhere and caches of zeros.

    Args:
        bundle: one with an archive.
        tool: `iree-run-module` or `iree-benchmark-module`.
        entry: a name of the manifest's `entries`; `decode` stands at position 127, what takes more at 0.
        target: a name of the manifest's `targets` that has a compiled module.

    Raises:
        InputError: the weights lie in a GGUF, which the tools can't map as the module wants it.
    """
    if not bundle.has_archive:
        raise InputError(f"{bundle.path}: IREE's tools need the weights in an archive; export it with --weights irpa")
    position = CONTEXT - 1 if entry == "decode" else 0
    rows = CONTEXT if entry == "decode" else PROMPT
    arguments = bundle.manifest["entries"][entry]["arguments"]
    words = [
        tool,
        f"--module={bundle.path / bundle.manifest['targets'][target]['file']}",
        f"--parameters={SCOPE}={bundle.path / ARCHIVE}",
        "--device=local-task",
        f"--function={entry}",
        *(f"--input={_value(argument, rows, position)}" for argument in arguments),
    ]
    return shlex.join(words)


def commands(bundle: Bundle) -> dict[str, str]:
    """For each tool its line, for the first target with a compiled module, if there is one: what takes a prompt is run,
    a step of decoding is measured."""
    entries = list(bundle.manifest["entries"])
    target = next((name for name, target in bundle.manifest["targets"].items() if "file" in target), None)
    if target is None:
        return {}
    chosen = {"iree-run-module": entries[0], "iree-benchmark-module": "decode" if "decode" in entries else entries[0]}
    return {tool: command(bundle, tool, entry, target) for tool, entry in chosen.items()}


def _value(argument: dict[str, Any], rows: int, position: int) -> str:
    """An argument as the tools read it: each symbol is `rows`, and blocks are bytes."""
    shape, type_ = argument["shape"], argument["type"]
    if not shape:
        return str(position)
    if by_name(type_).block_elements > 1:
        shape, type_ = [*shape[:-1], by_name(type_).nbytes(shape[-1])], "i8"
    sizes = "x".join(str(rows if isinstance(d, str) else d) for d in shape)
    return f"{sizes}x{type_}=1" if argument["name"] == "tokens" else f"{sizes}x{type_}"
