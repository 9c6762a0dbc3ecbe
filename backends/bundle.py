"""The bundle: a folder with a manifest, the portable module, a compiled module per target, tokenizer, weights.

Only what a device has is needed to read one. A bundle is written to a temporary place and moved into being whole.
"""

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..frontend.errors import InputError
from .executor import CacheSpec

FORMAT = 1
MANIFEST = "manifest.json"
MODULE = "model.mlir"
WEIGHTS = "model.gguf"
"""The weights: a link to the GGUF, or the file itself."""


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk, its manifest read and checked."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """The caches of prefill and decode."""
        return tuple(
            CacheSpec(c["name"], c["dtype"], tuple(c["row"]), c["window"], c["rows"]) for c in self.manifest["caches"]
        )

    @property
    def parameters(self) -> dict[str, tuple[int, int]]:
        """For each parameter of the compiled modules: offset and number of its bytes in the weights."""
        return {name: (offset, length) for name, (offset, length) in self.manifest["parameters"].items()}

    def file(self, name: str) -> Path:
        """A file of the bundle, after checking that it is whole.

        Raises:
            InputError: it is missing, or not what the manifest says.
        """
        path = self.path / name
        wanted = self.manifest["files"].get(name)
        if wanted is None or Path(name).name != name:
            raise InputError(f"{self.path}: the bundle has no {name}; it has {', '.join(self.manifest['files'])}")
        try:
            size, found = path.stat().st_size, sha256(path)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; export the model again") from None
        if (size, found) != (wanted["size"], wanted["sha256"]):
            raise InputError(f"{path}: {size} bytes, not the {wanted['size']} that were exported; export it again")
        return path

    def weights(self, elsewhere: Path | None = None) -> Path:
        """The GGUF with the weights, after checking that it is the one that was exported.

        Raises:
            InputError: it is gone, or another file.
        """
        path = elsewhere or self.path / WEIGHTS
        wanted = self.manifest["weights"]
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                header = hashlib.sha256(file.read(wanted["header_bytes"])).hexdigest()
        except OSError as error:
            target = f" (a link to {path.readlink()})" if path.is_symlink() else ""
            raise InputError(
                f"{path}{target}: {error.strerror}; give the place of {wanted['name']} with --weights-file FILE"
            ) from None
        if size != wanted["size"] or header != wanted["header_sha256"]:
            raise InputError(
                f"{path}: not the file that was exported ({size} bytes, wanted {wanted['size']}, "
                f"header sha256 {header[:12]}, wanted {wanted['header_sha256'][:12]}); export this one"
            )
        return path


_SHAPE: dict[str, Any] = {
    "kv": str,
    "context_length": int,
    "vocabulary": int,
    "caches": [{"name": str, "dtype": str, "row": [int], "window": int, "rows": int}],
    "entries": {"*": {"arguments": [{"name": str, "type": str, "shape": list}], "results": [{"shape": list}]}},
    "files": {"*": {"size": int, "sha256": str}},
    "parameters": {"*": [int]},
    "targets": {"*": {"file": str}},
    "tokenizer": {"stop_tokens": [int]},
    "weights": {"name": str, "size": int, "header_bytes": int, "header_sha256": str},
}
"""What a manifest must hold: `*` stands for any key, a list of one for a list of any length."""


def _fault(value: Any, shape: Any, where: str) -> str | None:
    """The first place where a value is not of the shape, in words."""
    if isinstance(shape, type):
        return None if isinstance(value, shape) else f"{where} is {type(value).__name__}, wanted {shape.__name__}"
    if not isinstance(value, type(shape)):
        return f"{where} is {type(value).__name__}, wanted {type(shape).__name__}"
    if isinstance(shape, list):
        inner = [(item, shape[0], f"{where}[{n}]") for n, item in enumerate(value)]
    elif "*" in shape:
        inner = [(item, shape["*"], f"{where}[{key!r}]") for key, item in value.items()]
    else:
        missing = [key for key in shape if key not in value]
        if missing:
            return f"{where} has no {missing[0]}"
        inner = [(value[key], wanted, f"{where}.{key}") for key, wanted in shape.items()]
    return next((fault for item in inner if (fault := _fault(*item))), None)


def is_bundle(path: Path) -> bool:
    """Whether a folder has a manifest."""
    return (path / MANIFEST).is_file()


def read_bundle(path: Path) -> Bundle:
    """Reads a bundle's manifest.

    Raises:
        InputError: there is none, it is damaged, or of a format that this version doesn't read.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: no bundle: {MANIFEST}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path / MANIFEST}: damaged, no JSON; export the model again") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise InputError(f"{path / MANIFEST}: format {found!r}, this version reads {FORMAT}; export the model again")
    fault = _fault(manifest, _SHAPE, "the manifest")
    if fault:
        raise InputError(f"{path / MANIFEST}: damaged: {fault}; export the model again")
    return Bundle(path, manifest)


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, with size and sha256 of every other file in the folder but the weights."""
    files = {
        str(p.relative_to(folder)): {"size": p.stat().st_size, "sha256": sha256(p)}
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != WEIGHTS
    }
    text = json.dumps({"format": FORMAT, **manifest, "files": files}, indent=1, ensure_ascii=True)
    (folder / MANIFEST).write_text(text + "\n", "utf-8")


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well, and vanishes when it doesn't.

    A bundle that stands at `path` is replaced in one step; it stays whole until then.

    Raises:
        InputError: `path` holds something else than a bundle, or can't be written.
    """
    if path.exists() and not is_bundle(path) and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path}: exists and is no bundle; ggufc replaces nothing else, choose another place")
    path = path.absolute()
    temporary = path.parent / f".{path.name}.{os.getpid()}.ggufc"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        temporary.mkdir()
        yield temporary
        _move_into_being(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove_leftovers(path: Path) -> None:
    """Temporary folders beside `path` of processes that were killed."""
    prefix, suffix = f".{path.name}.", ".ggufc"
    for left in path.parent.iterdir():
        if left.name.startswith(prefix) and left.name.endswith(suffix):
            remove_if_orphaned(left, left.name[len(prefix) : -len(suffix)])


def remove_if_orphaned(folder: Path, owner: str) -> None:
    """Removes a temporary folder whose owner, the number of a process, is no more."""
    if owner.isdigit() and not Path(f"/proc/{owner}").exists():
        shutil.rmtree(folder, ignore_errors=True)


def _move_into_being(temporary: Path, path: Path) -> None:
    for file in temporary.rglob("*"):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
    if not path.exists():
        temporary.rename(path)
    elif not _exchange(temporary, path):
        # no atomic exchange on this system: the old one stands aside for the moment between two renames
        aside = temporary.with_suffix(".old")
        path.rename(aside)
        temporary.rename(path)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders in one step (Linux renameat2 with RENAME_EXCHANGE); False where that can't be done."""
    with contextlib.suppress(AttributeError, OSError):
        at_cwd, exchange = -100, 2
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0
    return False
