"""Opens a bundle or a model for running, on the backend of one's choice."""

import logging
import os
import shutil
from collections.abc import Callable, Iterable
from functools import cache, partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

from ..frontend.archdef import read as read_definition
from ..frontend.chat_template import ChatTemplates
from ..frontend.definitions import SUFFIX, as_paths
from ..frontend.errors import InputError, UnsupportedError
from ..frontend.models import find_model
from ..frontend.splits import split_paths
from ..frontend.tokenizer import Tokenizer
from .bundle import Bundle, read_bundle
from .cores import usable_cores
from .executor import check_kv, chosen_kv
from .extras import exporting
from .machine import best_target, this_machine
from .session import Facts, Session

if TYPE_CHECKING:
    from ..graph.model import Model

_log = logging.getLogger("ggufc")
"""What a user should know and needn't act on; without handlers the lines go to standard error."""

MOST_THREADS = 1024
BACKENDS = ("iree", "native", "xla")


@exporting()
def load(
    model: Path | str,
    backend: str = "iree",
    *,
    threads: int | None = None,
    kv: str | None = None,
    exact: bool = False,
    weights: Path | str | None = None,
    archdefs: Iterable[Path | str] | Path | str = (),
    progress: Callable[[str], None] = lambda stage: None,
) -> Session:
    """A session over a bundle or a `.gguf`.

    Args:
        model: a bundle's folder, or a `.gguf`, which for the backend `iree` is compiled once into the user's cache; or
            the name of one in the Ollama store or the Hugging Face cache.
        backend: `iree` (the compiled module), `native` (kernels called from Python on the mapped file) or `xla` (the
            portable module on XLA's CPU client).
        threads: workers; None is one for each core that this process may use (`usable_cores`).
        kv: element type of the caches where a `.gguf` is given, by default what `chosen_kv` says; a bundle has its own.
        exact: backend `native`: float32 arithmetic on dequantized weights instead of the fast kernels.
        weights: the GGUF of a bundle whose link to it is broken.
        archdefs: directories of definitions that go before the shipped ones.
        progress: told of each stage.

    Raises:
        InputError: a damaged file, or words that mean nothing here.
        UnsupportedError: an architecture, type or target that this version or bundle hasn't.
    """
    if backend not in BACKENDS:
        raise InputError(f"no backend {backend!r}; there are {', '.join(BACKENDS)}")
    if exact and backend != "native":
        raise InputError(f"exact arithmetic is the native backend's; {backend} has no such mode")
    definitions = as_paths(archdefs)
    workers = usable_cores() if threads is None else threads
    if not isinstance(workers, Integral) or not 1 <= workers <= MOST_THREADS:
        raise InputError(f"{workers!r} threads: wanted a whole number from 1 to {MOST_THREADS}")
    check_kv(kv)
    progress("finding the model")
    bundle, file = located(model, weights)
    _check_archdefs(bundle, definitions)
    if backend != "iree":
        progress("lowering the model")
        return _on_source(file, backend, workers, bundle.manifest["kv"] if bundle else kv, exact, definitions, bundle)
    bundle = bundle or cached_bundle(file, kv=kv, archdefs=definitions, progress=progress)
    target = _chosen_target(bundle)
    progress(f"loading the code for {target}")
    return _iree(bundle, target, file, workers)


def located(model: Path | str, weights: Path | str | None = None) -> tuple[Bundle | None, Path]:
    """The bundle that is meant, None for a `.gguf`, and the file that holds the weights, of several the first.

    Args:
        model: a bundle, a `.gguf`, or a name that `find_model` knows.
        weights: the GGUF of a bundle whose link to it is broken.

    Raises:
        InputError: the bundle is damaged, its weights are gone or others, a `.gguf` was given other weights, or as
            `find_model`.
    """
    path = find_model(model)
    if path.is_dir():
        bundle = read_bundle(path)
        return bundle, bundle.weights(None if weights is None else Path(weights))[0]
    if weights is not None:
        raise InputError(f"{path}: is no bundle, so it takes no other weights")
    return None, path


def lowered(bundle: Bundle | None, file: Path, archdefs: Iterable[Path] = (), *, all_read: bool = True) -> "Model":
    """The model of a file, lowered by the definition that its bundle was compiled with and holds, if it has one.

    `all_read` is `open_model`'s.

    Raises:
        InputError: a bundle was given definitions, its own is damaged, or as `open_model`.
        UnsupportedError: as `open_model`.
    """
    from ..graph.model import lower_model, open_model
    from ..passes.first_layers import first_layers

    if not bundle:
        return open_model(file, archdefs, all_read=all_read)
    _check_archdefs(bundle, archdefs)
    architecture = bundle.manifest["architecture"]
    definition = read_definition(bundle.file(f"{architecture['name']}{SUFFIX}"))
    if (definition.name, definition.sha256) != (architecture["name"], architecture["sha256"]):
        raise InputError(f"{definition.source}: not the definition that the manifest names; export the model again")
    if bundle.has_archive:
        from .archive import open_archive

        model = lower_model(open_archive(bundle, file), definition=definition)
    else:
        model = open_model(file, definition=definition)
    return first_layers(model, bundle.manifest.get("layers"))


def _check_archdefs(bundle: Bundle | None, archdefs: Iterable[Path]) -> None:
    """Definitions are for what is compiled yet.

    Raises:
        InputError: there are some for a bundle.
    """
    if bundle and tuple(archdefs):
        raise InputError(
            f"{bundle.path}: compiled with a definition already, so it takes no --archdefs; export it with them"
        )


def cache_directory() -> Path:
    """Where models that are run without an export are compiled to."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggufc"


def cached_bundle(
    model: Path,
    *,
    kv: str | None = None,
    archdefs: Iterable[Path] = (),
    progress: Callable[[str], None] = lambda stage: None,
) -> Bundle:
    """The bundle of a `.gguf` in the user's cache, compiled now where it isn't there whole.

    Its link to the weights is of the time when it was made: who runs it gives the file at hand.

    Raises:
        InputError, UnsupportedError: as `load`.
    """
    from ..graph.model import open_model
    from .export import cache_key, export
    from .native.target import host_target

    definitions = tuple(archdefs)
    opened = open_model(model, definitions)
    kv = chosen_kv(opened.graph, kv)
    folder = cache_directory() / cache_key(opened, host_target(), kv)
    if folder.exists():
        try:
            bundle = read_bundle(folder)
            for name in bundle.manifest["files"]:
                bundle.file(name)
            return bundle
        except InputError:
            _log.warning("%s: a damaged entry of the cache; it is compiled again", folder)
            shutil.rmtree(folder, ignore_errors=True)  # an export replaces whole bundles alone
    return export(model, folder, kv=kv, archdefs=definitions, progress=progress)


def _chosen_target(bundle: Bundle) -> str:
    """The name of the compiled module that suits this machine best.

    Raises:
        UnsupportedError: the bundle has none that this machine can run.
    """
    compiled = {name: target for name, target in bundle.manifest["targets"].items() if "file" in target}
    if not compiled:
        raise UnsupportedError(f"{bundle.path}: has no compiled module; export the model with --emit vmfb")
    return best_target(compiled, str(bundle.path), this_machine())


def _iree(bundle: Bundle, target: str, weights: Path, threads: int) -> Session:
    """A session of a bundle's module for a target, over the weights whose first file is given."""
    from .iree.runtime import IreeExecutor

    manifest = bundle.manifest
    executor = IreeExecutor(
        bundle.file(manifest["targets"][target]["file"]),
        split_paths(weights, len(manifest["weights"])),
        bundle.parameters,
        bundle.caches,
        tuple(manifest["entries"]),
        threads,
    )
    tokenizer = cache(partial(_bundled_tokenizer, bundle))
    chat_templates = cache(partial(ChatTemplates.load, manifest["chat"], bundle.file))
    entries = manifest["entries"]
    pooled = "encode" in entries and entries["encode"]["results"][0]["shape"][0] == 1
    labels = tuple(manifest.get("labels", ()))
    facts = Facts(manifest["context_length"], manifest["vocabulary"], frozenset(entries), pooled, labels, target)
    return Session(executor, facts, tokenizer, chat_templates)


def _bundled_tokenizer(bundle: Bundle) -> Tokenizer:
    if "missing" in bundle.manifest["tokenizer"]:
        raise UnsupportedError(bundle.manifest["tokenizer"]["missing"])
    for name in bundle.manifest["files"]:
        if name.startswith("tokenizer"):
            bundle.file(name)
    tokenizer = Tokenizer.load(bundle.path)
    tokenizer.notes.extend(bundle.manifest["tokenizer"].get("notes", ()))
    return tokenizer


def _on_source(
    path: Path, backend: str, threads: int, kv: str | None, exact: bool, archdefs: Iterable[Path], bundle: Bundle | None
) -> Session:
    """A session of a backend that needs the exporter's packages: it lowers the model again."""
    from .export import entry_graphs

    model = lowered(bundle, path, archdefs)
    graphs = entry_graphs(model, chosen_kv(model.graph, kv, exact), fuse=not exact)
    if backend == "native":
        from .native.executor import NativeExecutor

        executor = NativeExecutor(graphs, model.file.tensor_bytes, threads, exact)
    else:
        from .bundle import MODULE
        from .jax.executor import XlaExecutor
        from .jax.module import portable_module

        text = bundle.file(MODULE).read_text("utf-8") if bundle else portable_module(graphs.values())
        executor = XlaExecutor(text, graphs, model.file.tensor_bytes)
    tokenizer = cache(partial(Tokenizer.from_metadata, model.file.metadata))
    chat_templates = cache(partial(ChatTemplates.from_metadata, model.file.metadata))
    pooled = "encode" in graphs and graphs["encode"].results[0].type.shape[0] == 1
    facts = Facts(model.context_length, model.vocabulary, frozenset(graphs), pooled, model.labels)
    return Session(executor, facts, tokenizer, chat_templates)
