"""Types of graph values: an element type and a shape whose dimensions may be symbols."""

from dataclasses import dataclass
from math import prod

Dim = int | str
"""A size, or the name of one that is known when the program runs: `T` tokens in a call, `S` rows of a cache."""

VALUE_DTYPES = ("f32", "f16", "i32")


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
