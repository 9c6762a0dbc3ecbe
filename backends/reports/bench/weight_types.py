"""How fast a matrix of each weight type is multiplied with one row, in a compiled module and by the native backend,
beside the speed at which the same threads read memory."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ....frontend.errors import InputError
from ....frontend.ggml_types import by_name
from ....graph.ir import Graph, Op, Value, Weight
from ....graph.ops import OWN_TYPES, WEIGHT_TYPES
from ....graph.types import TensorType
from ....graph.verify import verify
from ...executor import Executor
from ...host.cores import usable_cores
from ...host.folders import owned_folder
from ...iree.compile import compile_module
from ...iree.parameters import Place
from ...iree.runtime import IreeExecutor
from ...jax.module import portable_module
from ...native.executor import NativeExecutor
from ...native.kernels.embed import embed
from ...native.launch import launch
from ...native.target import host_target
from ...progress import Progress, silent
from ..bandwidth import ReadBandwidth, noise
from .speed import counted

SIDE = 4096
"""Rows and columns of a matrix."""
TOTAL = 128 << 20
"""Bytes of the different matrices that one run reads: several times a cache."""
_STRIP = 64
"""Rows of random blocks, of which matrices are made."""
_LARGEST, _LEAST = 64.0, 2.0**-24
"""What the values of a block are held to: sums stay finite, and products are not subnormal, which are slow."""
_ENTRY = "decode"


def bench_types(
    types: Sequence[str] = (),
    *,
    threads: Sequence[int] = (),
    rounds: int = 9,
    side: int = SIDE,
    total: int = TOTAL,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measures products of random matrices with one row, in turn with reads of memory.

    Args:
        types: of the weights; none given: every one.
        threads: numbers of workers; none given: 1 and one for each core.
        rounds: of which medians are taken, after one that doesn't count.
        side: rows and columns of a matrix.
        total: bytes of matrices that a run reads at least.
        progress: told of each stage.

    Returns:
        `rows`: for each type `type`, `bits` of a weight, and `by_threads`, for each number of threads `threads`,
        `read_gb_s` (of memory), and for `native` and `vmfb` each `gb_s` of the matrices' bytes and `fraction` of the
        memory's speed; `rows_and_columns`; `notes`.

    Raises:
        InputError: a type that there isn't, or no room for temporary files.
    """
    known = (*WEIGHT_TYPES, *OWN_TYPES)
    types = types or known
    for name in types:
        if name not in known:
            raise InputError(f"no type of weights {name!r}; there are {', '.join(known)}")
    workers = tuple(dict.fromkeys(threads or (1, usable_cores())))
    bandwidths = {n: ReadBandwidth(n) for n in workers}
    reads: dict[int, list[float]] = {n: [] for n in workers}
    rows = []
    with _bank(max(_count(name, side, total) * _nbytes(name, side, side) for name in types) + 4 * side) as bank:
        for number, name in enumerate(types, 1):
            progress(f"type {number} of {len(types)}: {name}")
            case = _Case(name, side, _count(name, side, total), bank)
            by_threads = [case.measured(n, bandwidths[n], rounds, reads[n]) for n in workers]
            bits = 8 * _nbytes(name, 1, side) / side
            rows.append({"type": name, "bits": bits, "by_threads": by_threads})
    for bandwidth in bandwidths.values():
        bandwidth.close()
    return {"rows_and_columns": side, "rows": rows, "notes": _notes(reads, rows)}


def _count(name: str, side: int, total: int) -> int:
    return -(-total // _nbytes(name, side, side))


def _nbytes(name: str, rows: int, cols: int) -> int:
    return by_name(name).nbytes(cols, rows)


@contextmanager
def _bank(size: int) -> Iterator[Path]:
    """A file of zeros, in which one type's matrices after the other are written: what maps it, maps it once."""
    place = Path(tempfile.gettempdir())
    try:
        with owned_folder(place, "ggufc-bench-") as folder:
            path = folder / "weights"
            with path.open("wb") as file:
                for start in range(0, size, 1 << 20):
                    file.write(bytes(min(1 << 20, size - start)))
            yield path
    except OSError as error:
        where = os.fsdecode(error.filename or place)
        raise InputError(f"{where}: {error.strerror or error}; measuring needs {size >> 20} MB in TMPDIR") from None


class _Case:
    """Matrices of one type, written into the bank, and a program that multiplies each with the same row."""

    def __init__(self, name: str, side: int, count: int, bank: Path) -> None:
        self.nbytes = count * _nbytes(name, side, side)
        self._bank = bank
        self._graph = products(name, side, count)
        row = 4 * side
        each = _nbytes(name, side, side)
        self._places = {"x": Place(0, row)} | {str(n): Place(row + n * each, each) for n in range(count)}
        self._bytes = np.memmap(bank, np.uint8, "r+")
        rng = np.random.default_rng(0)
        self._bytes[:row] = rng.standard_normal(side, np.float32).view(np.uint8)
        strip = random_rows(rng, name, min(_STRIP, side), side)
        self._bytes[row : row + self.nbytes].reshape(-1, strip.size)[:] = strip.reshape(-1)
        compiled = compile_module(portable_module([self._graph]), self._places, host_target())
        self._parameters = compiled.parameters
        self._vmfb = bank.with_name(f"{name}.vmfb")
        self._vmfb.write_bytes(compiled.vmfb)

    def measured(self, threads: int, bandwidth: ReadBandwidth, rounds: int, reads: list[float]) -> dict[str, Any]:
        """One row of the table; the memory's speeds are added to `reads`."""
        executors: dict[str, Executor] = {
            "native": NativeExecutor({_ENTRY: self._graph}, self._weight, threads, exact=False),
            "vmfb": IreeExecutor(self._vmfb, [self._bank], self._parameters, (), (_ENTRY,), threads),
        }
        for executor in executors.values():
            self._run(executor)
        speeds: dict[str, list[float]] = {name: [] for name in executors}
        mine = []
        for _ in range(rounds):
            mine.append(bandwidth.measure())
            for name, executor in executors.items():
                speeds[name].append(self.nbytes / self._run(executor))
        reads += mine
        read = median(mine)
        return {"threads": threads, "read_gb_s": read / 1e9} | {
            name: {"gb_s": median(found) / 1e9, "fraction": median(found) / read} for name, found in speeds.items()
        }

    def _weight(self, name: str) -> np.ndarray:
        place = self._places[name]
        return self._bytes[place.offset : place.offset + place.nbytes]

    @staticmethod
    def _run(executor: Executor) -> float:
        start = perf_counter()
        executor.run(_ENTRY, np.zeros(1, np.int32), 0, [], [])
        return perf_counter() - start


def products(name: str, side: int, count: int) -> Graph:
    """One row, and to it added its products with `count` matrices: `@decode(tokens, position) -> sum`. The row is the
    tensor `x`, the matrices are `0`, `1` and so on."""
    tokens, position = Value("tokens", TensorType("i32", (1,))), Value("position", TensorType("i32", ()))
    line, ops = TensorType("f32", (1, side)), []

    def add(operation: str, *operands: Value | Weight, **attributes: Any) -> Value:
        result = Value(str(len(ops)), line)
        ops.append(Op(operation, operands, tuple(sorted(attributes.items())), result))
        return result

    x = add("embed", tokens, Weight("x", line))
    total = x
    for n in range(count):
        matrix = Weight(str(n), TensorType(name, (side, side)))
        total = add("add", total, add("linear", x, matrix, shape=(side,)))
    return verify(Graph(_ENTRY, (tokens, position), tuple(ops), (total,)))


def random_rows(rng: np.random.Generator, name: str, rows: int, cols: int) -> np.ndarray:
    """Raw rows of a type, uint8 (rows, bytes): random numbers, of quantized types any blocks of not too large ones."""
    if name in _ENCODED:
        return _ENCODED[name](rng.standard_normal((rows, cols), np.float32)).view(np.uint8)
    kind = by_name(name)
    raw = rng.integers(0, 256, (rows * cols // kind.block_elements, kind.block_bytes), np.uint8)
    values = np.empty((rows, cols), np.float32)
    ids = np.arange(rows, dtype=np.int32)
    launch(embed(name), {"ids": ids, "w": raw, "y": values}, {"tokens": rows, "rows": rows, "cols": cols})
    largest = np.abs(values.reshape(len(raw), -1)).max(1)
    sound = (largest < _LARGEST) & (largest >= _LEAST)  # which NaN is not
    raw[~sound] = raw[rng.choice(np.flatnonzero(sound), np.count_nonzero(~sound))]
    return raw.reshape(rows, -1)


_ENCODED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "f32": lambda values: values,
    "f16": lambda values: values.astype(np.float16),
    "bf16": lambda values: (values.view(np.uint32) >> 16).astype(np.uint16),
    "int8": lambda values: np.hstack(
        [np.full((len(values), 1), 1 / 32, "<f4").view(np.int8), np.int8(32 * values.clip(-3, 3))]
    ),
}


def _notes(reads: dict[int, list[float]], rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = [f"{counted(n, 'thread')}: {said}" for n, found in reads.items() if (said := noise(found))]
    measured = [(row["type"], one[home]["fraction"]) for row in rows for one in row["by_threads"] for home in _HOMES]
    if above := sorted({name for name, fraction in measured if fraction > 1}):
        notes.append(
            f"{', '.join(above)}: read faster than memory was measured to be: the machine was busy meanwhile, or its "
            "cache holds a part of the matrices"
        )
    return notes


_HOMES = ("native", "vmfb")
