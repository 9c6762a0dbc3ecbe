"""Tiny random GGUF models, written in a moment and loadable by llama.cpp.

Weights are random but of a trained model's scale: activations keep their size from layer to layer, logits spread
over several nats, and no norm weight is 1. So a step left out or done twice shows in the logits.

    tiny_gemma3(path, window=8, types={"*ffn_down*": "q6_k", "*": "q8_0"})

To add an architecture, write its function (sizes -> metadata and weights) and enter it in ARCHITECTURES.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize

Types = str | Mapping[str, str]


@dataclass(frozen=True)
class Sizes:
    """The sizes that all decoders share. Block-quantized types want rows that are multiples of their block."""

    layers: int = 7
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 96
    context: int = 1024


@dataclass(frozen=True)
class Weight:
    """A random normal tensor of numpy shape `shape`, rows last."""

    shape: tuple[int, ...]
    std: float
    mean: float = 0.0


_LOGIT_STD = 3.0  # nats

Model = tuple[dict[str, Any], dict[str, Weight]]


def norm(size: int, mean: float = 1.0) -> Weight:
    """The weight of a norm, well away from all ones."""
    return Weight((size,), 0.15, mean)


def linear(rows: int, columns: int, gain: float = 1.0) -> Weight:
    """A matrix that multiplies the size of what it is given by `gain`."""
    return Weight((rows, columns), gain / columns**0.5)


# The vocabulary: Gemma's special tokens, SentencePiece's bytes, characters, and merges in the order of their rank.
_CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
_USER_DEFINED = ["\n\n", "▁▁"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁t", "he", "▁the", "in", "an", "▁a", "er", "on", "▁an", "▁in", "ing", "▁w", "or", "ör", "日本"]
_CHARACTERS = ["▁", *"abcdefghijklmnopqrstuvwxyz", *"éö日本"]
TOKENS = _CONTROL + _USER_DEFINED + _BYTES + _PIECES + _CHARACTERS


def _vocabulary() -> dict[str, Any]:
    types = [TokenType.CONTROL] * len(_CONTROL) + [TokenType.USER_DEFINED] * len(_USER_DEFINED)
    types += [TokenType.BYTE] * len(_BYTES) + [TokenType.NORMAL] * (len(_PIECES) + len(_CHARACTERS))
    types[_CONTROL.index("<unk>")] = TokenType.UNKNOWN
    first = len(types) - len(_PIECES) - len(_CHARACTERS)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * first + [-float(rank) for rank in range(len(types) - first)],
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _decoder_metadata(name: str, sizes: Sizes) -> dict[str, Any]:
    return {
        f"{name}.context_length": sizes.context,
        f"{name}.embedding_length": sizes.width,
        f"{name}.block_count": sizes.layers,
        f"{name}.feed_forward_length": sizes.ffn,
        f"{name}.attention.head_count": sizes.heads,
        f"{name}.attention.head_count_kv": sizes.kv_heads,
        f"{name}.attention.key_length": sizes.head_dim,
        f"{name}.attention.value_length": sizes.head_dim,
        f"{name}.attention.layer_norm_rms_epsilon": 1e-6,
    }


def _attention_and_ffn(block: str, sizes: Sizes) -> dict[str, Weight]:
    q_rows, kv_rows = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    return {
        f"{block}.attn_norm.weight": norm(sizes.width),
        f"{block}.attn_q.weight": linear(q_rows, sizes.width, 1.5),
        f"{block}.attn_k.weight": linear(kv_rows, sizes.width, 1.5),
        f"{block}.attn_v.weight": linear(kv_rows, sizes.width),
        f"{block}.attn_output.weight": linear(sizes.width, q_rows),
        f"{block}.ffn_norm.weight": norm(sizes.width),
        f"{block}.ffn_gate.weight": linear(sizes.ffn, sizes.width, 1.5),
        f"{block}.ffn_up.weight": linear(sizes.ffn, sizes.width),
        f"{block}.ffn_down.weight": linear(sizes.width, sizes.ffn),
    }


def _gemma3(sizes: Sizes) -> Model:
    metadata = _decoder_metadata("gemma3", sizes) | {"gemma3.rope.freq_base": 1e6}
    # The tied head favours the token that it was given. Large post norms leave little of it in the residual stream.
    weights = {"token_embd.weight": linear(len(TOKENS), sizes.width)}
    for i in range(sizes.layers):
        block = f"blk.{i}"
        weights |= _attention_and_ffn(block, sizes) | {
            f"{block}.attn_q_norm.weight": norm(sizes.head_dim, 1.3),
            f"{block}.attn_k_norm.weight": norm(sizes.head_dim, 1.3),
            f"{block}.post_attention_norm.weight": norm(sizes.width, 3.0),
            f"{block}.post_ffw_norm.weight": norm(sizes.width, 3.0),
        }
    return metadata, weights | {"output_norm.weight": norm(sizes.width, _LOGIT_STD)}


def _llama(sizes: Sizes) -> Model:
    metadata = _decoder_metadata("llama", sizes)
    metadata |= {"llama.rope.freq_base": 10000.0, "llama.rope.dimension_count": sizes.head_dim}
    weights = {"token_embd.weight": linear(len(TOKENS), sizes.width, sizes.width**0.5)}
    for i in range(sizes.layers):
        weights |= _attention_and_ffn(f"blk.{i}", sizes)
    return metadata, weights | {"output_norm.weight": norm(sizes.width, _LOGIT_STD), **untied(sizes)}


def untied(sizes: Sizes) -> dict[str, Weight]:
    """A head of its own."""
    return {"output.weight": linear(len(TOKENS), sizes.width)}


ARCHITECTURES: dict[str, Callable[[Sizes], Model]] = {"gemma3": _gemma3, "llama": _llama}


def tiny_model(
    path: Path | str,
    architecture: str,
    sizes: Sizes = Sizes(),
    *,
    metadata: Mapping[str, Any] | None = None,
    weights: Mapping[str, Weight] | None = None,
    types: Types = "f32",
    seed: int = 0,
) -> Path:
    """Writes a model of one of ARCHITECTURES and returns its path.

    `metadata` and `weights` add to or replace the architecture's own. `types` is one ggml type for every matrix, or
    patterns of tensor names with theirs, of which the first that matches counts; what none matches, and every
    vector, is F32. Raises ValueError where a row is not a whole number of blocks.
    """
    base_metadata, base_weights = ARCHITECTURES[architecture](sizes)
    patterns = {"*": types} if isinstance(types, str) else types
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    for key, value in (base_metadata | _vocabulary() | dict(metadata or {})).items():
        _add_value(writer, key, value)
    for name, weight in (base_weights | dict(weights or {})).items():
        chosen = next((kind for pattern, kind in patterns.items() if fnmatch(name, pattern)), "f32")
        kind = GGMLQuantizationType[chosen.upper() if len(weight.shape) > 1 else "F32"]
        writer.add_tensor(name, random_tensor(rng, weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def tiny_gemma3(
    path: Path | str,
    *,
    layers: int = 7,
    width: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    ffn: int = 96,
    window: int | None = 8,
    sliding_window_pattern: int | None = None,
    rope_scaling: float | None = None,
    softcap: float | None = None,
    tied: bool = True,
    types: Types = "f32",
    seed: int = 0,
) -> Path:
    """Writes a Gemma 3. Every sixth layer sees everything (or every `sliding_window_pattern`-th): of 7, one does.

    `window` None leaves the key out, which makes every layer see everything; `rope_scaling` is a linear factor,
    `softcap` that of the final logits, `tied` False gives the head a matrix of its own.
    """
    sizes = Sizes(layers, width, heads, kv_heads, head_dim, ffn)
    optional = {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": sliding_window_pattern,
        "rope.scaling.type": rope_scaling and "linear",
        "rope.scaling.factor": rope_scaling,
        "final_logit_softcapping": softcap,
    }
    metadata = {f"gemma3.{key}": value for key, value in optional.items() if value is not None}
    return tiny_model(
        path, "gemma3", sizes, metadata=metadata, weights={} if tied else untied(sizes), types=types, seed=seed
    )


def tiny_llama(path: Path | str, *, types: Types = "f32", seed: int = 0, **sizes: int) -> Path:
    """Writes a Llama of two layers; `sizes` are those of `Sizes`."""
    return tiny_model(path, "llama", replace(Sizes(layers=2), **sizes), types=types, seed=seed)


# Types that gguf-py reads but does not write: the byte offset in a block of each float16 scale, with its weight. The
# scale of the minimum is weighted so that values centre on zero (ggml/src/ggml-common.h for the layouts).
_SCALES: dict[str, dict[int, float]] = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ1_S": {0: 1.0},
    "IQ2_XXS": {0: 1.0},
    "IQ2_XS": {0: 1.0},
    "IQ2_S": {0: 1.0},
    "IQ3_XXS": {0: 1.0},
    "IQ3_S": {0: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}


def random_tensor(rng: np.random.Generator, weight: Weight, kind: GGMLQuantizationType) -> npt.NDArray[Any]:
    """A tensor as its file holds it: float32, float16, or the bytes (rows, row_bytes) of its blocks."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if weight.shape[-1] % block:
        raise ValueError(f"a row of {weight.shape[-1]} is not a whole number of {kind.name} blocks of {block}")
    if kind.name not in _SCALES:
        values = weight.mean + weight.std * rng.standard_normal(weight.shape, np.float32)
        return quantize(values.astype(np.float32), kind)
    # Any bytes are a valid block once their scales are sane, and its values are linear in them.
    rows = int(np.prod(weight.shape[:-1]))
    blocks = rng.integers(0, 256, (rows * weight.shape[-1] // block, block_bytes), np.uint8)
    drawn = rng.uniform(0.5, 1.5, len(blocks))
    for factor in (1.0, None):
        factor = factor or weight.std / dequantize(blocks, kind).std()
        for offset, share in _SCALES[kind.name].items():
            blocks[:, offset : offset + 2] = (factor * share * drawn).astype(np.float16)[:, None].view(np.uint8)
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
