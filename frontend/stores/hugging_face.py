"""The Hugging Face cache."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ..given import read_file
from ..splits import split_name, split_number, split_paths
from .folders import expanded, home, is_dir, listed, unreadable, walk
from .stored import StoredModel, blob_fault, unread

HUGGING_FACE = "Hugging Face"
_MOST_REVISION = 1 << 10
"""Bytes of the file that names a revision, which has 40."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Repository:
    """One repository of the Hugging Face cache, at the revision that `refs/main` names."""

    name: str
    folder: Path
    models: tuple[StoredModel, ...]
    fault: str = ""
    """Why there is no model, where there is none."""


def hugging_face_folder() -> Path:
    """Where the Hugging Face cache is, by the rules of huggingface_hub.

    $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else `hub` in $HF_HOME, else `huggingface/hub` in $XDG_CACHE_HOME or
    ~/.cache.
    """
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if named := os.environ.get(variable):
            return expanded(named)
    if own := os.environ.get("HF_HOME"):
        return expanded(own) / "hub"
    caches = os.environ.get("XDG_CACHE_HOME")
    return (expanded(caches) if caches else home() / ".cache") / "huggingface" / "hub"


def hugging_face_repositories() -> list[Repository]:
    """Every model's repository in the Hugging Face cache, by name."""
    found = []
    for folder in listed(hugging_face_folder()):
        kind, *parts = folder.name.split("--")
        if kind == "models" and parts and is_dir(folder):
            found.append(_repository("/".join(parts), folder))
    return found


def hugging_face_models() -> list[StoredModel]:
    """The models of all repositories; one that has GGUFs, but doesn't say of which revision, stands there itself."""
    found: list[StoredModel] = []
    for repository in hugging_face_repositories():
        found += repository.models
        if not repository.models and any(p.name.endswith(".gguf") for p in walk(repository.folder / "snapshots", None)):
            found.append(StoredModel(HUGGING_FACE, repository.name, repository.folder, fault=repository.fault))
    return found


def hugging_face_unreadable() -> list[str]:
    """The folders of the cache that are there and can't be listed, with the reason."""
    return list(unreadable(hugging_face_folder(), 3))


def _repository(name: str, folder: Path) -> Repository:
    snapshot = _snapshot(folder)
    if isinstance(snapshot, str):
        return Repository(name, folder, (), snapshot)
    files = [p for p in walk(snapshot, None) if p.name.endswith(".gguf") and not _is_beside_a_model(p.name)]
    firsts = sorted({_first_part(path) for path in files})
    labels = [_quantization(path) for path in firsts]
    models = [
        _model(f"{name}:{label if labels.count(label) == 1 and label else p.relative_to(snapshot)}", p)
        for p, label in zip(firsts, labels, strict=True)
    ]
    fault = "" if models else _hindrance(folder, snapshot, 3) or f"{snapshot}: has no GGUF of a model"
    return Repository(name, folder, tuple(models), fault)


def _first_part(path: Path) -> Path:
    """The first file of the model that a file belongs to."""
    number = split_number(path.name)
    return path.with_name(split_name(number[0], 1, number[2])) if number else path


def _snapshot(folder: Path) -> Path | str:
    """The snapshot of the revision that `refs/main` names, the newest where it names none; or why there is none."""
    snapshots = [p for p in listed(folder / "snapshots") if is_dir(p)]
    main = folder / "refs" / "main"
    try:
        revision = read_file(main, _MOST_REVISION).decode("latin-1").strip()
    except (OSError, ValueError) as error:
        if os.path.lexists(main) or not isinstance(error, FileNotFoundError):
            return unread(main, error, "download the model again")
        if snapshots:
            return max(snapshots, key=lambda p: (p.stat().st_mtime, p.name))
        missing = f"{folder}: has no snapshot; download the model again"
        return _hindrance(folder, folder / "snapshots", 0) or missing
    found = next((p for p in snapshots if p.name == revision), None)
    if found:
        return found
    there = f"; there is {', '.join(p.name for p in snapshots)}" if snapshots else ""
    missing = f"{main}: names revision {revision[:80]!r}, which has no snapshot{there}"
    return _hindrance(folder, folder / "snapshots", 0) or missing


def _hindrance(folder: Path, inside: Path, depth: int) -> str:
    """Why a repository has no model, where it is that a folder inside may not be read, or a download has not ended."""
    if closed := next(unreadable(inside, depth), ""):
        return closed
    parts = [p for p in listed(folder / "blobs") if p.name.endswith(".incomplete")]
    return f"{parts[0]}: an unfinished download; download the model again" if parts else ""


def _model(name: str, path: Path) -> StoredModel:
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
    return blob_fault(Path(os.path.normpath(blob)), None, "download the model again")


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
