"""The header of one file: its keys, its table of tensors, and whether what they say can be."""

import mmap
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ..errors import InputError, UnsupportedError, quoted, shown_path
from ..ggml_types import storable_by_id
from .cursor import ARRAY_MEMORY, Budget, Cursor
from .file import GgufFile, MetadataValue, Part, TensorInfo, described
from .mapping import looks_like

DEFAULT_ALIGNMENT = 32
_ALIGNMENTS = tuple(1 << n for n in range(3, 31))
_VERSIONS = (2, 3)
_MAX_DIMS = 4
# Limits far above any real model, so that even a large file full of nonsense is refused soon.
_MAX_TABLE = 1 << 16  # keys, and tensors
_MAX_ARRAY_DEPTH = 4

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


def read_header(path: Path, mapping: mmap.mmap, budget: Budget) -> GgufFile:
    """What the header of a mapped file says, once all of it was checked; the budget is what it may take of memory.

    Raises:
        InputError, UnsupportedError: as `read_gguf`.
    """
    size = len(mapping)
    magic = mapping[:4]
    if magic != b"GGUF":
        raise InputError(f"{shown_path(path)}: not a GGUF file{looks_like(mapping[:512])}")
    cursor = Cursor(path, mapping, 4, budget)
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise UnsupportedError(
            f"{shown_path(path)}: big-endian GGUF (version {int.from_bytes(version.to_bytes(4, 'little'))}); "
            "convert it to little-endian, for example with gguf-convert-endian"
        )
    if version not in _VERSIONS:
        raise UnsupportedError(
            f"{shown_path(path)}: GGUF version {version}, but versions 2 and 3 are read; convert the model again"
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
            raise InputError(f"{shown_path(path)}: tensor {quoted(info.name)} is in the table twice")
        tensors[info.name] = TensorInfo(info.name, info.type, info.shape, data_offset + info.offset, info.nbytes)
    _check_places(path, tensors.values(), data_offset, alignment, size)
    owned = {key: _owned(value) for key, value in metadata.items()}
    part = Part(path, size, data_offset, keys_end, mapping)
    return GgufFile(path, version, alignment, MappingProxyType(owned), MappingProxyType(tensors), (part,))


def _read_keys(cursor: Cursor, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for number in range(count):
        key = cursor.name(f"the name of key {number}")
        if key in metadata:
            cursor.fail(f"key {quoted(key)} is there twice")
        value_type = cursor.u32(f"the type of key {quoted(key)}")
        metadata[key] = _read_value(cursor, value_type, f"key {quoted(key)}", depth=0)
    return metadata


def _read_value(cursor: Cursor, value_type: int, what: str, depth: int) -> MetadataValue:
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
        begin = cursor.take(count * dtype.itemsize, what)
        cursor.claim(2 * count * dtype.itemsize, f"the length of {what} is {count}, which")  # mapped, and copied
        return np.frombuffer(cursor.mapping, dtype, count, begin)
    if element_type == _STRING:
        cursor.expect(count, _LEAST_STRING, f"the length of {what}")
        return cursor.strings(count, what)
    cursor.expect(count, _LEAST_ARRAY, f"the length of {what}", memory=ARRAY_MEMORY)
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
        f"{shown_path(path)}: key 'general.alignment' is {described(alignment)}, "
        f"but should be a power of two from {_ALIGNMENTS[0]} to {_ALIGNMENTS[-1]}"
    )


def _read_tensor(cursor: Cursor, number: int) -> TensorInfo:
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
        raise UnsupportedError(f"{shown_path(cursor.path)}: {what}: {error}") from None
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
        what = f"{shown_path(path)}: tensor {quoted(info.name)}"
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
                f"{shown_path(path)}: tensors {quoted(before.name)} and {quoted(info.name)} overlap: "
                f"the first ends at {before.offset + before.nbytes}, the second begins at {info.offset}"
            )


def _aligned(position: int, alignment: int) -> int:
    return (position + alignment - 1) // alignment * alignment
