"""Types of graph values: an element type and a shape whose dimensions may be symbols."""

from dataclasses import dataclass
from math import prod

Dim = int | str
"""A size, or the name of one that is known when the program runs: `T` tokens in a call, `S` rows of a cache."""

CACHE_DTYPES = ("f32", "f16", "q8_0")
"""Element types of KV caches."""
VALUE_DTYPES = (*CACHE_DTYPES, "i32")
"""Element types of values; f16 and q8_0 are those of caches alone."""


def ring_rows(window: int) -> str:
    """The symbol for the rows of a ring cache of which a window is seen: `S512`; `S` where all positions are, for 0."""
    return f"S{window}" if window else "S"


def ring_window(rows: Dim) -> int | None:
    """The window of a cache with these rows, 0 for all positions; None where they are no ring's."""
    return int(rows[1:] or 0) if isinstance(rows, str) and rows.startswith("S") else None


@dataclass(frozen=True)
class TensorType:
    """`dtype` is one of VALUE_DTYPES, or for a weight a GGML type such as `q8_0`. Printed as `f32[T, 640]`."""

    dtype: str
    shape: tuple[Dim, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    def with_shape(self, shape: tuple[Dim, ...]) -> "TensorType":
        """The same element type in another shape."""
        return TensorType(self.dtype, shape)

    @property
    def row_size(self) -> int:
        """Elements of one row: the product of all dimensions but the first."""
        return prod(d for d in self.shape[1:] if isinstance(d, int))
