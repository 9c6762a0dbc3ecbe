"""What a GGUF holds: metadata, a table of tensors, and the mapped bytes that they are."""

import hashlib
import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ..errors import InputError, quoted, shown_path
from ..ggml_types import GgmlType
from ..near import near_names

MetadataValue: TypeAlias = "int | float | bool | str | np.ndarray | tuple[MetadataValue, ...]"
T = TypeVar("T", int, float, bool, str, np.ndarray, tuple)


@dataclass(frozen=True)
class TensorInfo:
    """One row of the tensor table."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    """In numpy's order: (rows, columns), the contiguous axis last."""
    offset: int
    """First byte, counted from the start of the file."""
    nbytes: int
    part: int = 0
    """Which of the model's files it lies in."""


@dataclass(frozen=True, eq=False)
class Part:
    """One file of a model, mapped."""

    path: Path
    size: int
    data_offset: int
    """Where the header, padded, ends and the data begins."""
    keys_end: int
    """Where the keys end and the tensor table begins."""
    mapping: mmap.mmap = field(repr=False)

    def header_sha256(self) -> str:
        """The sha256, in hex, of everything before the data."""
        with memoryview(self.mapping) as whole, whole[: self.data_offset] as header:
            return hashlib.sha256(header).hexdigest()

    def close(self) -> None:
        """Let go of the mapping; with views still in use it lasts until the last of them and this object are gone."""
        with suppress(BufferError):
            self.mapping.close()


@dataclass(frozen=True, eq=False)
class GgufFile:
    """A GGUF file, or all files of a split model, mapped: metadata and tensor table are in memory, data isn't touched.

    Strings are UTF-8; bytes that are not are kept as lone surrogates (`surrogateescape`), so nothing is lost and two
    names never become one. Names come from a stranger: print them through `quoted`, never use them as a path.
    """

    path: Path
    """The file, of a split model the first."""
    version: int
    alignment: int
    metadata: Mapping[str, MetadataValue] = field(repr=False)
    """Numbers and strings as Python's, numeric arrays as numpy's, arrays of strings (or of arrays) as tuples."""
    tensors: Mapping[str, TensorInfo] = field(repr=False)
    """In the files' order."""
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(part.size for part in self.parts)

    @property
    def data_offset(self) -> int:
        """Bytes of all headers: in a model of one file, where the data begins."""
        return sum(part.data_offset for part in self.parts)

    def tensor_bytes(self, name: str) -> np.ndarray:
        """The tensor's blocks as uint8 (nbytes,), read-only, a view of the mapping: nothing is copied.

        Raises:
            InputError: there is no tensor of that name; it names the nearest ones.
        """
        if name not in self.tensors:
            raise InputError(
                f"{shown_path(self.path)}: there is no tensor {quoted(name)}{near_names(name, self.tensors)}"
            )
        info = self.tensors[name]
        return np.frombuffer(self.parts[info.part].mapping, np.uint8, info.nbytes, info.offset)

    def metadata_bytes(self) -> bytes:
        """The keys, as they are, as a GGUF without tensors."""
        head, tensor_count = 8, 8  # magic and version, then the count that becomes 0
        mapping = self.parts[0].mapping
        return mapping[:head] + bytes(tensor_count) + mapping[head + tensor_count : self.parts[0].keys_end]

    def header_sha256(self) -> str:
        """Tells metadata, names, shapes and places: the sha256, in hex, of the header, or of several headers' own."""
        found = [part.header_sha256() for part in self.parts]
        return found[0] if len(found) == 1 else hashlib.sha256("\n".join(found).encode()).hexdigest()

    def metadata_value(self, key: str, kind: type[T]) -> T:
        """The value of `key`, which must be an int, float, bool, str, np.ndarray (numbers) or tuple (strings).

        An integer also serves where a float is wanted.

        Raises:
            InputError: the key is absent, or its value is of another kind.
        """
        if key not in self.metadata:
            raise InputError(
                f"{shown_path(self.path)}: the key {quoted(key)} is missing{near_names(key, self.metadata)}"
            )
        value = self.metadata[key]
        if kind is float and type(value) is int:
            value = float(value)
        # Python's True is an int, a file's is not.
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise InputError(
            f"{shown_path(self.path)}: key {quoted(key)} is {described(value)}, but should be {_KINDS[kind]}"
        )

    def close(self) -> None:
        """Let go of the mappings, each as `Part.close`."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_KINDS: Mapping[Any, str] = MappingProxyType(
    {
        int: "an integer",
        float: "a float",
        bool: "a bool",
        str: "a string",
        np.ndarray: "an array of numbers",
        tuple: "an array of strings",
    }
)


def described(value: MetadataValue) -> str:
    """The value for a message: its kind, and the value itself where that is short."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} numbers ({value.dtype.name})"
    if isinstance(value, tuple):
        return f"an array of {len(value)} {'strings' if all(isinstance(v, str) for v in value) else 'arrays'}"
    return f"{_KINDS[type(value)]} ({quoted(value, 40) if isinstance(value, str) else value})"
