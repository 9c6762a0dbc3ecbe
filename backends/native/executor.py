"""Runs graphs with the kernels on the mapped file: the reference path, and the fast one without a compiled module."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...graph.ir import Graph, Op
from ..caches import KV_TYPES, CacheSpec, cache_specs
from .kernels.linear_many_bytes import rounded_to_bytes
from .launch import loaded, word
from .program import CacheRows, Program, WeightBytes, lower
from .target import host_target
from .team import Team, record

_RESULTS = {"f32": np.float32, "i32": np.int32}
_KEPT = 8
"""Programs, one for each entry point and number of tokens, that are kept for the next call of that kind."""


@dataclass(frozen=True)
class _Buffer:
    """A cache: the array, and its address, which numpy is slow to tell."""

    array: np.ndarray
    address: int


@dataclass(frozen=True)
class Timed:
    """The seconds that an operation took, and the names of the kernels that it ran."""

    op: Op
    kernels: tuple[str, ...]
    seconds: float


class NativeExecutor:
    """Programs of kernels over one mapped file. Sessions over it share weights, code and the memory of one call.

    Args:
        graphs: the entry points by name: `prefill` and `decode`, and `forward` for a run without caches.
        weights: gives the raw bytes of a tensor, uint8, which stay where they are.
        threads: workers.
        exact: float32 arithmetic on weights that are dequantized a part at a time; a result then doesn't depend on how
            the tokens were divided among calls. Otherwise products take the blocks as they are and round activations
            to 15 bits.
        activations: 8 lets products of many tokens round them to 8 bits, where the processor gains by it.
    """

    def __init__(
        self, graphs: Mapping[str, Graph], weights: WeightBytes, threads: int, exact: bool, activations: int = 16
    ) -> None:
        self.caches = cache_specs(graphs)
        self._graphs, self._weights, self._exact = graphs, weights, exact
        self._threads, self._by_bytes = threads, rounded_to_bytes(activations, host_target())
        self._team = Team(threads)
        self._arena = np.empty(0, np.uint8)
        self._bound: dict[tuple[str, int], _Bound] = {}
        self._lock = threading.Lock()

    def allocate(self, spec: CacheSpec, rows: int) -> _Buffer:
        array = np.zeros((rows, *spec.array_row), KV_TYPES[spec.dtype])
        return _Buffer(array, array.ctypes.data)

    def resize(self, spec: CacheSpec, buffer: object, rows: int) -> _Buffer:
        assert isinstance(buffer, _Buffer)
        longer = self.allocate(spec, rows)
        longer.array[: len(buffer.array)] = buffer.array
        return longer

    def run(
        self, entry: str, tokens: np.ndarray, position: int, buffers: list[object], rows: Sequence[int]
    ) -> np.ndarray:
        with self._lock:
            result = self._call(entry, tokens, position, buffers, rows)
        return result if entry == "decode_greedy" else result[0]

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        with self._lock:
            return self._call("encode", tokens, 0, [], ())

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        """The run without a cache: int32 (T,) to logits float32 (T, vocabulary) of every position."""
        with self._lock:
            return self._call("forward", tokens, 0, [], ())

    def profile(self, entry: str, tokens: np.ndarray, position: int, runs: int = 5) -> list[Timed]:
        """Where an entry point spends its time, over caches of its own that hold ones.

        Args:
            entry: its name.
            tokens: int32 ids, as for `run`; of `decode` one.
            position: of the first of them; 0 where the entry point has none.
            runs: that are measured, after one that isn't; medians count.

        Returns:
            One for each operation of the graph that takes time, in its order.
        """
        length = position + len(tokens)
        rows = [c.rows or min(length, c.window + len(tokens) if c.window else length) for c in self.caches]
        buffers = [self.allocate(spec, count) for spec, count in zip(self.caches, rows, strict=True)]
        for buffer in buffers:
            buffer.array.fill(1)  # pages that nobody wrote to are all the same one, and always in the processor's cache
        with self._lock:
            self._call(entry, tokens, position, buffers, rows)
            bound = self._program(entry, len(tokens))
            seconds = np.median([self._team.profile(bound.records) for _ in range(runs)], axis=0)
        found: dict[int, Timed] = {}
        for call, spent in zip(bound.program.calls, seconds.tolist(), strict=True):
            before = found.get(call.op, Timed(self._graphs[entry].ops[call.op], (), 0.0))
            found[call.op] = Timed(before.op, (*before.kernels, call.kernel.name), before.seconds + spent)
        return [found[n] for n in sorted(found)]

    def _call(
        self, entry: str, tokens: np.ndarray, position: int, buffers: Sequence[object], rows: Sequence[int]
    ) -> np.ndarray:
        bound = self._program(entry, len(tokens))
        program = bound.program
        program.tokens[:] = tokens
        program.position[0] = position
        bound.set_caches([b.address for b in buffers if isinstance(b, _Buffer)], rows)
        self._team.run(bound.records)
        return bound.result.copy()

    def _program(self, entry: str, tokens: int) -> _Bound:
        """The program for so many tokens, from the ones used lately or made now."""
        bound = self._bound.pop((entry, tokens), None)
        if bound is None:
            program = lower(self._graphs[entry], tokens, self._weights, self._exact, self._by_bytes)
            if program.arena_bytes > len(self._arena):
                self._bound.clear()  # they hold addresses in the arena that goes
                self._arena = np.empty(program.arena_bytes, np.uint8)
            bound = _Bound(program, self._arena, self._threads)
            while len(self._bound) >= _KEPT:
                self._bound.pop(next(iter(self._bound)))
        self._bound[(entry, tokens)] = bound  # the latest stands last
        return bound


class _Bound:
    """A program with its addresses, as the team takes it."""

    def __init__(self, program: Program, arena: np.ndarray, threads: int) -> None:
        self.program = program
        base, target = arena.ctypes.data, host_target()
        words: list[int] = []
        starts: list[int] = []
        addresses: list[tuple[int, int, int]] = []  # word, cache, offset
        sizes: list[tuple[int, int]] = []  # word, cache
        known: dict[int, int] = {}
        for call in program.calls:
            starts.append(len(words))
            for buffer in call.kernel.buffers:
                place = call.operands[buffer.name]
                if place.cache is not None:
                    addresses.append((len(words), place.cache, place.offset))
                    words.append(0)
                elif place.array is not None:
                    key = id(place.array)
                    words.append(known.setdefault(key, place.array.ctypes.data) + place.offset)
                else:
                    words.append(base + place.offset)
            for scalar in call.kernel.scalars:
                value = call.scalars[scalar.name]
                if isinstance(value, CacheRows):
                    sizes.append((len(words), value.cache))
                    words.append(0)
                else:
                    words.append(word(value, scalar.dtype))
            words += call.groups()
        self._words = np.array(words, np.int64)
        self._addresses = np.array(addresses, np.int64).reshape(-1, 3).T
        self._sizes = np.array(sizes, np.int64).reshape(-1, 2).T
        first = self._words.ctypes.data
        self.records = np.array(
            [
                record(loaded(call.kernel, target).address, first + 8 * start, int(np.prod(call.groups())), threads)
                for call, start in zip(program.calls, starts, strict=True)
            ],
            np.int64,
        )
        at = program.result.offset
        size = 4 * int(np.prod(program.result_shape))
        self.result = arena[at : at + size].view(_RESULTS[program.result_dtype]).reshape(program.result_shape)

    def set_caches(self, addresses: Sequence[int], rows: Sequence[int]) -> None:
        """Tells the kernels where the caches are in this call, and how long."""
        if len(addresses):
            word, cache, offset = self._addresses
            self._words[word] = np.array(addresses, np.int64)[cache] + offset
            word, cache = self._sizes
            self._words[word] = np.array(rows, np.int64)[cache]
