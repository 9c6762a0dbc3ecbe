"""The bundle: a folder with a manifest, the portable module, a compiled module per target, tokenizer, weights.

Only what a device has is needed to read one.
"""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...frontend.errors import InputError
from ...frontend.given import open_file, parse_json, read_file
from ...frontend.models import MANIFEST
from ...frontend.splits import split_name, split_paths
from ..caches import CacheSpec
from ..iree.parameters import Place
from .fingerprint import fingerprint
from .manifest import ENCODINGS, fault

FORMAT = 4
MODULE, PORTABLE = "model.mlir", "model.mlirbc"
"""The portable module as text, and as StableHLO's versioned artifact."""
EMITTED = ("mlir", "mlirbc", "vmfb")
"""What an export may write: these two, and a compiled module for each target."""
WEIGHTS = "model"
"""Of the weights: model.gguf, or what `split_name` makes of it; a link to the GGUF, or the file itself."""
ARCHIVE, METADATA = "model.irpa", "metadata.gguf"
"""In the place of these, all tensors in an IREE parameter archive, and the keys of the GGUF in one without tensors."""
MOST_BYTES = 64 << 20
"""Of a manifest: a megabyte holds some thousand tensors."""


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
    def parameters(self) -> dict[str, Place]:
        """For each parameter of the compiled modules where its bytes lie in the weights."""
        given = self.manifest["parameters"].items()
        return {name: Place(offset, nbytes, file) for name, (file, offset, nbytes) in given}

    @property
    def has_archive(self) -> bool:
        """Whether the weights lie in an archive, and not in the GGUF."""
        return self.manifest.get("encoding", ENCODINGS[0]) != ENCODINGS[0]

    @property
    def weight_files(self) -> list[str]:
        """The names in the bundle of the files with the weights."""
        return [ARCHIVE] if self.has_archive else weight_names(len(self.manifest["weights"]))

    def file(self, name: str) -> Path:
        """A file of the bundle, after checking that it is whole.

        Raises:
            InputError: it is missing, or not what the manifest says.
        """
        path = self.path / name
        wanted = self.manifest["files"].get(name)
        if wanted is None or Path(name).name != name:
            there = ", ".join(self.manifest["files"])
            raise InputError(f"{self.path}: the bundle has no {name}; it has {there}; export the model again")
        try:
            with open_file(path) as file:
                size, found = os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; export the model again") from None
        if damage := _difference(size, wanted["size"], "content", found, wanted["sha256"]):
            raise InputError(f"{path}: not the file that was exported: {damage}; export the model again")
        return path

    def check_sizes(self) -> None:
        """That no file of the bundle was cut short, of those either that are not going to be read.

        Raises:
            InputError: one has another size than the manifest says; one that is gone is told when it is wanted.
        """
        for name, wanted in self.manifest["files"].items():
            path = self.path / Path(name).name
            with contextlib.suppress(OSError):
                if (size := path.stat().st_size) != wanted["size"]:
                    damage = f"{size} bytes, wanted {wanted['size']}"
                    raise InputError(f"{path}: not the file that was exported: {damage}; export the model again")

    def weights(self, elsewhere: Path | None = None) -> tuple[Path, ...]:
        """The files with the weights, after checking that they are those that were exported.

        Args:
            elsewhere: the first of them, where the bundle's own links are broken.

        Raises:
            InputError: one is gone, or another file.
        """
        wanted = self.manifest["weights"]
        paths = split_paths(elsewhere or self.path / self.weight_files[0], len(wanted))
        if len(paths) != len(wanted):
            raise InputError(f"{elsewhere}: wanted the first of {len(wanted)} files, such as {wanted[0]['name']}")
        for n, path in enumerate(paths):
            self._check_weights(path, n)
        return paths

    def _check_weights(self, path: Path, number: int) -> None:
        wanted = self.manifest["weights"][number]
        try:
            with open_file(path) as file:
                size = os.fstat(file.fileno()).st_size
                header = hashlib.sha256(file.read(wanted["header_bytes"])).hexdigest()
        except OSError as error:
            target = f" (a link to {path.readlink()})" if path.is_symlink() else ""
            raise InputError(
                f"{path}{target}: {error.strerror}; give the place of {wanted['name']} with --weights-file FILE, or as "
                "weights= in Python"
            ) from None
        damage = _difference(size, wanted["size"], "header", header, wanted["header_sha256"])
        if not damage and "fingerprint" in wanted:
            tensors = [t for t in self.manifest["tensors"].values() if t["file"] == number]
            found = fingerprint(path, [(t["offset"], t["nbytes"]) for t in tensors])
            damage = _difference(size, size, "sample of its tensors", found, wanted["fingerprint"])
        if damage:
            raise InputError(f"{path}: not the file that was exported: {damage}; give that one, or export again")


def _difference(size: int, wanted_size: int, what: str, sha256: str, wanted_sha256: str) -> str:
    """Where a file differs from what was exported, in words: in its size, else in its content; empty: in neither."""
    if size != wanted_size:
        return f"{size} bytes, wanted {wanted_size}"
    if sha256 != wanted_sha256:
        return f"as long, but the {what} has sha256 {sha256[:12]}, wanted {wanted_sha256[:12]}"
    return ""


def weight_names(count: int) -> list[str]:
    """What the files of a GGUF are called in a bundle."""
    return [split_name(WEIGHTS, number, count) for number in range(1, count + 1)]


def read_bundle(path: Path) -> Bundle:
    """Reads a bundle's manifest.

    Raises:
        InputError: there is none, it is damaged, or of a format that this version doesn't read.
    """
    try:
        text = read_file(path / MANIFEST, MOST_BYTES)
        manifest = parse_json(text)
    except OSError as error:
        raise InputError(f"{path}: no bundle: {MANIFEST}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path / MANIFEST}: damaged, no JSON; export the model again") from None
    if not text.endswith(b"\n"):
        raise InputError(f"{path / MANIFEST}: damaged: cut off at its end; export the model again")
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise InputError(f"{path / MANIFEST}: format {found!r}, this version reads {FORMAT}; export the model again")
    damage = fault(manifest)
    if damage:
        raise InputError(f"{path / MANIFEST}: damaged: {damage}; export the model again")
    return Bundle(path, manifest)


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
