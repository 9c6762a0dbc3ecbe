"""Random raw weights of each type, with gguf-py as the judge of what they are worth."""

from __future__ import annotations

import gguf
import numpy as np

PLAIN = ("f32", "f16", "bf16")
QUANTIZED = ("q8_0", "q5_0", "q4_k", "q6_k")
TYPES = PLAIN + QUANTIZED
_HALVES = {"q8_0": (0,), "q5_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}
"""Where in a block the halves stand that scale it."""


def block_size(name: str) -> tuple[int, int]:
    """Elements and bytes of a block, as gguf-py knows them."""
    return gguf.GGML_QUANT_SIZES[_gguf_type(name)]


def _gguf_type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.upper()]


def random_weight(rng: np.random.Generator, name: str, rows: int, blocks: int, scale: float = 0.02) -> np.ndarray:
    """Raw rows, uint8 (rows, bytes): any bits at all, but halves within +-scale."""
    size = block_size(name)[1]
    if name in PLAIN:
        return gguf.quantize(rng.standard_normal((rows, blocks), np.float32), _gguf_type(name)).view(np.uint8)
    raw = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for at in _HALVES[name]:
        raw[:, :, at : at + 2] = rng.uniform(-scale, scale, (rows, blocks, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, blocks * size)


def with_scales(raw: np.ndarray, name: str, values: np.ndarray) -> np.ndarray:
    """The weight with the scales of its blocks taken from `values`, uint16 bits of halves, in turn."""
    size = block_size(name)[1]
    blocks = raw.copy().reshape(-1, size)
    for n, at in enumerate(_HALVES[name]):
        turn = np.resize(np.roll(values, n), len(blocks)).astype("<u2")
        blocks[:, at : at + 2] = turn.reshape(-1, 1).view(np.uint8)
    return blocks.reshape(raw.shape)


def with_every_scale(raw: np.ndarray, name: str) -> np.ndarray:
    """The weight with all 65536 halves as scales, in turn."""
    return with_scales(raw, name, np.arange(65536, dtype=np.uint16))


def dequantized(raw: np.ndarray, name: str) -> np.ndarray:
    """The weight as float32 (rows, cols)."""
    values = raw.view(np.float16 if name == "f16" else np.float32) if name in ("f16", "f32") else raw
    return gguf.dequantize(values, _gguf_type(name)).astype(np.float32)


def rounded(x: np.ndarray) -> np.ndarray:
    """Activations (tokens, cols) as the kernels round them: 15 bits, one scale per 256 elements."""
    result = np.empty_like(x)
    for i in range(0, x.shape[1], 256):
        group = x[:, i : i + 256]
        largest = np.abs(group).max(1, keepdims=True)
        inverse = np.where(largest > 0, np.float32(16383) / np.where(largest > 0, largest, 1), 0)
        result[:, i : i + 256] = np.rint(group * inverse) * (largest * np.float32(1 / 16383))
    return result
