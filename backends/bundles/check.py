"""A bundle held against its own manifest, part by part; nothing is run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...frontend.errors import GgufcError, InputError
from ...passes.pipeline import entry_graphs
from .bundle import Bundle
from .manifest import entries_of, tensors_of
from .source import lowered


@dataclass(frozen=True)
class Check:
    """One part of a bundle: whether it is what the manifest says, and if not in what it differs.

    `said` is that, or of a part that is as it must be how it was looked at, where that isn't all of it.
    """

    what: str
    ok: bool
    said: str = ""


def check_bundle(bundle: Bundle, weights: Path | None = None) -> tuple[Check, ...]:
    """Checks every part of a bundle.

    The files by size and sha256; the weights by size, by the sha256 of their header and of samples of every tensor;
    the definition by its own sha256; and the tensors, parameters, caches and entry points by those that the definition
    makes of the weights' header. What builds on a part that failed isn't looked at.

    Args:
        bundle: the bundle.
        weights: the first file of its weights, where its link to them is broken.
    """
    return tuple(_checks(bundle, weights))


def _checks(bundle: Bundle, weights: Path | None) -> Iterator[Check]:
    files = [_check(name, partial(bundle.file, name)) for name in bundle.manifest["files"]]
    yield from files
    names = ", ".join(file["name"] for file in bundle.manifest["weights"])
    held = _check(names, lambda: bundle.weights(weights), "sampled")
    yield held
    if not held.ok or not all(check.ok for check in files):
        return
    yield _check("contents", lambda: _check_contents(bundle, bundle.weights(weights)[0]))


def _check(what: str, look: Callable[[], object], how: str = "") -> Check:
    try:
        look()
    except GgufcError as error:
        return Check(what, False, str(error))
    return Check(what, True, how)


def _check_contents(bundle: Bundle, file: Path) -> None:
    """Compares what the manifest repeats of the weights and of the definition with both.

    Raises:
        InputError: a part is another one.
        UnsupportedError: the bundle was made by a version that could do more.
    """
    model, manifest = lowered(bundle, file), bundle.manifest
    tensors = tensors_of(model.file)
    wanted = {
        "tensors": tensors,
        "entries": entries_of(entry_graphs(model, manifest["kv"])),
        "vocabulary": model.vocabulary,
        "context_length": model.context_length,
    }
    for key, value in wanted.items():
        if manifest[key] != value:
            raise InputError(f"{bundle.path}: the manifest's {key} {_first_other(manifest[key], value)}")


def _first_other(found: object, wanted: object) -> str:
    """Where two values of a manifest differ, in words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        key = next(k for k in [*found, *wanted] if found.get(k) != wanted.get(k))
        if key not in found or key not in wanted:
            return f"{'lack' if key in wanted else 'have'} {key!r}, other than what the model gives"
        return f"{key!r}: {_first_other(found[key], wanted[key])}"
    return f"{found!r}, the model gives {wanted!r}"
