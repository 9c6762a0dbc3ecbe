"""Opens a bundle or a model for running, on the backend of one's choice."""

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ..frontend.errors import InputError, UnsupportedError
from ..frontend.tokenizer import Tokenizer
from .bundle import Bundle, is_bundle, read_bundle
from .session import Facts, Session

BACKENDS = ("iree", "native", "xla")


def load(
    model: Path | str,
    backend: str = "iree",
    *,
    threads: int | None = None,
    kv: str = "f32",
    exact: bool = False,
    weights: Path | str | None = None,
    archdefs: Iterable[Path] = (),
    progress: Callable[[str], None] = lambda stage: None,
) -> Session:
    """A session over a bundle or a `.gguf`.

    Args:
        model: a bundle's folder, or a `.gguf`, which for the backend `iree` is compiled once into the user's cache.
        backend: `iree` (the compiled module), `native` (kernels called from Python on the mapped file) or `xla` (the
            portable module on XLA's CPU client).
        threads: workers; None is one for each core this process may use.
        kv: element type of the caches where a `.gguf` is given; a bundle has its own.
        exact: backend `native`: float32 arithmetic on dequantized weights instead of the fast kernels.
        weights: the GGUF of a bundle whose link to it is broken.
        archdefs: directories of definitions that go before the shipped ones.
        progress: told of each stage of a compilation.

    Raises:
        InputError: a damaged file, or words that mean nothing here.
        UnsupportedError: an architecture, type or target that this version or bundle hasn't.
    """
    if backend not in BACKENDS:
        raise InputError(f"no backend {backend!r}; there are {', '.join(BACKENDS)}")
    if exact and backend != "native":
        raise InputError(f"exact arithmetic is the native backend's; {backend} has no such mode")
    path = Path(model)
    if weights and not path.is_dir():
        raise InputError(f"{path}: is no bundle, so it takes no other weights")
    workers = usable_cores() if threads is None else threads
    if workers < 1:
        raise InputError(f"{workers} threads: wanted one at least")
    if path.is_dir():
        bundle = read_bundle(path)
        file = bundle.weights(Path(weights) if weights else None)
        if backend == "iree":
            return _iree(bundle, file, workers)
        return _on_source(file, backend, workers, bundle.manifest["kv"], exact, archdefs, bundle)
    if backend == "iree":
        return _iree(bundle_of(path, kv=kv, archdefs=archdefs, progress=progress), path, workers)
    return _on_source(path, backend, workers, kv, exact, archdefs, None)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_directory() -> Path:
    """Where models that are run without an export are compiled to."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggufc"


def bundle_of(
    model: Path,
    *,
    kv: str = "f32",
    archdefs: Iterable[Path] = (),
    progress: Callable[[str], None] = lambda stage: None,
) -> Bundle:
    """The bundle itself, or the one of a `.gguf` in the user's cache, compiled now where it isn't there.

    Raises:
        InputError, UnsupportedError: as `load`.
    """
    if model.is_dir():
        return read_bundle(model)
    from ..graph.model import open_model
    from .export import cache_key, export
    from .native.target import host_target

    folder = cache_directory() / cache_key(open_model(model, archdefs), host_target(), kv)
    if is_bundle(folder):
        return read_bundle(folder)
    return export(model, folder, kv=kv, archdefs=archdefs, progress=progress)


def _iree(bundle: Bundle, weights: Path, threads: int) -> Session:
    from .iree.runtime import IreeExecutor

    manifest = bundle.manifest
    target = next(iter(manifest["targets"].values()))
    executor = IreeExecutor(
        bundle.file(target["file"]), weights, bundle.parameters, bundle.caches, tuple(manifest["entries"]), threads
    )
    tokenizer = partial(_bundled_tokenizer, bundle)
    entries = manifest["entries"]
    pooled = "encode" in entries and entries["encode"]["results"][0]["shape"][0] == 1
    facts = Facts(manifest["context_length"], manifest["vocabulary"], frozenset(entries), pooled)
    return Session(executor, facts, tokenizer)


def _bundled_tokenizer(bundle: Bundle) -> Tokenizer:
    if "missing" in bundle.manifest["tokenizer"]:
        raise UnsupportedError(bundle.manifest["tokenizer"]["missing"])
    for name in bundle.manifest["files"]:
        if name.startswith("tokenizer"):
            bundle.file(name)
    return Tokenizer.load(bundle.path)


def _on_source(
    path: Path, backend: str, threads: int, kv: str, exact: bool, archdefs: Iterable[Path], bundle: Bundle | None
) -> Session:
    """A session of a backend that needs the exporter's packages: it lowers the model again."""
    from ..graph.model import open_model
    from .export import entry_graphs

    model = open_model(path, archdefs)
    graphs = entry_graphs(model, kv)
    if backend == "native":
        from .native.executor import NativeExecutor

        executor = NativeExecutor(graphs, model.file.tensor_bytes, threads, exact)
    else:
        from .bundle import MODULE
        from .jax.executor import XlaExecutor
        from .jax.module import portable_module

        text = bundle.file(MODULE).read_text("utf-8") if bundle else portable_module(graphs.values())
        executor = XlaExecutor(text, graphs, model.file.tensor_bytes)
    tokenizer = partial(Tokenizer.from_metadata, model.file.metadata)
    pooled = "encode" in graphs and graphs["encode"].results[0].type.shape[0] == 1
    facts = Facts(model.context_length, model.vocabulary, frozenset(graphs), pooled)
    return Session(executor, facts, tokenizer)
