"""How fast this machine reads its memory: the bound on decoding, which reads every weight for every token."""

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from time import perf_counter

import numpy as np

SIZE = 256 << 20
"""Bytes read at a time: several times any cache."""
PASSES = 4
"""Of which the fastest counts, for whatever else runs on a machine only ever makes one slower."""
NOISE = 0.15
"""How far measurements may lie from their median, as a part of it, before they are called noisy."""


class ReadBandwidth:
    """A buffer that is read whole by so many threads, each time it is asked.

    The C library's `memcmp` of two equal halves reads two streams with the widest loads that the machine has and writes
    nothing; numpy's reductions read 5 to 20 % slower on one thread.
    """

    def __init__(self, threads: int, size: int = SIZE) -> None:
        self._halves = np.ones((threads, 2, size // (2 * threads)), np.uint8)
        self._compare = ctypes.CDLL(None).memcmp
        self._compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._pool = ThreadPoolExecutor(threads)

    def measure(self) -> float:
        """Bytes per second, of several passes the fastest."""
        return max(self._pass() for _ in range(PASSES))

    def _pass(self) -> float:
        start = perf_counter()
        for future in [self._pool.submit(self._read, first, second) for first, second in self._halves]:
            future.result()
        return self._halves.nbytes / (perf_counter() - start)

    def _read(self, first: np.ndarray, second: np.ndarray) -> None:
        self._compare(first.ctypes.data, second.ctypes.data, first.nbytes)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


def scatter(figures: Sequence[float]) -> float:
    """How far the furthest figure lies from their median, as a part of it."""
    middle = median(figures)
    return max(max(figures) - middle, middle - min(figures)) / middle


def noise(reads: Sequence[float]) -> str:
    """What to say of measurements that lie too far apart; nothing where they don't."""
    if scatter(reads) <= NOISE:
        return ""
    return (
        f"memory read {min(reads) / 1e9:.1f} to {max(reads) / 1e9:.1f} GB/s: the machine was busy, or its memory "
        "changed its speed, so figures and their share of the bandwidth are uncertain"
    )
