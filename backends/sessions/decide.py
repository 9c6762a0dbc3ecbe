"""Decisions of a language model among given answers, by the probability that it gives each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...frontend.chat.templates import ChatTemplates
from ...frontend.errors import InputError, UnsupportedError
from ...frontend.tokenizer import Tokenizer
from .sampling import checked_logits, log_softmax
from .session import Session

MOST_OPTIONS = 256
YES_NO = ("Yes", "No")


@dataclass(frozen=True)
class Decision:
    """What a model makes of a question.

    Attributes:
        options: the answers that were offered.
        logprobs: natural logarithm of the probability of each as the model's next words.
        covered: the part of all probability that falls on the options: a small one says that the model would rather
            answer otherwise.
    """

    options: tuple[str, ...]
    logprobs: tuple[float, ...]

    @property
    def probabilities(self) -> tuple[float, ...]:
        """The probability of each option where it must be one of them."""
        weights = np.exp(np.asarray(self.logprobs) - max(self.logprobs))
        return tuple((weights / weights.sum()).tolist())

    @property
    def covered(self) -> float:
        return float(np.exp(self.logprobs).sum())

    @property
    def answer(self) -> str:
        """The likeliest option."""
        return self.options[int(np.argmax(self.logprobs))]

    @property
    def mean(self) -> float | None:
        """The mean of options that are numbers, by their probabilities; None where one is no number."""
        try:
            return float(np.dot([float(option) for option in self.options], self.probabilities))
        except ValueError:
            return None


def decide(
    session: Session,
    question: str,
    options: Sequence[str] = YES_NO,
    *,
    material: str = "",
    templates: ChatTemplates | None = None,
    template: str | None = None,
    variables: Mapping[str, object] | None = None,
) -> Decision:
    """Asks a model to choose, and reads its probabilities instead of its words.

    The question is put as the user's turn of the chat template, or as plain text where there is none. The probability
    of an option is that of its tokens after the question; where one option begins another, that of its end too.

    Args:
        session: of a decoder; it is reset.
        question: what is asked.
        options: two or more answers.
        material: what the question is about, put before it.
        templates: chat templates instead of the model's.
        template: the name of one of several.
        variables: more for the template.

    Raises:
        InputError: options that are none, or the question doesn't fit the context.
        UnsupportedError: the model gives no probabilities of words.
    """
    checked = _checked(options)
    if "prefill" not in session.facts.entries:
        raise UnsupportedError(
            "the model gives embeddings alone, no probabilities of words, and has no classifier's head; take a model "
            "that generates text, a classifier or a reranker"
        )
    offered = ", ".join(checked[:-1]) + f" or {checked[-1]}"
    asked = "\n\n".join(part for part in (material, f"{question}\nAnswer with {offered}, and nothing else.") if part)
    sequences = _sequences(session, asked, checked, templates or session.chat_templates, template, variables)
    longest = max(map(len, sequences))
    if longest > session.context_length:
        raise InputError(f"the question takes {longest} tokens, the context holds {session.context_length}")
    session.reset()
    shared = _shared(sequences)
    rests = [sequence[shared:] for sequence in sequences]
    begins = any(a is not b and a == b[: len(a)] for a in rests for b in rests)
    ends = sorted(session.tokenizer.eog_ids) if begins else []
    if begins and not ends:
        raise UnsupportedError("one option begins another, and the model has no token that would end the shorter one")
    found = [0.0] * len(rests)
    _score(session, session.prefill(sequences[0][:shared]), rests, list(range(len(rests))), 0, ends, found)
    return Decision(checked, tuple(found))


def classify(session: Session, text: str, material: str = "") -> Decision:
    """What a classifier's head makes of a text, or a reranker's of a question and what may answer it.

    The two are put as the model's template `rerank` has it, or as the pair that encoders are trained on. A head of one
    number gives the logit of "Yes"; of several, the softmax over them is their probabilities.

    Args:
        session: of a model with such a head.
        text: the text, or the question.
        material: what the question is about.

    Raises:
        InputError: the text doesn't fit the context.
        UnsupportedError: the model has no such head.
    """
    tokenizer, labels = session.tokenizer, session.facts.labels
    prompt = session.chat_templates.pair(text, material, tokenizer) if material else None
    ids = prompt.encode(tokenizer) if prompt else tokenizer.encode(text, parse_special=False)
    if material and not prompt:
        ids += _second(tokenizer, tokenizer.encode(material, parse_special=False))
    scores = session.classify(ids).astype(np.float64)
    if len(labels) == 1:
        return Decision(YES_NO, (-float(np.logaddexp(0, -scores[0])), -float(np.logaddexp(0, scores[0]))))
    return Decision(labels, tuple((scores - np.logaddexp.reduce(scores)).tolist()))


def _second(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """An encoded text as the second of a pair: [CLS] a [SEP] b [SEP], or RoBERTa's <s> a </s> </s> b </s>."""
    if ids[:1] != [tokenizer.bos_id]:
        return ids
    doubled = ids[-1:] if tokenizer.decode(ids[-1:], render_special=True) == "</s>" else []
    return doubled + ids[1:]


def _checked(options: Sequence[str]) -> tuple[str, ...]:
    stripped = tuple(option.strip() for option in options)
    if not 2 <= len(stripped) <= MOST_OPTIONS or not all(stripped) or len(set(stripped)) < len(stripped):
        raise InputError(f"{len(stripped)} options; wanted 2 to {MOST_OPTIONS} that differ, and none empty")
    return stripped


def _sequences(
    session: Session,
    asked: str,
    options: Sequence[str],
    templates: ChatTemplates,
    template: str | None,
    variables: Mapping[str, object] | None,
) -> list[list[int]]:
    """The ids of the question with each option after it, as the tokenizer makes them of the whole."""
    tokenizer = session.tokenizer
    for option in options:
        if any(text in option for text in tokenizer.control_texts):
            raise InputError(f"option {option[:80]!r} holds a control token's text")
    if templates.sources or template:
        messages = [{"role": "user", "content": asked}]
        prompt = templates.render(messages, tokenizer, name=template, variables=variables)
        marked, barrier, gap = prompt.marked, prompt.barrier, ""
    else:
        marked, barrier, gap = f"{asked}\nAnswer:", "", " "
    return [
        tokenizer.encode(f"{marked}{gap}{option}", barrier=barrier, parse_special=bool(barrier)) for option in options
    ]


def _shared(sequences: Sequence[Sequence[int]]) -> int:
    """The length of the beginning that all have in common."""
    shortest = min(map(len, sequences))
    return next((n for n in range(shortest) if len({sequence[n] for sequence in sequences}) > 1), shortest)


def _score(
    session: Session,
    logits: np.ndarray,
    rests: Sequence[Sequence[int]],
    which: Sequence[int],
    depth: int,
    ends: Sequence[int],
    found: list[float],
) -> None:
    """Adds to `found` the log-probabilities of the tokens from `depth` on of the rests that agree until there."""
    logprobs = log_softmax(checked_logits(logits))
    branches: dict[int, list[int]] = {}
    for n in which:
        if depth < len(rests[n]):
            branches.setdefault(rests[n][depth], []).append(n)
        elif ends:
            found[n] += float(np.logaddexp.reduce(logprobs[ends]))
    for token, those in branches.items():
        for n in those:
            found[n] += float(logprobs[token])
        if ends or any(depth + 1 < len(rests[n]) for n in those):
            _score(session, session.decode(token), rests, those, depth + 1, ends, found)
            session.rewind(1)
