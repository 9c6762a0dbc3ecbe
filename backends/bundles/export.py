"""From a GGUF to a bundle: the whole way of the data, each stage called once."""

import importlib.metadata
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...frontend.chat.templates import ChatTemplates
from ...frontend.definitions import SUFFIX, as_paths
from ...frontend.errors import InputError, UnsupportedError
from ...frontend.gguf.file import GgufFile
from ...frontend.models import find_model
from ...frontend.near import nearest
from ...frontend.paths import path_text
from ...frontend.tokenizer import Tokenizer
from ...graph.ir import Graph
from ...graph.model import Model, open_model
from ...passes import pipeline
from ...passes.first_layers import first_layers
from ..caches import cache_specs, check_kv, chosen_kv
from ..host.cores import usable_cores
from ..host.extras import exporting
from ..iree.parameters import Place, places
from ..native.target import Target, find_target
from ..progress import Progress, silent
from . import encode
from .bundle import ARCHIVE, EMITTED, METADATA, MODULE, PORTABLE, Bundle, read_bundle, weight_names
from .fingerprint import fingerprint
from .manifest import ENCODINGS, entries_of, tensors_of
from .writing import check_room, write_manifest, writing, written_aside

ACTIVATIONS = (16, 8)
"""Bits that prompts may round activations to."""
CODE_ROOM = 1 << 18
"""Bytes that the modules of a model of some layers take; of more it isn't known before they are compiled."""
TOOLS = ("iree-base-compiler", "jax", "jaxlib", "llvmlite")


@exporting()
def export(
    model: Path | str,
    output: Path | str,
    *,
    kv: str | None = None,
    activations: int = 16,
    targets: Sequence[Target | str] = (),
    emit: Sequence[str] = ("mlir", "vmfb"),
    static_library: bool = False,
    weights: str = "gguf",
    keep: Sequence[str] = (),
    copy_weights: bool = False,
    archdefs: Iterable[Path | str] | Path | str = (),
    flags: Sequence[str] = (),
    layers: int | None = None,
    progress: Progress = silent,
) -> Bundle:
    """Compiles a GGUF into a bundle at `output`.

    Args:
        model: the `.gguf` file, or the name of one in the Ollama store or the Hugging Face cache; its weights stay
            where they are and are linked to, unless `weights` says otherwise.
        output: the folder to write; a bundle that is there is replaced when the new one is whole.
        kv: element type of the KV caches, a key of `KV_TYPES`; None is what `chosen_kv` says.
        activations: bits that prompts round them to before a product with quantized weights: 16, or 8, which is faster
            and less near, on targets that multiply bytes.
        targets: machines to compile for, each as it is or in the words of `find_target`; none means this one.
        emit: what to write: `mlir` (the portable module as text), `mlirbc` (the same as StableHLO's portable artifact,
            which later versions read) and `vmfb` (a compiled module for each target, which alone can be loaded).
        static_library: write for each target an object and a header, too, for linking the code into a program, and the
            module that calls it.
        weights: `gguf`; or put all of them into one archive in the bundle that IREE's own tools load, as they are
            (`irpa`), or with the matrices encoded anew (`f32`, `bf16`, or `int8` with a scale for each row).
        keep: patterns of the names of matrices that aren't encoded anew, such as `token_embd*`.
        copy_weights: put the file itself into the bundle, so that it can be moved alone, as one with an archive can
            anyway.
        archdefs: directories of definitions that go before the shipped ones.
        flags: more flags for `iree-compile`, which begin with `--iree-`.
        layers: for debugging, cut the model short behind so many layers; what stands behind the last one stays.
        progress: told of each stage.

    Raises:
        InputError: the model or a definition is damaged, `kv`, `weights`, `keep`, `emit` or a target is none, a flag
            is refused, or `output` can't be written.
        UnsupportedError: an architecture, tensor type or target that this version hasn't.
    """
    path, folder = find_model(model), Path(os.path.realpath(path_text(output, "the output")))
    encode.check_encoding(weights, keep)
    _check_emitted(emit)
    chosen = tuple(find_target(t) if isinstance(t, str) else t for t in targets or ("host",))
    chosen = tuple({t.name: t for t in chosen}.values())
    progress("reading the header")
    source = open_model(path, as_paths(archdefs))
    opened, archived = first_layers(source, layers), weights != ENCODINGS[0]
    if any(part.path.resolve().is_relative_to(folder) for part in source.file.parts):
        raise InputError(f"{path}: lies in {folder}, which the export would replace; choose another place")
    check_kv(kv)
    if activations not in ACTIVATIONS:
        raise InputError(f"activations of {activations!r} bits; there are {', '.join(map(str, ACTIVATIONS))}")
    with written_aside(folder) as aside:
        # a tokenizer takes about what its tokens take in the header; an archive takes its room when it is begun
        copied = sum(part.size for part in source.file.parts) if copy_weights and not archived else 0
        check_room(aside, folder, copied + sum(part.keys_end for part in source.file.parts) + CODE_ROOM)
        if archived:
            with writing(folder):
                (aside / METADATA).write_bytes(source.file.metadata_bytes())
                opened = first_layers(encode.begin(source, aside / ARCHIVE, weights, keep), layers)
        with writing(folder):  # what is wrong with them is told before the long work
            (aside / f"{opened.definition.name}{SUFFIX}").write_bytes(opened.definition.text.encode())
            tokenizer = _write_tokenizer(opened, aside)
            chat = ChatTemplates.from_metadata(opened.file.metadata).save(aside)
        kv = chosen_kv(opened.graph, kv)
        entries = pipeline.entry_graphs(opened, kv)
        progress("tracing")
        from ..iree.compile import check_flags  # slow to import: after the header and the output were found good
        from ..jax.module import portable_artifact, portable_module

        check_flags(flags)
        text = portable_module(entries.values())
        with writing(folder):
            if "mlir" in emit:
                (aside / MODULE).write_text(text, "utf-8")
            if "mlirbc" in emit:
                (aside / PORTABLE).write_bytes(portable_artifact(text))
        modules = _Modules(text, places(opened.file), flags, activations, aside, folder)
        for target in chosen:
            if "vmfb" in emit:
                progress(f"compiling for {target.name}")
                modules.compile(target)
            if static_library:
                progress(f"compiling a library for {target.name}")
                modules.compile_library(target)
        if not archived:
            progress("copying the weights" if copy_weights else "linking the weights")
            _put(source.file, aside, folder, copy_weights)
        else:
            progress(f"writing the weights as {weights}")
            with writing(folder):
                encode.fill(source.file, opened.file, usable_cores())
        progress("writing")
        with writing(folder):
            held_as = [ARCHIVE] if archived else weight_names(len(source.file.parts))
            cut = {} if layers is None else {"layers": layers}
            facts = _manifest(opened, held_as, entries, modules, chosen, kv, tokenizer, chat)
            write_manifest(
                aside, {"encoding": weights, "activations": activations, "flags": list(flags), **cut, **facts}
            )
    return read_bundle(folder)


def _put(file: GgufFile, aside: Path, folder: Path, copy: bool) -> None:
    """Links to a model's files, or copies them."""
    for part, name in zip(file.parts, weight_names(len(file.parts)), strict=True):
        if copy:
            _copy(part.path, aside / name, folder)
        else:
            with writing(folder):
                (aside / name).symlink_to(part.path.resolve())


def _copy(source: Path, copy: Path, folder: Path) -> None:
    """Copies the weights to where `folder` is being made; an error says which of the two is to blame."""
    try:
        original = source.open("rb")
    except OSError as error:
        raise InputError(f"{source}: can't be read: {error.strerror}") from None
    with original, writing(folder), copy.open("wb") as written:
        shutil.copyfileobj(original, written, 1 << 20)


def _check_emitted(emit: Sequence[str]) -> None:
    for word in emit:
        if word not in EMITTED:
            raise InputError(f"can't emit {word!r}{nearest(word, EMITTED)}; there are {', '.join(EMITTED)}")
    if not emit:
        raise InputError(f"nothing to emit; there are {', '.join(EMITTED)}")


class _Modules:
    """The compiled modules of an export, written to the folder `aside` that becomes `folder`.

    Attributes:
        files: for each target what the manifest says of its files.
        parameters: for each parameter of the modules where it lies.
    """

    def __init__(
        self, text: str, at: Mapping[str, Place], flags: Sequence[str], activations: int, aside: Path, folder: Path
    ) -> None:
        self._text, self._places, self._flags, self._activations = text, at, flags, activations
        self._aside, self._folder = aside, folder
        self.files: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.parameters: dict[str, Place] = {}

    def compile(self, target: Target) -> None:
        """The module that is loaded."""
        from ..iree.compile import compile_module

        compiled = compile_module(self._text, self._places, target, self._flags, self._activations)
        self.parameters = compiled.parameters
        self.files[target.name]["file"] = self._write(target, ".vmfb", compiled.vmfb)

    def compile_library(self, target: Target) -> None:
        """The module whose code is in an object of its own."""
        from ..iree.compile import compile_library

        library = compile_library(self._text, self._places, target, self._flags, self._activations)
        self.parameters = library.parameters
        self.files[target.name]["library"] = {
            "module": self._write(target, ".static.vmfb", library.vmfb),
            "object": self._write(target, ".o", library.code),
            "header": self._write(target, ".h", library.header.encode()),
        }

    def _write(self, target: Target, suffix: str, data: bytes) -> str:
        name = f"model.{target.name}{suffix}"
        with writing(self._folder):
            (self._aside / name).write_bytes(data)
        return name


def _write_tokenizer(model: Model, folder: Path) -> dict[str, Any]:
    """The tokenizer in the bundle and what the manifest says of it; a model without one runs on token ids."""
    try:
        tokenizer = Tokenizer.of(model.file)
    except UnsupportedError as error:
        return {"missing": str(error), "stop_tokens": []}
    tokenizer.save(folder)
    return {"notes": list(tokenizer.notes), "stop_tokens": sorted(tokenizer.eog_ids)}


def _manifest(
    model: Model,
    held_as: Sequence[str],
    entries: dict[str, Graph],
    modules: _Modules,
    targets: Sequence[Target],
    kv: str,
    tokenizer: dict[str, Any],
    chat: dict[str, Any],
) -> dict[str, Any]:
    file = model.file
    return {
        "ggufc": importlib.metadata.version("ggufc"),
        "tools": {name: importlib.metadata.version(name) for name in TOOLS},
        "model": model.name.encode("utf-8", "replace").decode(),
        "architecture": {"name": model.definition.name, "sha256": model.definition.sha256},
        "weights": [
            {
                "file": place,
                "name": os.fsencode(part.path.name).decode("utf-8", "replace"),
                "size": part.size,
                "header_bytes": part.data_offset,
                "header_sha256": part.header_sha256(),
                "fingerprint": fingerprint(
                    part.path, [(t.offset, t.nbytes) for t in file.tensors.values() if t.part == n]
                ),
            }
            for n, (part, place) in enumerate(zip(file.parts, held_as, strict=True))
        ],
        "context_length": model.context_length,
        "vocabulary": model.vocabulary,
        "kv": kv,
        "caches": [asdict(cache) for cache in cache_specs(entries)],
        "entries": entries_of(entries),
        "tokenizer": tokenizer,
        "chat": chat,
        "labels": list(model.labels),
        "targets": {
            t.name: {**modules.files[t.name], "triple": t.triple, "cpu": t.cpu, "features": list(t.features)}
            for t in targets
        },
        "parameters": {name: [place.file, place.offset, place.nbytes] for name, place in modules.parameters.items()},
        "tensors": tensors_of(file),
    }
