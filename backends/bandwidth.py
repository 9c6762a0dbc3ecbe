"""How fast this machine reads its memory: the bound on decoding, which reads every weight for every token."""

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

SIZE = 256 << 20
"""Bytes read at a time: several times any cache."""


class ReadBandwidth:
    """A buffer that is read whole by so many threads, each time it is asked."""

    def __init__(self, threads: int) -> None:
        self._parts = np.array_split(np.ones(SIZE // 8, np.uint64), threads)
        self._pool = ThreadPoolExecutor(threads)

    def measure(self) -> float:
        """Bytes per second of one pass. An OR is the lightest reduction that numpy has in vector instructions."""
        start = perf_counter()
        list(self._pool.map(np.bitwise_or.reduce, self._parts))
        return SIZE / (perf_counter() - start)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()
