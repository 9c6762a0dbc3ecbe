"""What every backend is to a session."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .caches import CacheSpec


class Executor(Protocol):
    """Runs the entry points of one model. Buffers belong to the executor; a session only keeps and passes them."""

    @property
    def caches(self) -> tuple[CacheSpec, ...]:
        """The caches of `prefill` and `decode`, in the order of their arguments."""
        ...

    def allocate(self, spec: CacheSpec, rows: int) -> object:
        """A cache buffer of zeros."""
        ...

    def resize(self, spec: CacheSpec, buffer: object, rows: int) -> object:
        """A longer buffer that begins with the rows of `buffer`, which is given up."""
        ...

    def run(
        self, entry: str, tokens: np.ndarray, position: int, buffers: list[object], rows: Sequence[int]
    ) -> np.ndarray:
        """Calls an entry point.

        Args:
            entry: `prefill`, or for a single token `decode` or `decode_greedy`.
            tokens: int32 ids, checked by the caller.
            position: of the first token.
            buffers: the caches; replaced in place where the executor returns new ones.
            rows: how many rows of each cache the call may see and write.

        Returns:
            float32 (vocabulary,), the logits of the last token; of `decode_greedy` int32 (1,), the likeliest next one,
            or -1 where a logit is NaN or infinite, or all are -inf.
        """
        ...

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        """Calls the entry point `encode`: int32 ids to float32 (rows, dim), one row where the model pools."""
        ...
