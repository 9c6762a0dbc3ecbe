"""The weights of a compiled module: parameters, which IREE maps where they lie."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...frontend.gguf.file import GgufFile

SCOPE = "model"
"""The scope of a compiled module's parameters; the key is the GGUF's name of the tensor."""
ALIGNMENT = 64
"""What a mapped parameter's address must be a multiple of, or IREE copies it."""


@dataclass(frozen=True)
class Place:
    """Where a tensor's bytes lie, and in which of the model's files."""

    offset: int
    nbytes: int
    file: int = 0

    @property
    def lead(self) -> int:
        """Bytes between the aligned address at or before the tensor and the tensor itself."""
        return self.offset % ALIGNMENT


def places(file: "GgufFile") -> dict[str, Place]:
    """Where each tensor lies in a model's files, by its name."""
    return {name: Place(tensor.offset, tensor.nbytes, tensor.part) for name, tensor in file.tensors.items()}
