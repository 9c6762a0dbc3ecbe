"""Decisions: llama.cpp's log-probabilities of the options, token by token, and the scores of its heads."""

from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import pytest
from ggufc import InputError, Session, UnsupportedError
from ggufc.backends.sessions.decide import YES_NO, classify, decide
from ggufc.frontend.chat.templates import ChatTemplates

from ...oracle import Reference, log_softmax
from ...tiny_models import Sizes, Weight, tiny_llama, tiny_model

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


HEADS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "a reranker": ("bert", {}, {"cls.weight": (64, 64), "cls.output.weight": (1, 64), "cls.output.bias": (1,)}),
    "no hidden layer, and the mean": (
        "bert",
        {"classifier.pooling_type": 1, "classifier.output_labels": ["a", "b"]},
        {"cls.output.weight": (2, 64)},
    ),
    "a classifier": (
        "modern-bert",
        {"classifier.output_labels": ["cold", "warm", "hot"]},
        {"cls.weight": (64, 64), "cls.norm.weight": (64,), "cls.output.weight": (3, 64), "cls.output.bias": (3,)},
    ),
    "a decoder's": ("qwen3", {"classifier.output_labels": ["yes", "no"]}, {"cls.output.weight": (2, 64)}),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_heads_scores_are_llama_cpps(name: str, tmp_path: Path) -> None:
    architecture, metadata, shapes = HEADS[name]
    path = tiny_model(
        tmp_path / "head.gguf",
        architecture,
        Sizes(head_dim=16),
        metadata={"pooling_type": 4, **metadata},
        weights={tensor: Weight(shape, 0.3, 0.1) for tensor, shape in shapes.items()},
    )
    session = ggufc.load(path, "native", threads=1)
    ids = session.tokenizer.encode("in the end", parse_special=False)
    with Reference(path, pooling="rank") as reference:
        wanted = reference.embeddings(ids)
    scores = session.classify(ids)
    if name == "a decoder's":  # llama.cpp's graph ends in the softmax
        scores = np.exp(log_softmax(scores))
    np.testing.assert_allclose(scores, wanted, atol=2e-2)
    found = classify(session, "in the end")
    assert found.options == tuple(metadata.get("classifier.output_labels", YES_NO))
    assert sum(found.probabilities) == pytest.approx(1)
    with pytest.raises(UnsupportedError, match="classifier"):
        session.embed(ids)


def test_a_pair_is_one_input(tmp_path: Path) -> None:
    path = tiny_model(
        tmp_path / "pair.gguf",
        "bert",
        Sizes(head_dim=16),
        metadata={"pooling_type": 4},
        weights={"cls.output.weight": Weight((1, 64), 0.3)},
    )
    session = ggufc.load(path, "native", threads=1)
    score = session.classify(session.tokenizer.encode("an ox") + session.tokenizer.encode("in the", add_special=False))
    found = classify(session, "an ox", "in the")
    assert found.probabilities[0] == pytest.approx(1 / (1 + np.exp(-score[0])), abs=1e-5)


def test_a_rerankers_own_template_is_used(tmp_path: Path) -> None:
    path = tiny_model(
        tmp_path / "qwen3.gguf",
        "qwen3",
        metadata={"pooling_type": 4, "tokenizer.chat_template.rerank": "<bos>q {query} d {document}<end_of_turn>{}"},
        weights={"cls.output.weight": Weight((1, 64), 0.3)},
    )
    session = ggufc.load(path, "native", threads=1)
    ids = session.tokenizer.encode("<bos>q an ox d ", add_special=False)
    ids += session.tokenizer.encode("<eos>{query}", add_special=False, parse_special=False)
    ids += session.tokenizer.encode("<end_of_turn>{}", add_special=False)
    found = classify(session, "an ox", "<eos>{query}")
    assert found.logprobs[0] - found.logprobs[1] == pytest.approx(session.classify(ids)[0], abs=1e-5)


@pytest.mark.parametrize(("pooling", "weights"), [(1, {"cls.output.weight": Weight((1, 64), 0.3)}), (4, {})])
def test_a_head_and_its_pooling_go_together(pooling: int, weights: dict[str, Weight], tmp_path: Path) -> None:
    path = tiny_model(
        tmp_path / "odd.gguf", "bert", Sizes(head_dim=16), metadata={"pooling_type": pooling}, weights=weights
    )
    with pytest.raises(UnsupportedError, match="head"):
        ggufc.load(path, "native")
