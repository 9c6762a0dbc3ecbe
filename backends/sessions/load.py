"""Opens a bundle or a model for running, on the backend of one's choice."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...frontend.chat.templates import ChatTemplates
from ...frontend.definitions import as_paths
from ...frontend.errors import InputError, UnsupportedError
from ...frontend.splits import split_paths
from ...frontend.tokenizer import Tokenizer
from .. import BACKENDS
from ..bundles.bundle import MODULE, Bundle
from ..bundles.manifest import entries_of
from ..bundles.source import activations_of, check_archdefs, check_own_kv, located, lowered
from ..caches import check_kv, chosen_kv
from ..host.cores import check_threads, usable_cores
from ..host.extras import exporting
from ..host.machine import best_target, this_machine
from ..progress import Progress, silent
from .session import Facts, Session


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
    progress: Progress = silent,
) -> Session:
    """A session over a bundle or a `.gguf`.

    Args:
        model: a bundle's folder, or a `.gguf`, which for the backend `iree` is compiled once into the user's cache; or
            the name of one in the Ollama store or the Hugging Face cache.
        backend: `iree` (the compiled module), `native` (kernels called from Python on the mapped file) or `xla` (the
            portable module on XLA's CPU client).
        threads: workers; None is one for each core that this process may use (`usable_cores`).
        kv: element type of the caches where a `.gguf` is given, by default what `chosen_kv` says; a bundle has its own,
            and takes no other.
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
    check_threads(workers)
    check_kv(kv)
    progress("finding the model")
    bundle, file = located(model, weights)
    check_archdefs(bundle, definitions)
    check_own_kv(bundle, kv)
    if bundle:
        bundle.check_sizes()
    if backend != "iree":
        progress("lowering the model")
        return _on_source(file, backend, workers, bundle.manifest["kv"] if bundle else kv, exact, definitions, bundle)
    if bundle is None:
        from ..bundles.cache import cached_bundle

        bundle = cached_bundle(file, kv=kv, archdefs=definitions, progress=progress)
    target = _chosen_target(bundle)
    progress(f"loading the code for {target}")
    return _iree(bundle, target, file, workers)


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
    from ..iree.runtime import IreeExecutor

    manifest = bundle.manifest
    executor = IreeExecutor(
        bundle.file(manifest["targets"][target]["file"]),
        split_paths(weights, len(manifest["weights"])),
        bundle.parameters,
        bundle.caches,
        tuple(manifest["entries"]),
        threads,
    )
    tokenizer, chat_templates = _of_bundle(bundle)
    labels = manifest.get("labels", ())
    facts = _facts(manifest["entries"], manifest["context_length"], manifest["vocabulary"], labels, target)
    return Session(executor, facts, tokenizer, chat_templates)


def _facts(
    entries: Mapping[str, Any], context_length: int, vocabulary: int, labels: Iterable[str], target: str = ""
) -> Facts:
    """What a session must know; the entry points are as a manifest has them."""
    pooled = "encode" in entries and entries["encode"]["results"][0]["shape"][0] == 1
    return Facts(context_length, vocabulary, frozenset(entries), pooled, tuple(labels), target)


def _of_bundle(bundle: Bundle) -> tuple[Callable[[], Tokenizer], Callable[[], ChatTemplates]]:
    """What makes a bundle's tokenizer and its chat templates."""
    return (
        cache(partial(_bundled_tokenizer, bundle)),
        cache(partial(ChatTemplates.load, bundle.manifest["chat"], bundle.file)),
    )


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
    from ...passes.pipeline import entry_graphs

    model = lowered(bundle, path, archdefs)
    graphs = entry_graphs(model, chosen_kv(model.graph, kv, exact), fuse=not exact)
    if backend == "native":
        from ..native.executor import NativeExecutor

        executor = NativeExecutor(graphs, model.file.tensor_bytes, threads, exact, activations_of(bundle))
    else:
        from ..jax.executor import XlaExecutor
        from ..jax.module import portable_module

        text = bundle.file(MODULE).read_text("utf-8") if bundle else portable_module(graphs.values())
        executor = XlaExecutor(text, graphs, model.file.tensor_bytes)
    if bundle:
        tokenizer, chat_templates = _of_bundle(bundle)
    else:
        tokenizer = cache(partial(Tokenizer.of, model.file))
        chat_templates = cache(partial(ChatTemplates.from_metadata, model.file.metadata))
    facts = _facts(entries_of(graphs), model.context_length, model.vocabulary, model.labels)
    return Session(executor, facts, tokenizer, chat_templates)
