"""Reads a model: one GGUF, or all files of a split one."""

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ..errors import InputError, quoted, shown_path
from ..splits import split_name, split_number, split_paths
from .cursor import Budget
from .file import GgufFile
from .header import read_header
from .mapping import mapped

SPLIT_KEYS = frozenset(("split.no", "split.count"))
"""What every part of a split model has."""


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Map the GGUF file at `path` and read its header; the data's place is checked, the data itself is not read.

    The first file of a split model stands for all of them, which lie beside it under their numbers.

    Raises:
        InputError: no file, no GGUF or a damaged one; another part than the first; parts are missing or of another
            model.
        UnsupportedError: another version, byte order or tensor type.
    """
    budget = Budget()
    first = _read_file(Path(path), budget)
    try:
        return _joined(first, budget)
    except BaseException:
        first.close()
        raise


def read_metadata(path: Path) -> GgufFile:
    """A file by itself, whatever it says of others: what `GgufFile.metadata_bytes` gave.

    Raises:
        InputError, UnsupportedError: as `read_gguf`.
    """
    return _read_file(path, Budget())


def _joined(first: GgufFile, budget: Budget) -> GgufFile:
    """The model that a file is the first part of; the file itself where the model has no other."""
    number, count = (_split_key(first, key, default) for key, default in (("split.no", 0), ("split.count", 1)))
    if count <= 1:
        return first
    named = split_number(first.path.name)
    shown = shown_path(first.path)
    if number != 0:
        where = split_name(named[0], 1, count) if named else "the first part"
        raise InputError(f"{shown}: is part {number + 1} of a model in {count} files; give {where}")
    if named is None or named[1:] != (1, count):
        wanted = split_name(named[0] if named else first.path.stem, 1, count)
        raise InputError(f"{shown}: is the first of {count} files of a model, so its name should be like {wanted}")
    parts, tensors = list(first.parts), dict(first.tensors)
    try:
        for path in split_paths(first.path, count)[1:]:
            if not os.path.lexists(path):
                raise InputError(f"{shown_path(path)}: no such file; it is part {len(parts) + 1} of {count} of {shown}")
            part = _read_file(path, budget)
            parts += part.parts
            if SPLIT_KEYS - part.metadata.keys():
                raise InputError(
                    f"{shown_path(path)}: is no part of a model in several files; wanted part {len(parts)} of {shown}"
                )
            for key, wanted in (("split.no", len(parts) - 1), ("split.count", count)):
                if (found := _split_key(part, key, -1)) != wanted:
                    raise InputError(f"{shown_path(path)}: key {quoted(key)} is {found}, but should be {wanted}")
            for info in part.tensors.values():
                if info.name in tensors:
                    raise InputError(f"{shown_path(path)}: tensor {quoted(info.name)} is in another part too")
                tensors[info.name] = replace(info, part=len(parts) - 1)
        wanted = _split_key(first, "split.tensors.count", len(tensors))
        if len(tensors) != wanted:
            raise InputError(
                f"{shown}: key 'split.tensors.count' is {wanted}, but the {count} files have {len(tensors)}"
            )
    except BaseException:
        for part in parts[1:]:
            part.close()
        raise
    return replace(first, tensors=MappingProxyType(tensors), parts=tuple(parts))


def _split_key(file: GgufFile, key: str, default: int) -> int:
    return file.metadata_value(key, int) if key in file.metadata else default


def _read_file(path: Path, budget: Budget) -> GgufFile:
    """One file by itself."""
    mapping = mapped(path)
    try:
        return read_header(path, mapping, budget)
    except BaseException:
        # Arrays of a half-read header may still point into the mapping; it then goes with them.
        with suppress(BufferError):
            mapping.close()
        raise
