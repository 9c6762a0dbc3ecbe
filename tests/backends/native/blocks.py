"""Random raw weights of each type, with gguf-py as the judge of what they are worth."""

from __future__ import annotations

import gguf
import numpy as np

from ...tiny_models.writer import set_halves

PLAIN = ("f32", "f16", "bf16")
QUANTIZED = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"),
    *("iq4_nl", "iq4_xs", "mxfp4", "tq1_0", "tq2_0"),
)
TYPES = PLAIN + QUANTIZED
_SCALES = dict.fromkeys(QUANTIZED, (0,)) | dict.fromkeys(("q4_1", "q5_1", "q4_k", "q5_k"), (0, 2))
_SCALES |= {"iq1_m": (48,), "q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,), "tq1_0": (52,), "tq2_0": (64,)}
"""Where in a block the halves stand that scale it; in MXFP4 it is a byte, an exponent."""


def block_size(name: str) -> tuple[int, int]:
    """Elements and bytes of a block, as gguf-py knows them; INT8 has none, and takes 32 at a time."""
    return (32, 32) if name == "int8" else gguf.GGML_QUANT_SIZES[_gguf_type(name)]


def _gguf_type(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name.upper()]


def random_weight(rng: np.random.Generator, name: str, rows: int, blocks: int, scale: float = 0.02) -> np.ndarray:
    """Raw rows, uint8 (rows, bytes): any bits at all, but halves within +-scale."""
    size = block_size(name)[1]
    if name in PLAIN:
        return gguf.quantize(rng.standard_normal((rows, blocks), np.float32), _gguf_type(name)).view(np.uint8)
    raw = rng.integers(0, 256, (rows, blocks * size), np.uint8)
    if name == "mxfp4":
        return with_scales(raw, name, rng.integers(110, 120, rows * blocks))
    return with_scales(raw, name, rng.uniform(-scale, scale, 2 * rows * blocks).astype(np.float16).view(np.uint16))


def with_scales(raw: np.ndarray, name: str, values: np.ndarray) -> np.ndarray:
    """The weight with the scales of its blocks taken in turn from `values`, the bits of halves or of MXFP4's bytes."""
    blocks = raw.copy().reshape(-1, block_size(name)[1])
    for n, at in enumerate(_SCALES[name]):
        turn = np.resize(np.roll(values, n), len(blocks)).astype(np.uint16)
        if name == "mxfp4":
            blocks[:, at] = turn.astype(np.uint8)
        else:
            set_halves(blocks, name.upper(), at, turn)
    return blocks.reshape(raw.shape)


def with_every_scale(raw: np.ndarray, name: str) -> np.ndarray:
    """The weight with all 65536 halves as scales, in turn, or all 256 exponents of MXFP4."""
    return with_scales(raw, name, np.arange(65536, dtype=np.uint16))


def dequantized(raw: np.ndarray, name: str) -> np.ndarray:
    """The weight as float32 (rows, cols)."""
    if name == "int8":
        return raw[:, :4].copy().view("<f4") * raw[:, 4:].view(np.int8).astype(np.float32)
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
