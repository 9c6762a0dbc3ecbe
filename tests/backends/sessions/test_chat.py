"""Conversations: what is in the cache is what the text says, and a turn feeds only what is new."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc import InputError, Session, UnsupportedError
from ggufc.backends.sessions.chat import Chat
from ggufc.frontend.chat.templates import ChatTemplates

from ...tiny_models import tiny_gemma3, tiny_model

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
FORGETFUL = TEMPLATE.replace("{{ m.content }}", "{{ m.content if loop.last or m.role == 'user' else 'something' }}")
"""A template that doesn't show old answers, as those of reasoning models do with their thoughts."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gemma3(tmp_path_factory.mktemp("chat") / "chat.gguf")


@pytest.fixture(scope="module")
def loaded(model: Path) -> Session:
    return ggufc.load(model, "native", threads=1)


@pytest.fixture
def session(loaded: Session) -> Iterator[Session]:
    loaded.reset()
    yield loaded


def chat(session: Session, template: str = TEMPLATE) -> Chat:
    return Chat(session, ChatTemplates({"default": template}))


def said(talk: Chat, text: str, tokens: int = 12) -> str:
    return "".join(talk.say(text, max_tokens=tokens))


def test_a_turn_feeds_only_what_is_new(session: Session, model: Path) -> None:
    talk = chat(session)
    for n, text in enumerate(("in the", "on 日本", "the end <end_of_turn>")):
        before = list(session.tokens)
        answer = said(talk, text)
        assert session.tokens[: len(before)] == before
        assert talk.turn.fed == talk.turn.prompt_tokens - len(before)
        assert talk.messages[2 * n :] == [
            {"role": "user", "content": text},
            {"role": "assistant", "content": answer},
        ]
    fresh = ggufc.load(model, "native", threads=1)
    fresh.prefill(session.tokens)
    np.testing.assert_allclose(session.decode(9), fresh.decode(9), atol=2e-3)
    text = session.tokenizer.decode(session.tokens, render_special=True)
    assert text.count("<start_of_turn>") == 6


def test_a_history_that_changes_is_fed_from_where_it_changed(session: Session) -> None:
    talk = chat(session, FORGETFUL)
    said(talk, "in the")
    first = talk.turn.prompt_tokens
    said(talk, "on the")
    assert first <= talk.turn.prompt_tokens - talk.turn.fed < first + 4  # the answers may begin alike
    again = chat(session, FORGETFUL)
    again.replace(talk.messages[:2])
    session.reset()
    assert said(again, "on the") == talk.messages[-1]["content"]


def test_clearing_keeps_the_system_prompt_and_what_it_cost(session: Session) -> None:
    talk = chat(session)
    talk.set_system("an ox")
    first = said(talk, "in the")
    talk.clear()
    assert (talk.system, len(talk.messages)) == ("an ox", 1)
    assert said(talk, "in the") == first
    assert talk.turn.fed == 1  # the same prompt: its last token gives the logits again
    talk.set_system("")
    assert talk.messages[0]["role"] == "user"


def test_what_is_kept_is_of_the_conversation(session: Session) -> None:
    talk = chat(session)
    assert talk.kept == 0
    said(talk, "in the")
    assert talk.kept == session.position > 12
    talk.clear()
    assert talk.kept == 0 < session.position
    talk.set_system("an ox")
    said(talk, "in the")
    talk.clear()
    assert talk.kept == len(
        session.tokenizer.encode("<start_of_turn>system\nan ox<end_of_turn>\n<start_of_turn>user\n")
    )


def test_a_model_that_generates_no_text_holds_no_conversation(tmp_path: Path) -> None:
    encoder = ggufc.load(tiny_model(tmp_path / "bert.gguf", "bert"), "native", threads=1)
    with pytest.raises(UnsupportedError, match="generates no text: it gives embeddings, by ggufc embed"):
        Chat(encoder, ChatTemplates({}, "no template"))


def test_a_template_may_refuse_a_system_prompt(session: Session) -> None:
    talk = chat(
        session, "{% if messages[0].role == 'system' %}{{ raise_exception('none here') }}{% endif %}" + TEMPLATE
    )
    with pytest.raises(InputError, match=r"takes no system prompt: .*none here"):
        talk.set_system("an ox")
    assert talk.system == ""


def test_an_interrupt_keeps_what_was_said(session: Session) -> None:
    talk = chat(session)
    asked = itertools.count()
    answer = "".join(talk.say("in the", interrupted=lambda: next(asked) > 8))
    assert talk.turn.stop == "interrupted"
    assert talk.messages[-1]["content"] == answer
    held = list(session.tokens)
    said(talk, "on")
    assert session.tokens[: len(held)] == held


def test_a_stop_text_ends_an_answer(session: Session) -> None:
    whole = said(chat(session), "in the", 30)
    middle = whole[len(whole) // 2 :][:2]
    session.reset()
    talk = chat(session)
    answer = "".join(talk.say("in the", max_tokens=30, stop=middle))
    assert (talk.turn.stop, answer) == ("stop", whole[: whole.index(middle)])
    said(talk, "on")  # the stop text was fed, and is taken back
    text = session.tokenizer.decode(session.tokens, render_special=True)
    assert f"<start_of_turn>assistant\n{answer}<end_of_turn>" in text


def test_a_full_context_is_said_before_anything_is_fed(session: Session) -> None:
    talk = chat(session)
    said(talk, "in")
    held, messages = list(session.tokens), list(talk.messages)
    with pytest.raises(InputError, match="/clear"):
        said(talk, "日" * session.context_length)
    assert (session.tokens, talk.messages) == (held, messages)
    assert said(talk, "on")
