"""Choosing the next token from logits."""

import numpy as np


def sample(logits: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """The likeliest token at temperature 0, else one drawn from softmax(logits / temperature).

    Args:
        logits: float32 (vocabulary,).
        temperature: 0 or above.
        random: the source of chance; equal states give equal tokens.
    """
    if temperature <= 0:
        return int(logits.argmax())
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    cumulative = np.cumsum(weights)
    # by its own last value, as another order of summing may end lower; to the right, so that no weight of 0 is drawn
    return int(np.searchsorted(cumulative / cumulative[-1], random.random(), side="right"))
