"""What can be fed tokens, one sequence at a time: a session, or another program's model beside it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Engine(Protocol):
    """The part of `Session` that measuring and comparing need; `LlamaCpp` has it too."""

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        """Feeds tokens; float32 (vocabulary,), the logits after the last of them."""
        ...

    def decode(self, token: int) -> np.ndarray:
        """Feeds one token; as `prefill`."""
        ...

    def decode_greedy(self, token: int) -> int:
        """Feeds one token; the likeliest next one."""
        ...

    def embed(self, ids: Sequence[int], /) -> np.ndarray:
        """The embedding of a text, float32 (dim,) or (tokens, dim); of an engine that has loaded a model with one."""
        ...

    def classify(self, ids: Sequence[int], /) -> np.ndarray:
        """The scores of a classifier's head, float32 (labels,); as `embed`."""
        ...

    def reset(self) -> None:
        """Forgets every token."""
        ...
