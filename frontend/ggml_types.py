"""The tensor types of a GGUF file, and one more of ours: how many elements and bytes one block holds.

Ids and block sizes are those of ggml (`enum ggml_type` in ggml.h, the block structs in ggml-common.h).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .errors import UnsupportedError
from .near import near


@dataclass(frozen=True)
class GgmlType:
    """A tensor type. A row is a sequence of blocks; a plain type such as f32 has blocks of one element.

    `head_bytes` stand before the blocks of each row; ggml's own types have none.
    """

    name: str
    id: int
    block_elements: int
    block_bytes: int
    head_bytes: int = 0

    def nbytes(self, elements: int, rows: int = 1) -> int:
        """Bytes of `rows` rows of `elements` elements each, a multiple of `block_elements`."""
        return rows * (self.head_bytes + elements // self.block_elements * self.block_bytes)


TYPES: tuple[GgmlType, ...] = tuple(
    GgmlType(*row)
    for row in (
        ("f32", 0, 1, 4),
        ("f16", 1, 1, 2),
        ("q4_0", 2, 32, 18),
        ("q4_1", 3, 32, 20),
        ("q5_0", 6, 32, 22),
        ("q5_1", 7, 32, 24),
        ("q8_0", 8, 32, 34),
        ("q8_1", 9, 32, 36),
        ("q2_k", 10, 256, 84),
        ("q3_k", 11, 256, 110),
        ("q4_k", 12, 256, 144),
        ("q5_k", 13, 256, 176),
        ("q6_k", 14, 256, 210),
        ("q8_k", 15, 256, 292),
        ("iq2_xxs", 16, 256, 66),
        ("iq2_xs", 17, 256, 74),
        ("iq3_xxs", 18, 256, 98),
        ("iq1_s", 19, 256, 50),
        ("iq4_nl", 20, 32, 18),
        ("iq3_s", 21, 256, 110),
        ("iq2_s", 22, 256, 82),
        ("iq4_xs", 23, 256, 136),
        ("i8", 24, 1, 1),
        ("i16", 25, 1, 2),
        ("i32", 26, 1, 4),
        ("i64", 27, 1, 8),
        ("f64", 28, 1, 8),
        ("iq1_m", 29, 256, 56),
        ("bf16", 30, 1, 2),
        ("tq1_0", 34, 256, 54),
        ("tq2_0", 35, 256, 66),
        ("mxfp4", 39, 32, 17),
        ("nvfp4", 40, 64, 36),
        ("q1_0", 41, 128, 18),
        ("q2_0", 42, 64, 18),
    )
)
"""Every type that ggml has today."""

INT8 = GgmlType("int8", -1, 32, 32, head_bytes=4)
"""Of re-encoded weights, and of no GGUF: a row is a little-endian float32 scale and then a signed byte for each of its
elements, which is worth scale * byte. Kernels take 32 at a time."""

# Ids that files once had and ggml no longer reads: the first K ancestors and the types repacked ahead of time.
_REMOVED = {
    4: "q4_2",
    5: "q4_3",
    31: "q4_0_4_4",
    32: "q4_0_4_8",
    33: "q4_0_8_8",
    36: "iq4_nl_4_4",
    37: "iq4_nl_4_8",
    38: "iq4_nl_8_8",
}

# Types that matmul makes of its activations while it runs; a weight is never stored in them.
_ACTIVATION_ONLY = frozenset({"q8_1", "q8_k"})

BY_ID: Mapping[int, GgmlType] = MappingProxyType({t.id: t for t in TYPES})
BY_NAME: Mapping[str, GgmlType] = MappingProxyType({t.name: t for t in (*TYPES, INT8)})


def by_id(type_id: int) -> GgmlType:
    """The type with ggml's number `type_id`.

    Raises:
        UnsupportedError: the number is of a removed or unknown type.
    """
    if type_id in BY_ID:
        return BY_ID[type_id]
    if type_id in _REMOVED:
        raise UnsupportedError(
            f"type id {type_id} ({_REMOVED[type_id]}) was removed from ggml; quantize the model again to a current type"
        )
    raise UnsupportedError(f"type id {type_id} is unknown; the ids known here end at {max(BY_ID)}")


def by_name(name: str) -> GgmlType:
    """The type called `name` (lower case).

    Raises:
        UnsupportedError: there is none; it names the nearest ones.
    """
    if name in BY_NAME:
        return BY_NAME[name]
    found = near(name, BY_NAME)
    raise UnsupportedError(f"there is no type {name!r}; " + (f"near: {', '.join(found)}" if found else "see TYPES"))


def storable_by_id(type_id: int) -> GgmlType:
    """As `by_id`, for the type of a tensor in a file: a type that only activations have is refused too."""
    found = by_id(type_id)
    if found.name in _ACTIVATION_ONLY:
        raise UnsupportedError(
            f"type id {type_id} ({found.name}) is for activations only; quantize the model again to a weight type"
        )
    return found
