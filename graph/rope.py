"""The frequencies of rotary position embeddings, the same numbers for every backend."""

import numpy as np


def frequencies(base: float, dims: int) -> np.ndarray:
    """`base^(-2i/dims)` for i < dims/2, float32, by repeated multiplication.

    llama.cpp multiplies by the rounded `base^(-2/dims)` again and again (ggml/src/ggml-cpu/ops.cpp, rope cache), and at
    a position of thousands that rounding is visible in the angles, so it is reproduced here.
    """
    step = np.float32(base) ** np.float32(-2.0 / dims)
    return np.cumprod(np.concatenate([np.ones(1, np.float32), np.full(dims // 2 - 1, step)]), dtype=np.float32)
