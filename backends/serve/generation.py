"""What is done for a request: texts continued step by step, and embeddings."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np

from ..sessions.sampling import Sampling, log_softmax
from ..sessions.session import Session
from ..sessions.stopping import StopTexts

LEAST_LOGPROB = -9999.0
"""In place of -inf, which JSON hasn't: what OpenAI's interface says of a token that is very unlikely."""
STEP = 256
"""Most tokens of a prompt that are fed in one step, while other requests wait."""


@dataclass(frozen=True)
class Asked:
    """A text to continue.

    Attributes:
        ids: the prompt, at least one and less than the context holds.
        max_tokens: most tokens of the answer; None is what the context holds.
        sampling: how they are chosen.
        stops: texts that end it.
        top: of how many of the likeliest tokens log-probabilities are wanted beside the chosen one's; None is of none.
        echo: what is given before the answer.
    """

    ids: Sequence[int]
    max_tokens: int | None
    sampling: Sampling
    stops: tuple[str, ...] = ()
    top: int | None = None
    echo: str = ""


@dataclass(frozen=True)
class Chance:
    """How likely a token was, of the model itself: no setting of the sampling changes it.

    Attributes:
        token: the one that was chosen.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens with theirs, the likeliest first.
        offset: characters of the answer before it.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    offset: int


@dataclass(frozen=True)
class Piece:
    """What a step gave.

    Attributes:
        text: of the answer, whole characters.
        chances: one for each new token, where they are wanted.
        tokens: of the answer so far.
        stop: why it ended, as `Session.generate_ids` says, or `stop` for a stop text; "" where it goes on.
    """

    text: str = ""
    chances: tuple[Chance, ...] = ()
    tokens: int = 0
    stop: str = ""


def generation(asked: Asked, session: Session) -> Generator[Piece, None, None]:
    """Continues a text; one piece for each step."""
    stream, stops = session.tokenizer.stream(), StopTexts(asked.stops)
    last = (len(asked.ids) - 1) // STEP * STEP
    for start in range(0, last, STEP):
        session.prefill(asked.ids[start : start + STEP])
        yield Piece()
    written = 0
    found: list[Chance] = []

    def watch(token: int, logits: np.ndarray) -> None:
        found.append(_chance(token, logits, asked.top or 0, written))

    tokens = session.generate_ids(
        asked.ids[last:],
        max_tokens=session.context_length if asked.max_tokens is None else asked.max_tokens,
        watch=None if asked.top is None else watch,
        **vars(asked.sampling),
    )
    count, text, reason = 0, asked.echo, ""
    while not reason:
        try:
            decoded = stream.push(next(tokens))
        except StopIteration as end:
            reason = end.value
            text += stops.push(stream.flush()) + stops.flush()
        else:
            count += 1
            written += len(decoded)
            text += stops.push(decoded)
            reason = "stop" if stops.found else ""
        yield Piece(text, tuple(found), count, reason)
        found.clear()
        text = ""


def _chance(token: int, logits: np.ndarray, count: int, offset: int) -> Chance:
    """The log-softmax of float32 logits (vocabulary,), in float64, at a token and the `count` likeliest ones."""
    values = np.maximum(log_softmax(logits), LEAST_LOGPROB)
    likeliest = np.argpartition(-values, min(count, len(values) - 1))[:count] if count else ()
    top = sorted(((int(n), float(values[n])) for n in likeliest), key=lambda pair: (-pair[1], pair[0]))
    return Chance(token, float(values[token]), tuple(top), offset)


def embeddings(texts: Sequence[Sequence[int]], session: Session) -> Generator[np.ndarray, None, None]:
    """The embedding of each text, given as ids: float32 (dim,) of length 1; one for each step."""
    for ids in texts:
        found = session.embed(ids)
        yield found / max(float(np.linalg.norm(found)), 1e-12)
