"""The caches of one session: rings of rows that grow with its text, a window's no further than it needs."""

from collections.abc import Iterator

from ..caches import CacheSpec
from ..executor import Executor

CHUNK = 512
"""Most tokens of one call: bounds the memory of a prefill, and what a ring holds beyond its window."""
FIRST_ROWS = 256
"""Rows of a cache at first; it doubles when it is full."""
SPARE_ROWS = 128
"""Rows that a cache has beyond what it was grown for, so that the first tokens after a prompt don't wait for memory."""


class Rings:
    """Empty caches, in the order of `executor.caches`.

    Args:
        executor: to which the buffers belong.
        context_length: most positions.

    Attributes:
        buffers: the caches, as `Executor.run` takes them.
        rows: how many rows each has.
    """

    def __init__(self, executor: Executor, context_length: int) -> None:
        self._executor, self._context_length = executor, context_length
        self.rows = [0] * len(executor.caches)
        self.buffers: list[object] = [None] * len(self.rows)
        self._enough = 0  # positions for which no cache has to grow
        self._highest = 0  # end of what the rings hold, which a rewind doesn't lower

    def reserve(self, length: int) -> None:
        """Before positions up to `length` are written: every cache is made long enough for them, or as long as its ring
        ever is."""
        self._highest = max(self._highest, length)
        if length <= self._enough:
            return
        for n, spec in enumerate(self._executor.caches):
            rows = self._rows_for(spec, length)
            if rows > self.rows[n]:
                old, executor = self.buffers[n], self._executor
                self.buffers[n] = executor.allocate(spec, rows) if old is None else executor.resize(spec, old, rows)
                self.rows[n] = rows
        growing = (rows for spec, rows in self._layout() if rows < self._most_rows(spec))
        self._enough = min(growing, default=self._context_length + SPARE_ROWS) - SPARE_ROWS

    def remember(self, position: int) -> bool:
        """Whether the caches still hold all that a token at an earlier position sees."""
        return all(
            not spec.rows and (not spec.window or self._highest <= max(rows, position - spec.window + 1 + rows))
            for spec, rows in self._layout()
        )

    def nbytes(self) -> int:
        """Bytes that the caches take now."""
        return sum(spec.nbytes(rows) for spec, rows in self._layout())

    def _layout(self) -> Iterator[tuple[CacheSpec, int]]:
        """Each cache with the number of its rows now."""
        return zip(self._executor.caches, self.rows, strict=True)

    def _most_rows(self, spec: CacheSpec) -> int:
        return spec.rows or (spec.window + CHUNK if spec.window else self._context_length)

    def _rows_for(self, spec: CacheSpec, length: int) -> int:
        if spec.rows:
            return spec.rows
        rows = FIRST_ROWS
        while rows < length + SPARE_ROWS:
            rows *= 2
        return min(rows, self._most_rows(spec))
