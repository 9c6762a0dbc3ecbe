"""Decisions: llama.cpp's log-probabilities of the options, token by token."""

from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc import InputError, Session
from ggufc.backends.decide import decide
from ggufc.frontend.chat_template import ChatTemplates

from ..oracle import Reference, log_softmax
from ..tiny_models import tiny_llama

TEMPLATES = ChatTemplates({"default": "{% for m in messages %}{{ m.content }}<end_of_turn>{% endfor %}"})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("decide") / "decide.gguf")


@pytest.fixture(scope="module")
def session(model: Path) -> Session:
    return ggufc.load(model, "native", threads=1)


@pytest.mark.parametrize("options", [("in", "on"), ("the end", "the other", "an ox", "日本")])
def test_an_options_probability_is_that_of_its_tokens(options: tuple[str, ...], model: Path, session: Session) -> None:
    found = decide(session, "what is it", options, material="an ox", templates=TEMPLATES)
    question = f"an ox\n\nwhat is it\nAnswer with {', '.join(options[:-1])} or {options[-1]}, and nothing else."
    with Reference(model) as reference:
        prompt = reference.tokenize(f"{question}<end_of_turn>")
        for option, logprob in zip(options, found.logprobs, strict=True):
            ids = reference.tokenize(f"{question}<end_of_turn>{option}")
            assert ids[: len(prompt)] == prompt
            rows = log_softmax(reference.logits(ids, last=len(ids) - len(prompt) + 1))
            wanted = sum(row[token] for row, token in zip(rows, ids[len(prompt) :], strict=False))
            assert logprob == pytest.approx(wanted, abs=2e-2)
    assert sum(found.probabilities) == pytest.approx(1)
    assert found.answer == options[int(np.argmax(found.logprobs))]


def test_an_option_that_begins_another_is_asked_for_its_end(session: Session) -> None:
    short, long, other = decide(session, "what", ("in", "in an", "ox"), templates=TEMPLATES).logprobs
    prompt = session.tokenizer.encode("what\nAnswer with in, in an or ox, and nothing else.<end_of_turn>in")
    session.reset()
    logprobs = log_softmax(session.prefill(prompt))
    ends = np.logaddexp.reduce([logprobs[token] for token in session.tokenizer.eog_ids])
    begun = decide(session, "what", ("in", "in an", "ox"), templates=TEMPLATES)
    assert begun.logprobs == pytest.approx((short, long, other), abs=1e-4)
    session.reset()
    first = log_softmax(session.prefill(prompt[:-1]))[prompt[-1]]
    assert short == pytest.approx(first + ends, abs=1e-3)


def test_a_rating_has_a_mean(session: Session) -> None:
    found = decide(session, "how", ("1", "2", "3"), templates=TEMPLATES)
    assert found.mean == pytest.approx(np.dot(found.probabilities, [1, 2, 3]))
    assert decide(session, "how", ("a", "b")).mean is None


@pytest.mark.parametrize("options", [(), ("a",), ("a", "a "), ("a", ""), ("a", "b<end_of_turn>")])
def test_options_that_are_none(options: tuple[str, ...], session: Session) -> None:
    with pytest.raises(InputError, match="option"):
        decide(session, "what", options)
