"""Bundles of models that are run without an export: each is compiled once into the user's cache."""

import errno
import hashlib
import importlib.metadata
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ...frontend.errors import InputError
from ...graph.model import Model, open_model
from ..caches import chosen_kv
from ..host.folders import cache_directory
from ..native.target import Target, host_target
from ..progress import Progress, silent
from .bundle import Bundle, read_bundle, sha256
from .export import TOOLS, export

_log = logging.getLogger("ggufc")
"""What a user should know and needn't act on; without handlers the lines go to standard error."""


def cached_bundle(
    model: Path,
    *,
    kv: str | None = None,
    archdefs: Iterable[Path] = (),
    progress: Progress = silent,
) -> Bundle:
    """The bundle of a `.gguf` in the user's cache, compiled now where it isn't there whole.

    Its link to the weights is of the time when it was made: who runs it gives the file at hand.

    Raises:
        InputError, UnsupportedError: as `load`.
    """
    definitions = tuple(archdefs)
    opened = open_model(model, definitions)
    kv = chosen_kv(opened.graph, kv)
    folder = cache_directory() / cache_key(opened, host_target(), kv)
    if os.path.lexists(folder):  # False, too, where one above may not be entered, which the check of the place tells
        try:
            bundle = read_bundle(folder)
            for name in bundle.manifest["files"]:
                bundle.file(name)
            return bundle
        except InputError:
            _log.warning("%s: a damaged entry of the cache; it is compiled again", folder)
            shutil.rmtree(folder, ignore_errors=True)  # an export replaces whole bundles alone
    _check_place(folder.parent)
    return export(model, folder, kv=kv, archdefs=definitions, progress=progress)


def _check_place(folder: Path) -> None:
    """Whether the user's cache can be written to.

    Raises:
        InputError: it can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK) else os.strerror(errno.EACCES)
    except OSError as error:
        reason = error.strerror
    if reason:
        raise InputError(f"{folder}: no place to compile the model to: {reason}; XDG_CACHE_HOME names another")


def cache_key(model: Model, target: Target, kv: str) -> str:
    """What a compiled module depends on, as a short name for a folder."""
    parts = [
        importlib.metadata.version("ggufc"),
        *(importlib.metadata.version(name) for name in TOOLS),
        model.file.header_sha256(),
        str(model.file.size),
        model.definition.sha256,
        repr(target),
        kv,
        _source_sha256(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _source_sha256() -> str:
    """The compiler's own source, so that a changed checkout never runs a stale module."""
    root = Path(__file__).parents[2]
    sources = sorted(p for d in ("frontend", "graph", "passes", "backends") for p in (root / d).rglob("*.py"))
    return "".join(sha256(p) for p in sources)
