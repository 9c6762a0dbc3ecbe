"""The GGUF container: a bounded reader over the memory-mapped file.

Layout (ggml's gguf.h): "GGUF", u32 version, u64 tensor count, u64 key count, the keys, the tensor table, padding to the
alignment, the data. Everything is little-endian. No number of the file is used before it was compared with the file's
real size, so that a hostile header costs neither time nor memory.

A model may be split into several files (keys `split.no`, `split.count`, `split.tensors.count`): the first has the
metadata, and each a table of its own tensors.
"""

import hashlib
import mmap
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np

from .errors import InputError, UnsupportedError
from .ggml_types import GgmlType, storable_by_id
from .near import near
from .splits import split_name, split_number, split_paths

MetadataValue: TypeAlias = "int | float | bool | str | np.ndarray | tuple[MetadataValue, ...]"
T = TypeVar("T", int, float, bool, str, np.ndarray, tuple)

DEFAULT_ALIGNMENT = 32
_ALIGNMENTS = tuple(1 << n for n in range(3, 31))
_VERSIONS = (2, 3)
_MAX_DIMS = 4
# Limits far above any real model, so that even a large file full of nonsense is refused soon.
_MAX_ITEMS = 1 << 22
_MAX_TABLE = 1 << 16  # keys, and tensors
_MAX_ARRAY_BYTES = 1 << 26
_MAX_NAME_BYTES, _MAX_STRING_BYTES = 1 << 16, 1 << 26
_MAX_ARRAY_DEPTH = 4

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_STRING, _ARRAY = 8, 9
# The fewest bytes that an item can take: a count that needs more than the rest of the file is a lie.
_LEAST_KEY, _LEAST_TENSOR, _LEAST_STRING, _LEAST_ARRAY = 8 + 1 + 4 + 1, 8 + 1 + 4 + 4 + 8, 8, 4 + 8


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
            raise InputError(f"{_shown(self.path)}: there is no tensor {quoted(name)}{_near(name, self.tensors)}")
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
            raise InputError(f"{_shown(self.path)}: the key {quoted(key)} is missing{_near(key, self.metadata)}")
        value = self.metadata[key]
        if kind is float and type(value) is int:
            value = float(value)
        # Python's True is an int, a file's is not.
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        raise InputError(f"{_shown(self.path)}: key {quoted(key)} is {_described(value)}, but should be {_KINDS[kind]}")

    def close(self) -> None:
        """Let go of the mappings, each as `Part.close`."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def quoted(name: str, limit: int = 80) -> str:
    """A name from a file, made safe to print: quoted, control characters escaped, a very long one shortened."""
    return repr(name) if len(name) <= limit else f"{name[:limit]!r}... ({len(name)} characters)"


def read_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Map the GGUF file at `path` and read its header; the data's place is checked, the data itself is not read.

    The first file of a split model stands for all of them, which lie beside it under their numbers.

    Raises:
        InputError: no file, no GGUF or a damaged one; another part than the first; parts are missing or of another
            model.
        UnsupportedError: another version, byte order or tensor type.
    """
    first = _read_file(Path(path))
    try:
        return _joined(first)
    except BaseException:
        first.close()
        raise


def read_metadata(path: Path) -> GgufFile:
    """A file by itself, whatever it says of others: what `GgufFile.metadata_bytes` gave.

    Raises:
        InputError, UnsupportedError: as `read_gguf`.
    """
    return _read_file(path)


def _joined(first: GgufFile) -> GgufFile:
    """The model that a file is the first part of; the file itself where the model has no other."""
    number, count = (_split_key(first, key, default) for key, default in (("split.no", 0), ("split.count", 1)))
    if count <= 1:
        return first
    named = split_number(first.path.name)
    shown = _shown(first.path)
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
                raise InputError(f"{_shown(path)}: no such file; it is part {len(parts) + 1} of {count} of {shown}")
            part = _read_file(path)
            parts += part.parts
            for key, wanted in (("split.no", len(parts) - 1), ("split.count", count)):
                if (found := _split_key(part, key, -1)) != wanted:
                    raise InputError(f"{_shown(path)}: key {quoted(key)} is {found}, but should be {wanted}")
            for info in part.tensors.values():
                if info.name in tensors:
                    raise InputError(f"{_shown(path)}: tensor {quoted(info.name)} is in another part too")
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


def _read_file(path: Path) -> GgufFile:
    """One file by itself."""
    mapping = _map(path)
    try:
        return _read(path, mapping)
    except BaseException:
        # Arrays of a half-read header may still point into the mapping; it then goes with them.
        with suppress(BufferError):
            mapping.close()
        raise


def _map(path: Path) -> mmap.mmap:
    """The file, mapped read-only, once it is known to be a regular file that is not empty."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            inside = _near(".gguf", (p.name for p in _listing(path) if p.suffix == ".gguf"), cutoff=0.0)
            raise InputError(f"{_shown(path)}: is a directory, not a GGUF file{inside}")
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{_shown(path)}: is a device or pipe, not a GGUF file")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise InputError(f"{_shown(path)}: is empty (0 bytes), not a GGUF file; download it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        folder = path.parent
        if path.is_symlink():
            raise InputError(f"{_shown(path)}: is a link to {_shown(path.readlink())}, which does not exist") from None
        if folder.is_dir():
            raise InputError(
                f"{_shown(path)}: no such file{_near(path.name, (p.name for p in _listing(folder)))}"
            ) from None
        raise InputError(f"{_shown(path)}: no such file, nor the directory {_shown(folder)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{_shown(path)}: can't be read: {reason}") from None


def _read(path: Path, mapping: mmap.mmap) -> GgufFile:
    size = len(mapping)
    magic = mapping[:4]
    if magic != b"GGUF":
        raise InputError(f"{_shown(path)}: not a GGUF file{_looks_like(mapping[:512])}")
    cursor = _Cursor(path, mapping, position=4)
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(
            f"{_shown(path)}: big-endian GGUF (version {int.from_bytes(version.to_bytes(4, 'little'))}); "
            "convert it to little-endian, for example with gguf-convert-endian"
        )
    if version not in _VERSIONS:
        raise UnsupportedError(
            f"{_shown(path)}: GGUF version {version}, but versions 2 and 3 are read; convert the model again"
        )
    tensor_count, key_count = cursor.u64("the tensor count"), cursor.u64("the key count")
    cursor.expect(key_count, _LEAST_KEY, "the key count")
    cursor.expect(tensor_count, _LEAST_TENSOR, "the tensor count", extra=key_count * _LEAST_KEY)
    for count, what in ((key_count, "keys"), (tensor_count, "tensors")):
        if count > _MAX_TABLE:
            cursor.fail(f"the header says {count} {what}, which is more than {_MAX_TABLE}")
    metadata = _read_keys(cursor, key_count)
    keys_end = cursor.position
    alignment = _alignment(path, metadata)
    table = [_read_tensor(cursor, number) for number in range(tensor_count)]
    # A file without tensors (a vocabulary) need not be padded.
    data_offset = _aligned(cursor.position, alignment) if table else cursor.position
    tensors: dict[str, TensorInfo] = {}
    for info in table:
        if info.name in tensors:
            raise InputError(f"{_shown(path)}: tensor {quoted(info.name)} is in the table twice")
        tensors[info.name] = TensorInfo(info.name, info.type, info.shape, data_offset + info.offset, info.nbytes)
    _check_places(path, tensors.values(), data_offset, alignment, size)
    owned = {key: _owned(value) for key, value in metadata.items()}
    part = Part(path, size, data_offset, keys_end, mapping)
    return GgufFile(path, version, alignment, MappingProxyType(owned), MappingProxyType(tensors), (part,))


class _Cursor:
    """A place in the header that moves forward; every step is checked against the file's size before it is taken."""

    def __init__(self, path: Path, mapping: mmap.mmap, position: int) -> None:
        self.path = path
        self.mapping = mapping
        self.size = len(mapping)
        self.position = position
        self.items = 0

    def fail(self, message: str) -> NoReturn:
        raise InputError(f"{_shown(self.path)}: {message}")

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes; returns where they begin."""
        begin = self.position
        if count > self.size - begin:
            self.fail(
                f"the header is cut off or damaged: {what} needs {count} bytes at {begin}, "
                f"but the file ends at {self.size}"
            )
        self.position = begin + count
        return begin

    def expect(self, count: int, least_bytes: int, what: str, extra: int = 0) -> None:
        """Refuse a count of items, each of at least `least_bytes`, that the rest of the file can't hold."""
        left = self.size - self.position - extra
        if count * least_bytes > left:
            self.fail(
                f"the header is cut off or damaged: {what} is {count}, "
                f"but the rest of the file ({max(left, 0)} bytes) can't hold that many"
            )
        self.items += count
        if self.items > _MAX_ITEMS:
            self.fail(f"{what} is {count}, which makes more than {_MAX_ITEMS} items in the header")

    def u32(self, what: str) -> int:
        return _U32.unpack_from(self.mapping, self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return _U64.unpack_from(self.mapping, self.take(8, what))[0]

    def string(self, what: str, most: int = _MAX_STRING_BYTES) -> str:
        length = self.u64(f"the length of {what}")
        if length > most:
            self.fail(f"{what} has a length of {length} bytes, the most is {most}")
        begin = self.take(length, what)
        return self.mapping[begin : begin + length].decode("utf-8", "surrogateescape")

    def name(self, what: str) -> str:
        name = self.string(what, _MAX_NAME_BYTES)
        if not name:
            self.fail(f"{what} is empty")
        return name

    def strings(self, count: int, what: str) -> tuple[str, ...]:
        """As `string`, many times; written out because a vocabulary has hundreds of thousands."""
        mapping, size, length_at, position = self.mapping, self.size, _U64.unpack_from, self.position
        found: list[str] = []
        for number in range(count):
            begin = position + 8
            if begin > size:
                self.position = position
                self.take(8, f"the length of string {number} in {what}")
            (length,) = length_at(mapping, position)
            position = begin + length
            if position > size:
                self.position = begin
                self.take(length, f"string {number} in {what}")
            found.append(mapping[begin:position].decode("utf-8", "surrogateescape"))
        self.position = position
        return tuple(found)


def _read_keys(cursor: _Cursor, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for number in range(count):
        key = cursor.name(f"the name of key {number}")
        if key in metadata:
            cursor.fail(f"key {quoted(key)} is there twice")
        value_type = cursor.u32(f"the type of key {quoted(key)}")
        metadata[key] = _read_value(cursor, value_type, f"key {quoted(key)}", depth=0)
    return metadata


def _read_value(cursor: _Cursor, value_type: int, what: str, depth: int) -> MetadataValue:
    if value_type in _SCALARS:
        dtype = _SCALARS[value_type]
        return np.frombuffer(cursor.mapping, dtype, 1, cursor.take(dtype.itemsize, what))[0].item()
    if value_type == _STRING:
        return cursor.string(what)
    if value_type != _ARRAY:
        cursor.fail(f"{what} has the value type {value_type}, but the types are 0 to {max(_SCALARS)}")
    if depth == _MAX_ARRAY_DEPTH:
        cursor.fail(f"{what} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
    element_type = cursor.u32(f"the element type of {what}")
    count = cursor.u64(f"the length of {what}")
    if element_type in _SCALARS:
        dtype = _SCALARS[element_type]
        if count * dtype.itemsize > _MAX_ARRAY_BYTES:
            cursor.fail(f"{what} has {count} elements, which are more than {_MAX_ARRAY_BYTES} bytes")
        return np.frombuffer(cursor.mapping, dtype, count, cursor.take(count * dtype.itemsize, what))
    if element_type == _STRING:
        cursor.expect(count, _LEAST_STRING, f"the length of {what}")
        return cursor.strings(count, what)
    cursor.expect(count, _LEAST_ARRAY, f"the length of {what}")
    return tuple(_read_value(cursor, element_type, what, depth + 1) for _ in range(count))


def _owned(value: MetadataValue) -> MetadataValue:
    """The value apart from the mapping. Copied only here, once the header is known to be sound."""
    if isinstance(value, tuple):
        return value if value and isinstance(value[0], str) else tuple(_owned(element) for element in value)
    if not isinstance(value, np.ndarray):
        return value
    # Any byte but 0 is true; numpy's own bool must be 0 or 1.
    array = value.view(np.uint8) != 0 if value.dtype == np.bool_ else value.copy()
    array.flags.writeable = False
    return array


def _alignment(path: Path, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is int and alignment in _ALIGNMENTS:
        return alignment
    raise InputError(
        f"{_shown(path)}: key 'general.alignment' is {_described(alignment)}, "
        f"but should be a power of two from {_ALIGNMENTS[0]} to {_ALIGNMENTS[-1]}"
    )


def _read_tensor(cursor: _Cursor, number: int) -> TensorInfo:
    """The next row of the tensor table, its offset still counted from the data's start."""
    name = cursor.name(f"the name of tensor {number}")
    what = f"tensor {quoted(name)}"
    dims = cursor.u32(f"the number of dimensions of {what}")
    if dims > _MAX_DIMS:
        cursor.fail(f"{what} has {dims} dimensions, the most is {_MAX_DIMS}")
    shape = tuple(reversed([cursor.u64(f"the shape of {what}") for _ in range(dims)]))
    if 0 in shape:
        cursor.fail(f"{what} has the shape {shape}, but no dimension may be 0")
    type_id = cursor.u32(f"the type of {what}")
    try:
        ggml_type = storable_by_id(type_id)
    except UnsupportedError as error:
        raise UnsupportedError(f"{_shown(cursor.path)}: {what}: {error}") from None
    row = shape[-1] if shape else 1
    if row % ggml_type.block_elements:
        cursor.fail(
            f"{what} of type {ggml_type.name} has rows of {row} elements, "
            f"but they should be a multiple of its block of {ggml_type.block_elements}"
        )
    offset = cursor.u64(f"the offset of {what}")
    return TensorInfo(name, ggml_type, shape, offset, ggml_type.nbytes(prod(shape)))


def _check_places(path: Path, tensors: Iterable[TensorInfo], data_offset: int, alignment: int, size: int) -> None:
    """Every tensor aligned, inside the file and apart from the others."""
    by_place = sorted(tensors, key=lambda info: info.offset)
    for info in by_place:
        what = f"{_shown(path)}: tensor {quoted(info.name)}"
        if info.offset % alignment:
            raise InputError(
                f"{what} is misaligned: its offset {info.offset - data_offset} should be a multiple of {alignment}"
            )
        if info.offset + info.nbytes > size:
            raise InputError(
                f"{what}: data past end of file: it ends at {info.offset + info.nbytes}, "
                f"but the file at {size}; the download or copy is incomplete"
            )
    for before, info in pairwise(by_place):
        if before.offset + before.nbytes > info.offset:
            raise InputError(
                f"{_shown(path)}: tensors {quoted(before.name)} and {quoted(info.name)} overlap: "
                f"the first ends at {before.offset + before.nbytes}, the second begins at {info.offset}"
            )


def _aligned(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment


# What people point a GGUF reader at instead, and how its first bytes tell.
_LOOKS: tuple[tuple[Callable[[bytes], object], str], ...] = (
    (lambda b: b.startswith(b"version https://git-lfs"), "a git-lfs pointer; fetch the file itself with git lfs pull"),
    (lambda b: re.match(rb"\s*<(!doctype|html|head|\?xml)", b, re.I), "an HTML page; the download gave a web page"),
    (lambda b: re.match(rb"(lmgg|fmgg|tjgg|algg)", b), "an old GGML file (before GGUF); convert the model to GGUF"),
    (lambda b: b.startswith(b"FUGG"), "a GGUF file with its bytes in reversed order"),
    (lambda b: len(b) > 8 and b[8:9] == b"{" and not any(b[6:8]), "a safetensors file; convert the model to GGUF"),
    (lambda b: b.startswith(b"PK\3\4"), "a zip archive or PyTorch checkpoint; unpack or convert it to GGUF"),
    (lambda b: re.match(rb"\x80[\x02-\x05]", b), "a Python pickle (PyTorch checkpoint); convert the model to GGUF"),
    (lambda b: b.startswith(b"\x1f\x8b"), "a gzip archive; unpack it"),
    (lambda b: b.startswith(b"\x28\xb5\x2f\xfd"), "a zstd archive; unpack it"),
    (lambda b: re.match(rb"\s*[{\[]", b), "a JSON text"),
    (lambda b: not any(b), "an unfinished download (nothing but zero bytes at the start)"),
)


def _looks_like(head: bytes) -> str:
    look = next((text for test, text in _LOOKS if test(head)), f"nothing known: it begins with {head[:4]!r}")
    return f"; it looks like {look}"


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


def _described(value: MetadataValue) -> str:
    """The value for a message: its kind, and the value itself where that is short."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} numbers ({value.dtype.name})"
    if isinstance(value, tuple):
        return f"an array of {len(value)} {'strings' if all(isinstance(v, str) for v in value) else 'arrays'}"
    return f"{_KINDS[type(value)]} ({quoted(value, 40) if isinstance(value, str) else value})"


def _shown(path: Path) -> str:
    """The path for a message: as it is when every character can be seen, else quoted."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _listing(folder: Path) -> list[Path]:
    """Some of the folder's entries; enough to find what was meant."""
    with suppress(OSError):
        return list(islice(folder.iterdir(), 2000))
    return []


def _near(name: str, candidates: Iterable[str], cutoff: float = 0.6) -> str:
    found = near(name, candidates, cutoff=cutoff)
    return f"; near: {', '.join(map(quoted, found))}" if found else ""
