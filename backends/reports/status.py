"""What this machine has: models, architectures, backends, its processor and the targets it can run."""

import importlib.metadata
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...frontend.definitions import Surveyed, survey
from ...frontend.errors import GgufcError, InputError
from ...frontend.gguf.reader import read_gguf
from ...frontend.models import is_bundle, local_models, unreadable_folders
from ...frontend.stores.hugging_face import HUGGING_FACE, hugging_face_folder, hugging_face_models
from ...frontend.stores.ollama import OLLAMA, ollama_folders, ollama_models
from ...frontend.stores.stored import StoredModel
from ..bundles.bundle import read_bundle
from ..host.cores import usable_cores
from ..host.folders import cache_directory
from ..host.machine import this_machine
from ..progress import Progress, silent

NEEDS: dict[str, tuple[str, ...]] = {
    "iree": ("iree-base-runtime",),
    "export": ("iree-base-compiler", "jax", "jaxlib", "llvmlite"),
    "native": ("llvmlite",),
    "xla": ("jax", "jaxlib", "llvmlite"),
    "llama.cpp": ("xllamacpp",),
}
"""The packages of each backend: `iree` alone runs bundles, with `export` models too; llama.cpp is to compare with."""
HERE = "here"


def status(archdefs: Iterable[Path] = (), progress: Progress = silent) -> dict[str, Any]:
    """Everything about this machine that ggufc goes by, ready for JSON; sizes in bytes.

    What can't be used is listed with its `error`, in the words that using it gives.

    Args:
        archdefs: directories of definitions that go before the shipped ones.
        progress: told before headers are read.
    """
    architectures = survey(archdefs)
    here = this_machine()
    return {
        "ggufc": importlib.metadata.version("ggufc"),
        "models": _models(architectures, progress),
        "stores": {
            HERE: [str(Path.cwd())],
            OLLAMA: [str(folder) for folder in ollama_folders()],
            HUGGING_FACE: [str(hugging_face_folder())],
        },
        "unreadable": unreadable_folders(),
        "cache": _cache(cache_directory()),
        "architectures": [_architecture(found) for found in architectures],
        "backends": {name: _backend(packages) for name, packages in NEEDS.items()},
        "cpu": {
            "arch": here.arch,
            "features": None if here.features is None else sorted(here.features),
            "cores": usable_cores(),
        },
        "targets": _targets(),
    }


def _models(architectures: Sequence[Surveyed], progress: Progress) -> list[dict[str, Any]]:
    faults = {found.name: found.fault for found in architectures}
    stored = [StoredModel(HERE, f"{p.name}/" if p.is_dir() else p.name, p) for p in local_models(Path())]
    stored += ollama_models()
    stored += hugging_face_models()
    progress(f"reading the headers of {len(stored)} models")
    return [_model(model, faults) for model in stored]


def _model(model: StoredModel, faults: dict[str, str]) -> dict[str, Any]:
    """One model; its architecture's fault is its own, unless it is a bundle, which has its own definition."""
    found: dict[str, Any] = {"name": model.name, "origin": model.origin, "path": str(model.path.absolute())}
    try:
        if model.fault:
            raise InputError(model.fault)
        found |= _bundle_facts(model.path) if is_bundle(model.path) else _file_facts(model.path)
    except GgufcError as error:
        return found | {"sha256": model.sha256, "error": str(error)}
    if found["kind"] == "bundle":
        return found | {"sha256": model.sha256}
    architecture = found["architecture"]
    missing = "" if architecture in faults else f"no definition of architecture {architecture!r}"
    fault = faults.get(architecture, missing)
    return found | {"sha256": model.sha256} | ({"error": fault} if fault else {})


def _file_facts(path: Path) -> dict[str, Any]:
    with read_gguf(path) as file:
        return {
            "kind": "gguf",
            "files": len(file.parts),
            "size": file.size,
            "architecture": file.metadata_value("general.architecture", str),
            "types": _types((tensor.type.name, tensor.nbytes) for tensor in file.tensors.values()),
        }


def _bundle_facts(path: Path) -> dict[str, Any]:
    """What a bundle is, and its `error` where its weights are gone or others."""
    bundle = read_bundle(path)
    manifest, fault = bundle.manifest, {}
    try:
        bundle.weights()
    except InputError as error:
        fault = {"error": str(error)}
    return fault | {
        "kind": "bundle",
        "files": len(manifest["files"]),
        "size": sum(file["size"] for file in manifest["files"].values()),
        "architecture": manifest["architecture"]["name"],
        "types": _types((tensor["type"], tensor["nbytes"]) for tensor in manifest["tensors"].values()),
        "targets": list(manifest["targets"]),
    }


def _types(tensors: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The bytes of each type, the most first."""
    found: Counter[str] = Counter()
    for name, nbytes in tensors:
        found[name] += nbytes
    return dict(found.most_common())


def _cache(folder: Path) -> dict[str, Any]:
    """The models that were compiled without an export."""
    bundles = local_models(folder)
    size = sum(p.lstat().st_size for bundle in bundles for p in bundle.iterdir() if not p.is_symlink())
    return {"folder": str(folder), "bundles": len(bundles), "size": size}


def _architecture(found: Surveyed) -> dict[str, Any]:
    origin = "shipped" if found.shipped else os.fspath(found.path.parent)
    described: dict[str, Any] = {"name": found.name, "origin": origin, "path": str(found.path)}
    if found.definition is None:
        return described | {"error": found.fault}
    return described | {"kind": found.definition.kind, "sha256": found.definition.sha256}


def _backend(packages: Sequence[str]) -> dict[str, Any]:
    versions = {name: _version(name) for name in packages}
    return {"ready": None not in versions.values(), "packages": versions}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _targets() -> dict[str, list[str]]:
    """For each target that can be compiled for, what this machine lacks to run it; none without the compiler."""
    try:
        from ..native.target import PRESETS, host_target
    except ImportError:
        return {}
    here = this_machine()
    return {t.name: here.lacks(t.triple, t.features) for t in (host_target(), *PRESETS.values())}
