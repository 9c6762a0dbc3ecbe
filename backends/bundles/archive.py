"""The weights of a bundle as one IREE parameter archive, whose keys are the GGUF's names of the tensors.

Layout (iree/schemas/parameter_archive.h, version 0), all little-endian: a header with the places of three segments;
the table of entries; names and notes; then the data, each tensor at a multiple of 64 bytes, which is what a parameter
must have to be mapped instead of copied. An entry's note is JSON: the tensor's `type` and `shape`, and `source`, the
sha256 of the header of the GGUF that it comes from.
"""

import json
import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...frontend.errors import InputError
from ...frontend.ggml_types import GgmlType, by_name
from ...frontend.gguf.file import GgufFile, Part, TensorInfo
from ...frontend.gguf.reader import read_metadata
from ..iree.parameters import ALIGNMENT
from .bundle import METADATA, Bundle

_HEADER = struct.Struct("<4sHHQQQ Q QQ QQ QQ")  # magic, version, size, next header, flags; entries; three segments
_ENTRY = struct.Struct("<QIQ QQ QQ Q QQ 4x")  # size, kind, flags; name; note; alignment; data; to a multiple of 16
_ENTRY_SIZE = _ENTRY.size - 4
_DATA = 2
"""The kind of an entry whose bytes stand in the archive."""


@dataclass(frozen=True)
class Layout:
    """An archive before its data: the header, padded, the tensors in their places, and the size of the whole."""

    header: bytes
    tensors: tuple[TensorInfo, ...]
    size: int


def lay_out(tensors: Iterable[tuple[str, GgmlType, tuple[int, ...]]], source: str) -> Layout:
    """Places tensors, given by name, type and shape, one behind the other; `source` is the sha256 for their notes."""
    found, data_size = [], 0
    for name, type_, shape in tensors:
        nbytes = type_.nbytes(shape[-1], prod(shape[:-1])) if shape else type_.nbytes(1)
        found.append(TensorInfo(name, type_, shape, data_size, nbytes))
        data_size += nbytes + -nbytes % ALIGNMENT
    entries, words = bytearray(), bytearray()
    for info in found:
        name = info.name.encode("utf-8", "surrogateescape")
        note = json.dumps({"type": info.type.name, "shape": info.shape, "source": source}).encode()
        at = len(words)
        words += name + note
        places = (at, len(name), at + len(name), len(note), ALIGNMENT, info.offset, info.nbytes)
        entries += _ENTRY.pack(_ENTRY_SIZE, _DATA, 0, *places)
    words_at = _HEADER.size + -_HEADER.size % 16 + len(entries)
    data_at = words_at + len(words) + -(words_at + len(words)) % ALIGNMENT
    segments = (words_at - len(entries), len(entries), words_at, len(words), data_at, data_size)
    header = _HEADER.pack(b"IRPA", 0, 0, _HEADER.size, 0, 0, len(found), *segments)
    whole = header.ljust(words_at - len(entries), b"\0") + entries + words
    placed = tuple(replace(info, offset=data_at + info.offset) for info in found)
    return Layout(whole.ljust(data_at, b"\0"), placed, data_at + data_size)


def archived(source: GgufFile, archive: Path, tensors: Iterable[TensorInfo], data_offset: int) -> GgufFile:
    """A model whose metadata is that of `source`, and whose tensors lie in an archive.

    Raises:
        OSError, ValueError: the archive can't be mapped.
    """
    with archive.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    named = MappingProxyType({info.name: info for info in tensors})
    part = Part(archive, len(mapping), data_offset, data_offset, mapping)
    return replace(source, alignment=ALIGNMENT, tensors=named, parts=(part,))


def open_archive(bundle: Bundle, archive: Path) -> GgufFile:
    """The model of a bundle with an archive, which lies at `archive`.

    Raises:
        InputError: a file of the bundle is missing or damaged, or its manifest doesn't fit the archive.
        UnsupportedError: a tensor's type is unknown.
    """
    metadata = read_metadata(bundle.file(METADATA))
    tensors = [_tensor(bundle, name, entry) for name, entry in bundle.manifest["tensors"].items()]
    try:
        found = archived(metadata, archive, tensors, bundle.manifest["weights"][0]["header_bytes"])
    except (OSError, ValueError) as error:
        raise InputError(f"{archive}: the weights can't be mapped: {error}") from None
    return replace(found, path=archive)


def _tensor(bundle: Bundle, name: str, entry: Mapping[str, Any]) -> TensorInfo:
    type_, shape = by_name(entry["type"]), tuple(entry["shape"])
    columns = shape[-1] if shape else 1
    wanted = type_.nbytes(columns, prod(shape[:-1]))
    if columns % type_.block_elements or entry["nbytes"] != wanted:
        raise InputError(
            f"{bundle.path}: damaged: the manifest's tensor {name!r} has {entry['nbytes']} bytes, which are no "
            f"{type_.name}{list(shape)}; export the model again"
        )
    return TensorInfo(name, type_, shape, entry["offset"], entry["nbytes"])
