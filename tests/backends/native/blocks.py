"""Random raw weights of each type, with gguf-py as the judge of what they are worth."""

from __future__ import annotations

import gguf
import numpy as np

TYPES = ("f32", "q8_0", "q5_0", "q4_k", "q6_k")
_HALVES = {"q8_0": (0,), "q5_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}
"""Where in a block the halves stand that scale it."""


def block_size(name: str) -> tuple[int, int]:
    """Elements and bytes of a block, as gguf-py knows them."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name.upper()]]


def random_weight(rng: np.random.Generator, name: str, rows: int, blocks: int, scale: float = 0.02) -> np.ndarray:
    """Raw rows, uint8 (rows, bytes): any bits at all, but halves within +-scale."""
    size = block_size(name)[1]
    if name == "f32":
        return rng.standard_normal((rows, blocks), np.float32).view(np.uint8)
    raw = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for at in _HALVES[name]:
        raw[:, :, at : at + 2] = rng.uniform(-scale, scale, (rows, blocks, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, blocks * size)


def with_halves(raw: np.ndarray, name: str, values: np.ndarray) -> np.ndarray:
    """The weight with the halves of its blocks taken from `values` in turn."""
    size = block_size(name)[1]
    blocks = raw.copy().reshape(-1, size)
    for n, at in enumerate(_HALVES[name]):
        turn = np.resize(np.roll(values.astype(np.float16), n), len(blocks))
        blocks[:, at : at + 2] = turn.reshape(-1, 1).view(np.uint8)
    return blocks.reshape(raw.shape)


def dequantized(raw: np.ndarray, name: str) -> np.ndarray:
    """The weight as float32 (rows, cols)."""
    return gguf.dequantize(raw, gguf.GGMLQuantizationType[name.upper()]).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """Activations (tokens, cols) as the kernels round them: 15 bits, one scale per 256 elements."""
    result = np.empty_like(x)
    for i in range(0, x.shape[1], 256):
        group = x[:, i : i + 256]
        largest = np.abs(group).max(1, keepdims=True)
        inverse = np.where(largest > 0, np.float32(16383) / np.where(largest > 0, largest, 1), 0)
        result[:, i : i + 256] = np.rint(group * inverse) * (largest * np.float32(1 / 16383))
    return result
