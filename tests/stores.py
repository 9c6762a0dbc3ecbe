"""A fake Ollama store and a fake Hugging Face cache, laid out as those programs write them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

PREFIX = "application/vnd.ollama.image."


def put_ollama(store: Path, name: str, model: bytes, **more: bytes) -> Path:
    """Puts a model at HOST/NAMESPACE/MODEL/TAG and returns its blob; `more` are layers by the end of their type."""
    layers = [{"mediaType": f"{PREFIX}license", **_blob(store, b"free")}]
    layers += [{"mediaType": PREFIX + kind, **_blob(store, content)} for kind, content in more.items()]
    layers.append({"mediaType": f"{PREFIX}model", **_blob(store, model)})
    manifest = store / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": layers[0], "layers": layers}))
    return store / "blobs" / layers[-1]["digest"].replace(":", "-")


def _blob(store: Path, content: bytes) -> dict[str, str | int]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    (store / "blobs" / digest.replace(":", "-")).write_bytes(content)
    return {"digest": digest, "size": len(content)}


def put_hugging_face(
    hub: Path, repository: str, revision: str, files: Mapping[str, bytes | None], main: bool = True
) -> Path:
    """Puts files into a snapshot, by default that of `refs/main`, and returns it; None is a link without a blob."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / revision
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = snapshot / name
        path.parent.mkdir(parents=True, exist_ok=True)
        blob = folder / "blobs" / hashlib.sha256(name.encode() if content is None else content).hexdigest()
        if content is not None:
            blob.write_bytes(content)
        path.symlink_to(Path("../" * len(path.relative_to(folder).parts[:-1])) / "blobs" / blob.name)
    if main:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / "main").write_text(revision)
    return snapshot
