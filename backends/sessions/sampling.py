"""Choosing the next token from logits: llama.cpp's samplers, in its order and with its definitions.

Penalties, then top-k, top-p and min-p, each on what the one before it left, then the temperature, then a draw
(llama.cpp, common/sampling.cpp and src/llama-sampler.cpp). A sampler at its neutral value changes nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Self

import numpy as np

from ...frontend.errors import DamagedModelError, InputError, shown

FIRST_SORTED = 256
"""Tokens that top-p sorts at first; few distributions need more, and sorting a whole vocabulary takes long."""

GROUP = 64
"""Tokens of which one maximum is looked at before all are sorted."""


@dataclass(frozen=True)
class _Range:
    """What a setting may be: a finite number, or a whole one, from `low` on and up to `high`."""

    low: float
    high: float = math.inf
    whole: bool = False

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a finite number"
        return f"{kind} from {self.low:g}" + (f" to {self.high:g}" if self.high < math.inf else "")


_RANGES = {
    "temperature": _Range(0),
    "top_k": _Range(0, whole=True),
    "top_p": _Range(0, 1),
    "min_p": _Range(0, 1),
    "repeat_penalty": _Range(1e-3, 1e3),
    "repeat_last_n": _Range(0, whole=True),
    "seed": _Range(0, whole=True),
}


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; the defaults take the likeliest.

    Attributes:
        temperature: what logits are divided by; 0 takes the likeliest of what is left.
        top_k: keep so many of the likeliest tokens; 0 keeps all.
        top_p: keep the likeliest tokens whose probabilities first sum to this; 1 keeps all.
        min_p: keep the tokens with this part of the likeliest one's probability; 0 keeps all.
        repeat_penalty: what logits above 0 of recent tokens are divided by, and those below multiplied; 1 is none.
        repeat_last_n: how many of the last tokens, the prompt's included, are recent.
        seed: the same seed gives the same tokens.

    Raises:
        InputError: a setting out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), _RANGES[field.name])

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Settings by name.

        Raises:
            InputError: a name that is none, or as the class.
        """
        for name in settings:
            if name not in _RANGES:
                raise InputError(f"no sampling setting {name[:80]!r}; there are {', '.join(_RANGES)}")
        return cls(**settings)

    @property
    def is_greedy(self) -> bool:
        """Whether it is the likeliest token as it is that is taken."""
        return self.temperature <= 0 and self.repeat_penalty == 1

    def random(self) -> np.random.Generator:
        """The source of chance at its start."""
        return np.random.default_rng(self.seed)


def _check(name: str, value: Any, allowed: _Range) -> None:
    kind: type[Any] = Integral if allowed.whole else Real
    try:
        sound = isinstance(value, kind) and math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        sound = allowed.whole
    sound = sound and allowed.low <= value <= allowed.high
    if not sound:
        raise InputError(f"{name} {shown(value)}: wanted {allowed}")


def checked_logits(logits: np.ndarray) -> np.ndarray:
    """The logits as they are, float32 (vocabulary,), of which -inf rules a token out.

    Raises:
        DamagedModelError: one is NaN or infinite, or all are -inf, so that no token can be chosen.
    """
    if not math.isfinite(logits.max()):  # which is NaN where one of them is
        raise DamagedModelError("the model's logits")
    return logits


def sample(logits: np.ndarray, sampling: Sampling, random: np.random.Generator, recent: Sequence[int] = ()) -> int:
    """The next token.

    Args:
        logits: float32 (vocabulary,).
        sampling: how it is chosen.
        random: the source of chance; equal states give equal tokens.
        recent: the tokens so far, of which the penalty takes the last.

    Raises:
        DamagedModelError: as `checked_logits`.
    """
    logits = checked_logits(logits)
    if sampling.repeat_penalty != 1:
        logits = penalised(logits, recent[-sampling.repeat_last_n :] if sampling.repeat_last_n else (), sampling)
    if sampling.temperature <= 0:
        return int(logits.argmax())
    tokens, chances = candidates(logits, sampling)
    cumulative = np.cumsum(chances, dtype=np.float64)
    # by its own last value, as another order of summing may end lower; to the right, so that no weight of 0 is drawn
    place = int(np.searchsorted(cumulative / cumulative[-1], random.random(), side="right"))
    return place if tokens is None else int(tokens[place])


def penalised(logits: np.ndarray, recent: Sequence[int], sampling: Sampling) -> np.ndarray:
    """The logits with recent tokens made less likely: a copy."""
    changed = logits.copy()
    seen = np.unique(np.asarray(recent, np.int64))
    found = changed[seen]
    changed[seen] = np.where(found > 0, found / sampling.repeat_penalty, found * sampling.repeat_penalty)
    return changed


def candidates(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray | None, np.ndarray]:
    """What may be drawn at a temperature above 0.

    Returns:
        The ids that are left, likeliest first, or None for the whole vocabulary in its order; and their chances,
        float32, which sum to anything.
    """
    tokens = None
    if 0 < sampling.top_k < len(logits):
        tokens = _likeliest(logits, sampling.top_k)
    if sampling.top_p < 1:
        tokens = _nucleus(logits, tokens, sampling.top_p)
    if sampling.min_p > 0:
        kept = logits if tokens is None else logits[tokens]
        places = np.flatnonzero(kept >= kept.max() + math.log(sampling.min_p))
        tokens = places if tokens is None else tokens[places]
    kept = logits if tokens is None else logits[tokens]
    below = kept.astype(np.float64) - kept.max()  # before the division, so that the likeliest stays at 0
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature takes the others to -inf, which is their due
        return tokens, np.exp((below / sampling.temperature).astype(np.float32))


def _likeliest(logits: np.ndarray, count: int) -> np.ndarray:
    """The ids of so many of the highest logits, highest first.

    The maxima of disjoint groups are a first look: as many of them as are wanted lie at or above their own lowest, so
    nothing below it is among the highest.
    """
    groups = len(logits) // GROUP
    places = np.arange(len(logits))
    if groups >= count:
        maxima = logits[: GROUP * groups].reshape(GROUP, groups).max(0)
        places = np.flatnonzero(logits >= np.partition(maxima, groups - count)[groups - count])
    return places[np.argsort(-logits[places], kind="stable")[:count]]


def _nucleus(logits: np.ndarray, tokens: np.ndarray | None, top_p: float) -> np.ndarray:
    """The likeliest tokens, of those given or of all, whose probabilities first sum to `top_p`; one at least."""
    kept = logits if tokens is None else logits[tokens]
    weights = np.exp(kept - kept.max())
    total = weights.sum(dtype=np.float64)
    count = len(kept) if tokens is not None else min(FIRST_SORTED, len(kept))
    while True:
        order = np.arange(len(kept)) if tokens is not None else _likeliest(logits, count)
        reached = np.flatnonzero(np.cumsum(weights[order], dtype=np.float64) >= top_p * total)
        if len(reached) or count == len(kept):
            end = int(reached[0]) + 1 if len(reached) else count
            return order[:end] if tokens is None else tokens[:end]
        count = min(16 * count, len(kept))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities (..., vocabulary) in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
