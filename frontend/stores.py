"""The models that other programs keep on this machine: the Ollama store and the Hugging Face cache.

Both are read as they lie: nothing is downloaded, written or locked. A name that somebody types is only ever compared
with what a listing gives, so it can't lead out of a store.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from .splits import split_name, split_number, split_paths

OLLAMA, HUGGING_FACE = "Ollama", "Hugging Face"
_OLLAMA_SYSTEM = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama's installer for Linux lets the service keep its models."""
_MODEL_LAYER, _ADAPTER_LAYER, _TEMPLATE_LAYER = (
    f"application/vnd.ollama.image.{kind}" for kind in ("model", "adapter", "template")
)
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_MANIFEST_BYTES = 4 << 20
_MOST_ENTRIES = 20_000
"""Of one listing: more than any store has, few enough to be read in a moment."""


@dataclass(frozen=True)
class StoredModel:
    """A model in a store. `fault` says why it can't be read, where it can't."""

    origin: str
    name: str
    """What to type, in full where a shorter name would do too."""
    path: Path
    """The file with the model, of several the first."""
    sha256: str | None = None
    """Of the file's bytes, where the store tells it."""
    fault: str = ""
    template: Path | None = None
    """Ollama's chat template, in Go's language, where the model has one beside its file."""


@dataclass(frozen=True)
class Repository:
    """One repository of the Hugging Face cache, at the revision that `refs/main` names."""

    name: str
    folder: Path
    models: tuple[StoredModel, ...]
    fault: str = ""
    """Why there is no model, where there is none."""


def ollama_folders() -> tuple[Path, ...]:
    """Where Ollama's models are: $OLLAMA_MODELS, else the user's own and the service's."""
    named = os.environ.get("OLLAMA_MODELS")
    return (Path(named),) if named else (_home() / ".ollama" / "models", _OLLAMA_SYSTEM)


def hugging_face_folder() -> Path:
    """Where the Hugging Face cache is, by the rules of huggingface_hub.

    $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else `hub` in $HF_HOME, else `huggingface/hub` in $XDG_CACHE_HOME or
    ~/.cache.
    """
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if named := os.environ.get(variable):
            return _expanded(named)
    if home := os.environ.get("HF_HOME"):
        return _expanded(home) / "hub"
    caches = os.environ.get("XDG_CACHE_HOME")
    return (_expanded(caches) if caches else _home() / ".cache") / "huggingface" / "hub"


def ollama_models() -> list[StoredModel]:
    """Every model of the Ollama store, by name.

    A manifest lies at manifests/HOST/NAMESPACE/MODEL/TAG and names, in a layer of its own media type, the blob that is
    the GGUF; the blob's name is the sha256 of its bytes.
    """
    found: dict[str, StoredModel] = {}
    for folder in ollama_folders():
        manifests = folder / "manifests"
        for path in islice(_walk(manifests, 4), _MOST_ENTRIES):
            host, namespace, model, tag = path.relative_to(manifests).parts
            name = _ollama_name(host, namespace, model, tag)
            found.setdefault(name, _ollama_model(folder, name, path))
    return [found[name] for name in sorted(found)]


def _ollama_name(host: str, namespace: str, model: str, tag: str) -> str:
    """A model's name without the parts that Ollama takes for granted."""
    short = model if (host, namespace) == ("registry.ollama.ai", "library") else f"{namespace}/{model}"
    return f"{short if host == 'registry.ollama.ai' else f'{host}/{short}'}:{tag}"


def _ollama_model(folder: Path, name: str, manifest: Path) -> StoredModel:
    try:
        layers = _layers(manifest)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return StoredModel(OLLAMA, name, manifest, fault=f"{manifest}: {reason}; pull the model again")
    models = [layer for layer in layers if layer["mediaType"] == _MODEL_LAYER]
    if len(models) != 1:
        held = f"{len(models)} files with a model" if models else "no GGUF"
        return StoredModel(OLLAMA, name, manifest, fault=f"{manifest}: lists {held}; ggufc reads one")
    digest = _DIGEST.fullmatch(models[0]["digest"])
    if not digest:
        return StoredModel(OLLAMA, name, manifest, fault=f"{manifest}: {models[0]['digest'][:80]!r} is no sha256")
    blob = _ollama_blob(folder, digest[1])
    fault = _blob_fault(blob, models[0].get("size"), "pull the model again")
    if not fault and any(layer["mediaType"] == _ADAPTER_LAYER for layer in layers):
        fault = f"{manifest}: the model has an adapter (LoRA), which ggufc can't apply; {blob} is the model without it"
    templates = [layer for layer in layers if layer["mediaType"] == _TEMPLATE_LAYER]
    go = _DIGEST.fullmatch(templates[-1]["digest"]) if templates else None
    return StoredModel(OLLAMA, name, blob, digest[1], fault, _ollama_blob(folder, go[1]) if go else None)


def _layers(manifest: Path) -> list[dict[str, Any]]:
    """The layers of an image's manifest.

    Raises:
        OSError: it can't be read.
        ValueError: it is none.
    """
    status = manifest.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_MANIFEST_BYTES:
        raise ValueError(f"no file of up to {_MOST_MANIFEST_BYTES} bytes, as a manifest is")
    try:
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("damaged, no manifest") from None
    if not isinstance(layers, list) or not all(
        isinstance(layer, dict) and isinstance(layer.get("mediaType"), str) and isinstance(layer.get("digest"), str)
        for layer in layers
    ):
        raise ValueError("damaged, its layers have no media type and digest")
    return layers


def _ollama_blob(folder: Path, sha256: str) -> Path:
    """A blob's place; before version 0.1.32 Ollama wrote a colon into its name."""
    new, old = (folder / "blobs" / f"sha256{mark}{sha256}" for mark in "-:")
    return old if not os.path.lexists(new) and os.path.lexists(old) else new


def hugging_face_repositories() -> list[Repository]:
    """Every model's repository in the Hugging Face cache, by name."""
    found = []
    for folder in _listed(hugging_face_folder()):
        kind, *parts = folder.name.split("--")
        if kind == "models" and parts and _is_dir(folder):
            found.append(_repository("/".join(parts), folder))
    return found


def _repository(name: str, folder: Path) -> Repository:
    snapshot = _snapshot(folder)
    if isinstance(snapshot, str):
        return Repository(name, folder, (), snapshot)
    files = [p for p in _walk(snapshot, None) if p.name.endswith(".gguf") and not _is_beside_a_model(p.name)]
    firsts = sorted({_first_part(path) for path in files})
    labels = [_quantization(path) for path in firsts]
    models = [
        _hugging_face_model(f"{name}:{label if labels.count(label) == 1 and label else p.relative_to(snapshot)}", p)
        for p, label in zip(firsts, labels, strict=True)
    ]
    fault = "" if models else _unfinished(folder) or f"{snapshot}: has no GGUF of a model"
    return Repository(name, folder, tuple(models), fault)


def _first_part(path: Path) -> Path:
    """The first file of the model that a file belongs to."""
    number = split_number(path.name)
    return path.with_name(split_name(number[0], 1, number[2])) if number else path


def _snapshot(folder: Path) -> Path | str:
    """The snapshot of the revision that `refs/main` names, the newest where it names none; or why there is none."""
    snapshots = [p for p in _listed(folder / "snapshots") if _is_dir(p)]
    main = folder / "refs" / "main"
    try:
        revision = main.read_text("ascii").strip()
    except (OSError, ValueError):
        return max(snapshots, key=lambda p: (p.stat().st_mtime, p.name)) if snapshots else _unfinished(folder)
    found = next((p for p in snapshots if p.name == revision), None)
    if found:
        return found
    there = f"; there is {', '.join(p.name for p in snapshots)}" if snapshots else ""
    return _unfinished(folder) or f"{main}: names revision {revision[:80]!r}, which has no snapshot{there}"


def _unfinished(folder: Path) -> str:
    """What is to be said of a repository's blob that was not downloaded to its end, if there is one."""
    parts = [p for p in _listed(folder / "blobs") if p.name.endswith(".incomplete")]
    return f"{parts[0]}: an unfinished download; download the model again" if parts else ""


def _hugging_face_model(name: str, path: Path) -> StoredModel:
    number = split_number(path.name)
    paths = split_paths(path, number[2] if number else 1)
    fault = next(filter(None, map(_link_fault, paths)), "")
    blob = path.readlink() if path.is_symlink() else path
    known = len(paths) == 1 and not fault and blob.parent.name == "blobs" and _SHA256.fullmatch(blob.name)
    return StoredModel(HUGGING_FACE, name, path, blob.name if known else None, fault)


def _link_fault(path: Path) -> str:
    """What is wrong with a file of a snapshot, which is a link to a blob."""
    if not os.path.lexists(path):
        return f"{path}: no such file; download this part of the model too"
    blob = path.parent / path.readlink() if path.is_symlink() else path
    return _blob_fault(Path(os.path.normpath(blob)), None, "download the model again")


def _blob_fault(blob: Path, size: Any, remedy: str) -> str:
    """What is wrong with a file that a store names, of `size` bytes where the store tells; empty for a sound one."""
    try:
        status = blob.stat()
    except OSError as error:
        begun = any(p.name.startswith(f"{blob.name}") for p in _listed(blob.parent) if p != blob)
        return f"{blob}: {'an unfinished download' if begun else error.strerror}; {remedy}"
    if not stat.S_ISREG(status.st_mode):
        return f"{blob}: is no file"
    if isinstance(size, int) and status.st_size != size:
        return f"{blob}: {status.st_size} bytes, the store says {size}; {remedy}"
    try:
        with blob.open("rb"):
            return ""
    except OSError as error:
        return f"{blob}: {error.strerror}"


def _is_beside_a_model(name: str) -> bool:
    """Whether a GGUF is no model of its own: the projector of a vision model, or what quantizing was guided by."""
    stem = name.lower().removesuffix(".gguf")
    return "mmproj" in stem or stem.startswith("imatrix") or stem.endswith("imatrix")


_QUANT = re.compile(
    r"(?<![a-z0-9])(?:ud-)?(?:i?q\d+_\w+|tq\d_\d|mxfp4(?:_moe)?|nvfp4|bf16|f16|fp16|f32|fp32)(?![a-z0-9])",
    re.IGNORECASE,
)


def _quantization(path: Path) -> str:
    """The type that a file's name says its weights have, such as Q4_K_M; empty where it says none."""
    number = split_number(path.name)
    found = _QUANT.findall(number[0] if number else path.name.removesuffix(".gguf"))
    return found[-1] if found else ""


def choices(repository: Repository, wanted: str) -> list[StoredModel]:
    """The models of a repository that `wanted` names.

    It is what follows the colon in a model's name, a file's name or path, or a word of these such as Q4_K.
    """
    word = wanted.casefold()
    named = [
        model
        for model in repository.models
        if word in (model.name.removeprefix(f"{repository.name}:").casefold(), model.path.name.casefold())
        or model.path.as_posix().casefold().endswith(f"/{word}")
    ]
    part = re.compile(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9_])")
    return named or [m for m in repository.models if part.search(f"{m.path.parent.name}/{m.path.name}".casefold())]


def _walk(folder: Path, depth: int | None) -> Iterator[Path]:
    """Files below a folder, at just that depth or at any; what can't be read is left out."""
    for path in _listed(folder):
        if _is_dir(path) and not path.is_symlink():
            if depth != 1:
                yield from _walk(path, None if depth is None else depth - 1)
        elif depth in (None, 1) and not path.name.startswith("."):
            yield path


def _listed(folder: Path) -> list[Path]:
    """A folder's entries, sorted; none where it can't be read."""
    with suppress(OSError, ValueError):
        return sorted(islice(folder.iterdir(), _MOST_ENTRIES))
    return []


def _is_dir(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_dir()
    return False


def _home() -> Path:
    with suppress(RuntimeError):
        return Path.home()
    return Path("/")


def _expanded(text: str) -> Path:
    path = Path(os.path.expandvars(text))
    with suppress(RuntimeError):
        return path.expanduser()
    return path
