"""Writes a table of random tensors and its metadata as a GGUF, in any type that llama.cpp reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

Types = str | Mapping[str, str]


@dataclass(frozen=True)
class Weight:
    """A random normal tensor of numpy shape `shape`, rows last."""

    shape: tuple[int, ...]
    std: float
    mean: float = 0.0

    def draw(self, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Its values, float32 of `shape`."""
        return (self.mean + self.std * rng.standard_normal(self.shape, np.float32)).astype(np.float32)


@dataclass(frozen=True)
class Fixed:
    """A vector of given values, for tables that a converter computes."""

    values: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """One axis."""
        return (len(self.values),)

    def draw(self, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """The values themselves."""
        return np.array(self.values, np.float32)


Weights = dict[str, Weight | Fixed]
Model = tuple[dict[str, Any], Weights]
"""Metadata, whose keys are the architecture's own but for `general.` and `tokenizer.`, and tensors by name."""

ALWAYS_F32 = ("*_exps.scale", "*shortconv.conv.weight", "*ffn_gate_inp.weight", "token_types.weight", "position_embd*")
"""Matrices that no converter quantizes."""


def write_gguf(
    path: Path | str, architecture: str, metadata: Mapping[str, Any], weights: Weights, types: Types, seed: int
) -> Path:
    """Writes one GGUF and returns its path.

    `types` is one ggml type for every matrix, or patterns of tensor names with theirs, of which the first that
    matches counts; what none matches, and every vector, is F32. Raises ValueError where a row is not a whole number
    of blocks.
    """
    patterns = dict.fromkeys(ALWAYS_F32, "f32") | ({"*": types} if isinstance(types, str) else dict(types))
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add_value(writer, key, value)
    for name, weight in weights.items():
        chosen = next((kind for pattern, kind in patterns.items() if fnmatch(name, pattern)), "f32")
        kind = GGMLQuantizationType[chosen.upper() if len(weight.shape) > 1 else "F32"]
        writer.add_tensor(name, random_tensor(rng, weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


# Types that gguf-py reads but does not write: the byte offset in a block of each float16 scale, with its weight. The
# scale of the minimum is weighted so that values centre on zero (ggml/src/ggml-common.h for the layouts).
_SCALES: dict[str, dict[int, float]] = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ1_S": {0: 1.0},
    "IQ1_M": {48: 1.0},
    "IQ2_XXS": {0: 1.0},
    "IQ2_XS": {0: 1.0},
    "IQ2_S": {0: 1.0},
    "IQ3_XXS": {0: 1.0},
    "IQ3_S": {0: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}


def set_halves(blocks: npt.NDArray[np.uint8], kind: str, at: int, bits: npt.NDArray[np.uint16]) -> None:
    """Writes one half, given by its bits, to byte `at` of each block; IQ1_M has a quarter atop each of four words."""
    if kind == "IQ1_M":
        words = np.ascontiguousarray(blocks[:, at : at + 8]).view("<u2")
        quarters = bits[:, None] >> np.array([0, 4, 8, 12], np.uint16) << 12
        blocks[:, at : at + 8] = (words & 0xFFF | quarters).astype("<u2").view(np.uint8)
    else:
        blocks[:, at : at + 2] = bits.astype("<u2")[:, None].view(np.uint8)


def random_tensor(rng: np.random.Generator, weight: Weight | Fixed, kind: GGMLQuantizationType) -> npt.NDArray[Any]:
    """A tensor as its file holds it: float32, float16, or the bytes (rows, row_bytes) of its blocks."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if weight.shape[-1] % block:
        raise ValueError(f"a row of {weight.shape[-1]} is not a whole number of {kind.name} blocks of {block}")
    if kind.name not in _SCALES or isinstance(weight, Fixed):
        return quantize(weight.draw(rng), kind)
    # Any bytes are a valid block once their scales are sane, and its values are linear in them.
    rows = int(np.prod(weight.shape[:-1]))
    blocks = rng.integers(0, 256, (rows * weight.shape[-1] // block, block_bytes), np.uint8)
    drawn = rng.uniform(0.5, 1.5, len(blocks))
    for factor in (1.0, None):
        factor = factor or weight.std / dequantize(blocks, kind).std()
        for offset, share in _SCALES[kind.name].items():
            set_halves(blocks, kind.name, offset, (factor * share * drawn).astype(np.float16).view(np.uint16))
    return blocks.reshape(*weight.shape[:-1], -1)


def _add_value(writer: GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
