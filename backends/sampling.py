"""Choosing the next token from logits."""

import numpy as np


def sample(logits: np.ndarray, temperature: float, random: np.random.Generator) -> int:
    """The likeliest token at temperature 0, else one drawn from softmax(logits / temperature).

    Args:
        logits: float32 (vocabulary,).
        temperature: from 0, finite.
        random: the source of chance; equal states give equal tokens.
    """
    if temperature <= 0:
        return int(logits.argmax())
    below = logits.astype(np.float64) - logits.max()  # before the division, so that the likeliest stays at 0
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature takes the others to -inf, which is their due
        weights = np.exp(below / temperature)
    cumulative = np.cumsum(weights)
    # by its own last value, as another order of summing may end lower; to the right, so that no weight of 0 is drawn
    return int(np.searchsorted(cumulative / cumulative[-1], random.random(), side="right"))
