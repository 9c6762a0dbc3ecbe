"""The frequencies of rotary position embeddings, the same numbers for every backend."""

import math

import numpy as np

BETA_FAST, BETA_SLOW = 32, 1
"""Turns within the trained context above which YaRN leaves a pair alone, and below which it scales it."""


def frequencies(base: float, dims: int, scale: float = 1.0, yarn: int = 0) -> np.ndarray:
    """The angle of each pair at position 1, float32 (dims / 2,).

    llama.cpp multiplies by the rounded `base^(-2/dims)` again and again (ggml/src/ggml-cpu/ops.cpp, rope cache), and at
    a position of thousands that rounding is visible in the angles, so it is reproduced here.

    Args:
        base: the frequency base.
        dims: elements of a head that are turned.
        scale: factor on all angles (linear scaling), or with `yarn` on those of the slow pairs.
        yarn: the context length that the model was trained on, 0 for no YaRN (Peng et al., arXiv 2309.00071).
    """
    step = np.float32(base) ** np.float32(-2.0 / dims)
    turns = np.cumprod(np.concatenate([np.ones(1, np.float32), np.full(dims // 2 - 1, step)]), dtype=np.float32)
    if not yarn:
        return turns * np.float32(scale)
    low, high = (dims * math.log(yarn / (b * 2 * math.pi)) / (2 * math.log(base)) for b in (BETA_FAST, BETA_SLOW))
    low, high = max(0.0, math.floor(low)), min(dims - 1.0, math.ceil(high))
    ramp = 1 - np.clip((np.arange(dims // 2, dtype=np.float32) - low) / max(0.001, high - low), 0, 1)
    return (turns * (scale * (1 - ramp) + ramp)).astype(np.float32)
