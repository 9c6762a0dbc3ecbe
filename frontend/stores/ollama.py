"""The Ollama store."""

import os
import re
from itertools import islice
from pathlib import Path
from typing import Any

from ..given import parse_json, read_file
from .folders import MOST_ENTRIES, home, unreadable, walk
from .stored import StoredModel, blob_fault, unread

OLLAMA = "Ollama"
_SYSTEM = Path("/usr/share/ollama/.ollama/models")
"""Where Ollama's installer for Linux lets the service keep its models."""
_MODEL_LAYER, _ADAPTER_LAYER, _TEMPLATE_LAYER = (
    f"application/vnd.ollama.image.{kind}" for kind in ("model", "adapter", "template")
)
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")
_MOST_MANIFEST_BYTES = 4 << 20


def ollama_folders() -> tuple[Path, ...]:
    """Where Ollama's models are: $OLLAMA_MODELS, else the user's own and the service's."""
    named = os.environ.get("OLLAMA_MODELS")
    return (Path(named),) if named else (home() / ".ollama" / "models", _SYSTEM)


def ollama_models() -> list[StoredModel]:
    """Every model of the Ollama store, by name.

    A manifest lies at manifests/HOST/NAMESPACE/MODEL/TAG and names, in a layer of its own media type, the blob that is
    the GGUF; the blob's name is the sha256 of its bytes.
    """
    found: dict[str, StoredModel] = {}
    for folder in ollama_folders():
        manifests = folder / "manifests"
        for path in islice(walk(manifests, 4), MOST_ENTRIES):
            host, namespace, model, tag = path.relative_to(manifests).parts
            name = _name(host, namespace, model, tag)
            found.setdefault(name, _model(folder, name, path))
    return [found[name] for name in sorted(found)]


def ollama_unreadable() -> list[str]:
    """The folders of the store's manifests that are there and can't be listed, with the reason."""
    return [said for folder in ollama_folders() for said in unreadable(folder / "manifests", 3)]


def _name(host: str, namespace: str, model: str, tag: str) -> str:
    """A model's name without the parts that Ollama takes for granted."""
    short = model if (host, namespace) == ("registry.ollama.ai", "library") else f"{namespace}/{model}"
    return f"{short if host == 'registry.ollama.ai' else f'{host}/{short}'}:{tag}"


def _model(folder: Path, name: str, manifest: Path) -> StoredModel:
    try:
        layers = _layers(manifest)
    except (OSError, ValueError) as error:
        return StoredModel(OLLAMA, name, manifest, fault=unread(manifest, error, "pull the model again"))
    models = [layer for layer in layers if layer["mediaType"] == _MODEL_LAYER]
    if len(models) != 1:
        held = f"{len(models)} files with a model" if models else "no GGUF"
        return StoredModel(OLLAMA, name, manifest, fault=f"{manifest}: lists {held}; ggufc reads one")
    digest = _DIGEST.fullmatch(models[0]["digest"])
    if not digest:
        return StoredModel(OLLAMA, name, manifest, fault=f"{manifest}: {models[0]['digest'][:80]!r} is no sha256")
    blob = _blob(folder, digest[1])
    fault = blob_fault(blob, models[0].get("size"), "pull the model again")
    if not fault and any(layer["mediaType"] == _ADAPTER_LAYER for layer in layers):
        fault = f"{manifest}: the model has an adapter (LoRA), which ggufc can't apply; {blob} is the model without it"
    templates = [layer for layer in layers if layer["mediaType"] == _TEMPLATE_LAYER]
    go = _DIGEST.fullmatch(templates[-1]["digest"]) if templates else None
    return StoredModel(OLLAMA, name, blob, digest[1], fault, _blob(folder, go[1]) if go else None)


def _layers(manifest: Path) -> list[dict[str, Any]]:
    """The layers of an image's manifest.

    Raises:
        OSError: it can't be read.
        ValueError: it is none.
    """
    read = read_file(manifest, _MOST_MANIFEST_BYTES)
    try:
        layers = parse_json(read)["layers"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("damaged, no manifest") from None
    if not isinstance(layers, list) or not all(
        isinstance(layer, dict) and isinstance(layer.get("mediaType"), str) and isinstance(layer.get("digest"), str)
        for layer in layers
    ):
        raise ValueError("damaged, its layers have no media type and digest")
    return layers


def _blob(folder: Path, sha256: str) -> Path:
    """A blob's place; before version 0.1.32 Ollama wrote a colon into its name."""
    new, old = (folder / "blobs" / f"sha256{mark}{sha256}" for mark in "-:")
    return old if not os.path.lexists(new) and os.path.lexists(old) else new
