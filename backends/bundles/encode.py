"""The weights of a model in another encoding, written to an archive tensor by tensor, some rows at a time.

A matrix is what an embedding or a product reads. `irpa` leaves all tensors as they are; `f32`, `bf16` and `int8` encode
the matrices anew, from the values that GGML's reference gives, and leave the rest.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from io import FileIO
from math import prod
from pathlib import Path

import numpy as np

from ...frontend.errors import InputError, quoted
from ...frontend.ggml_types import GgmlType, by_name
from ...frontend.gguf.file import GgufFile, TensorInfo
from ...frontend.near import near, nearest
from ...graph.model import Model, lower_model
from ...graph.ops import MATRIX_READERS
from ..native.kernels.embed import embed
from ..native.launch import launch
from .archive import archived, lay_out
from .manifest import ENCODINGS

_MOST_ELEMENTS = 1 << 18
"""Of a matrix that are in memory at once, but for rows that are longer."""


def check_encoding(weights: str, keep: Sequence[str]) -> None:
    """Refuses an encoding that there isn't, and patterns where nothing is encoded.

    Raises:
        InputError: either of the two.
    """
    if weights not in ENCODINGS:
        hint = nearest(weights, ENCODINGS)
        raise InputError(f"no encoding {weights!r} of weights{hint}; there are {', '.join(ENCODINGS)}")
    if keep and weights not in _ENCODERS:
        raise InputError(f"weights as {weights} are all kept as they are, so there is nothing to choose with --keep")


def begin(model: Model, archive: Path, weights: str, keep: Sequence[str] = ()) -> Model:
    """Makes an archive without its data, and gives the model as it will lie in it; `fill` writes the data.

    Args:
        model: the model of a GGUF.
        archive: the file to make.
        weights: `irpa`, `f32`, `bf16` or `int8`.
        keep: patterns of the names of matrices that stay as they are.

    Raises:
        InputError: a pattern that no matrix's name fits.
        OSError: the archive can't be written.
    """
    matrices = _matrices(model)
    for pattern in keep:
        if not any(fnmatchcase(name, pattern) for name in matrices):
            found = ", ".join(near(pattern, matrices, 1, 0.0))
            raise InputError(f"{model.file.path}: no matrix is called {pattern!r}; near: {found}")
    chosen = {name for name in matrices if not any(fnmatchcase(name, pattern) for pattern in keep)}
    tensors = model.file.tensors.values()
    table = ((t.name, _encoded(t, weights) if t.name in chosen else t.type, t.shape) for t in tensors)
    layout = lay_out(table, model.file.header_sha256())
    with archive.open("wb") as file:
        file.write(layout.header)
        file.flush()
        _reserve(file.fileno(), layout.size)
    file = archived(model.file, archive, layout.tensors, len(layout.header))
    return lower_model(file, definition=model.definition)


def fill(source: GgufFile, target: GgufFile, threads: int) -> None:
    """Writes every tensor of `source` to its place in the archive of `target`.

    Raises:
        InputError: a file can't be read, or a row has no finite scale.
        OSError: the archive can't be written.
    """
    parts = [part.path for part in source.parts]
    with target.parts[0].path.open("r+b") as archive:
        for info in target.tensors.values():
            before = source.tensors[info.name]
            archive.seek(info.offset)
            for raw in _rows(before, parts[before.part]):
                if info.type is before.type:
                    archive.write(raw.data)
                    continue
                values = _values(before, raw, threads)
                if info.type.name == "int8" and not np.isfinite(values).all():
                    raise InputError(
                        f"{source.path}: tensor {quoted(info.name)} has numbers that are not finite, for which int8 "
                        f"has no scale; leave it as it is with --keep {info.name}"
                    )
                archive.write(_ENCODERS[info.type.name](values).data)


def _reserve(file: int, size: int) -> None:
    """Makes a file so long, and where the system can do it takes the room, so that a full disk shows at once."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)


def _matrices(model: Model) -> list[str]:
    """The tensors that only embeddings and products read, which take any type."""
    graphs = [graph for graph in (model.graph, model.embedding) if graph]
    uses = [(w.stored_name, op.name in MATRIX_READERS) for g in graphs for op in g.ops for w in op.weights]
    others = {name for name, is_matrix in uses if not is_matrix}
    return [name for name in dict(uses) if name not in others]


def _encoded(tensor: TensorInfo, weights: str) -> GgmlType:
    """The type of a matrix in an encoding; one whose rows don't divide into that type's blocks keeps its own."""
    if weights not in _ENCODERS:
        return tensor.type
    type_ = by_name(weights)
    return tensor.type if tensor.shape[-1] % type_.block_elements else type_


def _rows(info: TensorInfo, path: Path) -> Iterable[np.ndarray]:
    """A tensor's raw rows, uint8 (rows, row_bytes), some at a time. They are read, not mapped: mapped pages would count
    as memory of the process until the system takes them back."""
    rows, cols = prod(info.shape[:-1]), info.shape[-1] if info.shape else 1
    width = info.type.nbytes(cols)
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(info.offset)
            for first in range(0, rows, step := max(1, _MOST_ELEMENTS // cols)):
                raw = np.empty((min(step, rows - first), width), np.uint8)
                _read_into(file, raw, path)
                yield raw
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None


def _read_into(file: FileIO, raw: np.ndarray, path: Path) -> None:
    left = raw.data.cast("B")
    while left:
        count = file.readinto(left)
        if not count:
            raise InputError(f"{path}: became shorter while it was read")
        left = left[count:]


def _values(info: TensorInfo, raw: np.ndarray, threads: int) -> np.ndarray:
    """float32 (rows, cols) of raw rows."""
    rows, cols = len(raw), info.shape[-1]
    y = np.empty((rows, cols), np.float32)
    arrays = {"ids": np.arange(rows, dtype=np.int32), "w": raw, "y": y}
    launch(embed(info.type.name), arrays, {"tokens": rows, "rows": rows, "cols": cols}, threads)
    return y


def _f32(values: np.ndarray) -> np.ndarray:
    return values.astype("<f4", copy=False)


def _bf16(values: np.ndarray) -> np.ndarray:
    """The nearest BF16, ties to even; NaN stays one."""
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype("<u2")


def _int8(values: np.ndarray) -> np.ndarray:
    """Rows of a scale, the largest magnitude over 127, and the nearest whole multiples of it, ties to even."""
    scales = (np.abs(values).max(1, keepdims=True) / np.float32(127)).astype("<f4")
    quotients = np.divide(values, scales, out=np.zeros_like(values), where=scales != 0)
    # the scale of a row of subnormal numbers is rounded coarsely, so that its multiples may go past 127
    whole = np.clip(np.rint(quotients), -127, 127).astype(np.int8)
    return np.concatenate([scales.view(np.uint8), whole.view(np.uint8)], 1)


_ENCODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"f32": _f32, "bf16": _bf16, "int8": _int8}
"""float32 (rows, cols) to whatever has the bytes of the rows."""
