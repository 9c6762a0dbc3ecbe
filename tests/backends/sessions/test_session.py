"""A session's state: however tokens are fed, reset or taken back, the logits are llama.cpp's."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import pytest
from ggufc import InputError, Session
from ggufc.backends.sessions import rings

from ...oracle import Reference, kl_divergence
from ...tiny_models import tiny_gemma3
from ...tiny_models.variants import DECODERS
from ..conftest import TinyCase

IDS = np.random.default_rng(7).integers(8, 300, 90).tolist()
"""Far past the window of 8 and, with the small chunks below, past the rings."""
RINGS = 16
"""Tokens of one call here: a ring then holds 8 + 16 rows and turns over several times."""


@pytest.fixture
def session(tiny_f32: TinyCase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A new session on the compiled module, whose caches begin small and whose rings soon turn over."""
    monkeypatch.setattr(rings, "CHUNK", RINGS)
    monkeypatch.setattr(rings, "FIRST_ROWS", 4)
    monkeypatch.setattr(rings, "SPARE_ROWS", 0)
    yield tiny_f32.session("iree")


@pytest.fixture(scope="module")
def expected(tiny_f32: TinyCase) -> np.ndarray:
    """llama.cpp's logits (len(IDS), vocabulary) after each of IDS."""
    with Reference(tiny_f32.path) as reference:
        return reference.logits(IDS, last=len(IDS))


def near(logits: np.ndarray, expected: np.ndarray) -> None:
    """Good to what llama.cpp's float16 GELU leaves."""
    assert kl_divergence(expected, logits) < 1e-4
    assert logits.argmax() == expected.argmax()


@pytest.mark.parametrize("chunk", [90, 64, 7, 1])
def test_prefill_in_pieces(chunk: int, session: Session, expected: np.ndarray) -> None:
    for start in range(0, len(IDS), chunk):
        logits = session.prefill(IDS[start : start + chunk])
        near(logits, expected[min(start + chunk, len(IDS)) - 1])


def test_token_by_token_through_decode(session: Session, expected: np.ndarray) -> None:
    for n, token in enumerate(IDS):
        near(session.decode(token), expected[n])


def test_the_likeliest_token_without_its_logits(session: Session, expected: np.ndarray) -> None:
    for n, token in enumerate(IDS):
        assert session.decode_greedy(token) == expected[n].argmax()


def test_a_greedy_generation_takes_the_likeliest_each_time(session: Session) -> None:
    """By the entry point that chooses, as by the logits."""
    found = list(session.generate_ids(IDS[:9], max_tokens=12, stop=()))
    session.reset()
    logits, wanted = session.prefill(IDS[:9]), []
    for _ in found:
        wanted.append(int(logits.argmax()))
        logits = session.decode(wanted[-1])
    assert found == wanted


def test_reset_is_a_new_session_to_the_bit(session: Session) -> None:
    first = [session.prefill(IDS), session.decode(5)]
    session.reset()
    assert session.position == 0
    assert np.array_equal(first, [session.prefill(IDS), session.decode(5)])


@pytest.mark.parametrize("count", [1, 5, 40, 89, 90])
def test_rewind_is_as_if_the_tokens_had_never_been(count: int, session: Session, expected: np.ndarray) -> None:
    """Of 90 tokens in rings of 24 rows: 5 are taken back in place, 40 are beyond what the rings still hold."""
    session.prefill(IDS)
    session.rewind(count)
    kept = len(IDS) - count
    assert session.tokens == IDS[:kept]
    for n in range(kept, min(kept + 3, len(IDS))):
        near(session.decode(IDS[n]), expected[n])


def test_rewinds_add_up(session: Session, expected: np.ndarray) -> None:
    """Each rewind is within the ring, all of them together are not."""
    session.prefill(IDS)
    for _ in range(5):
        session.rewind(10)
        session.prefill(IDS[session.position : session.position + 2])
    n = session.position
    near(session.prefill(IDS[n : n + 9]), expected[n + 8])


def test_wrong_ids_are_refused_and_nothing_is_fed(session: Session) -> None:
    before = session.prefill([2, 300])
    for ids in ([], [-1], [session.vocabulary], [2, 300, 1 << 40]):
        with pytest.raises(InputError):
            session.prefill(ids)
    with pytest.raises(InputError, match="vocabulary"):
        session.decode(session.vocabulary)
    with pytest.raises(InputError, match="2 were fed"):
        session.rewind(3)
    assert session.position == 2
    session.rewind(2)
    assert np.array_equal(session.prefill([2, 300]), before)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A model with a context of 64, and small in every way."""
    path = tiny_gemma3(tmp_path_factory.mktemp("short") / "ctx64.gguf", layers=2, context=64)
    return ggufc.load(path, "native", threads=1)


@pytest.mark.parametrize(
    "ids", [[1, 2.5, 3], "123", b"12", ["5"], 5, None, [None], np.array([[1, 2]]), np.array([1.0]), [np.array([5])]]
)
def test_what_is_no_token_id_is_refused_and_nothing_is_fed(ids: Any, short: Session) -> None:
    short.reset()
    feeds = [short.prefill, short.generate_ids]
    feeds += [] if isinstance(ids, str) else [short.generate]
    feeds += [short.decode] if not isinstance(ids, int) else []
    for feed in feeds:
        with pytest.raises(InputError, match="whole number"):
            feed(ids)
    assert short.position == 0


def test_ids_are_whole_numbers_of_any_kind(short: Session) -> None:
    def fed(ids: Any) -> np.ndarray:
        short.reset()
        return short.prefill(ids)

    expected = fed([2, 9, 5])
    for ids in ((2, 9, 5), deque([2, 9, 5]), iter([2, 9, 5]), (n for n in (2, 9, 5)), np.array([2, 9, 5], np.uint16)):
        assert np.array_equal(fed(ids), expected)
        assert short.tokens == [2, 9, 5] and {type(token) for token in short.tokens} == {int}


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", value) for value in (float("nan"), float("inf"), 10**400, -1, "1", None)]
    + [(name, value) for name in ("max_tokens", "seed") for value in (-1, 1.5, "1", None)],
)
def test_wrong_arguments_of_a_generation_are_refused_at_the_call(name: str, value: Any, short: Session) -> None:
    short.reset()
    for generate in (short.generate, short.generate_ids):
        with pytest.raises(InputError, match=name):
            generate([2, 5], **{name: value})
    assert short.position == 0


@pytest.mark.parametrize("count", [-1, 1.0, None])
def test_a_rewind_takes_a_whole_number(count: Any, short: Session) -> None:
    with pytest.raises(InputError, match="count"):
        short.rewind(count)


def test_generations_that_interleave_are_refused(short: Session) -> None:
    """Whoever changes the session meanwhile: the tokens of two texts never mix."""
    changes: list[Callable[[], object]] = [
        lambda: next(short.generate_ids([7], stop=())),
        lambda: short.decode(7),
        lambda: short.rewind(1),
        short.reset,
    ]
    for change in changes:
        short.reset()
        first = short.generate_ids([2, 5], stop=())
        next(first)
        change()
        before = list(short.tokens)
        with pytest.raises(InputError, match="one generation at a time"):
            next(first)
        assert short.tokens == before


def test_a_generation_begins_where_it_was_asked_for(short: Session) -> None:
    short.reset()
    one, other = (short.generate_ids([2, n], max_tokens=2, stop=()) for n in (5, 6))
    assert len(list(one)) == 2
    with pytest.raises(InputError, match="one generation at a time"):
        next(other)
    assert len(list(short.generate_ids([7], max_tokens=2, stop=()))) == 2  # a turn that follows is in order


@pytest.mark.parametrize("threads", [0, -1, 1.5, 1025, 10**6, "2"])
def test_threads_are_a_whole_number_within_reason(threads: Any) -> None:
    from ggufc.backends.native.team import Team

    with pytest.raises(InputError, match="whole number from 1 to 1024"):
        Team(threads)


@pytest.mark.parametrize("prompt", [1, 62, 63, 64])
def test_a_generation_ends_with_the_context(prompt: int, short: Session) -> None:
    """Prompt and generated tokens together have the 64 positions."""
    short.reset()
    generation = short.generate_ids(IDS[:prompt], max_tokens=100, stop=())
    tokens = []
    with pytest.raises(StopIteration) as end:
        while True:
            tokens.append(next(generation))
    assert (len(tokens), end.value.value) == (64 - prompt, "context")


@pytest.mark.parametrize("prompt", [65, 66, 90])
def test_a_prompt_beyond_the_context_is_refused_whole(prompt: int, short: Session) -> None:
    short.reset()
    with pytest.raises(InputError, match=f"{prompt} tokens .* context of 64"):
        next(short.generate_ids(IDS[:prompt]))
    assert short.position == 0
    short.prefill(IDS[:64])
    with pytest.raises(InputError, match="context of 64"):
        short.decode(9)
    short.reset()
    short.decode(9)


def test_why_a_generation_ended(short: Session) -> None:
    def ended(max_tokens: int, stop: tuple[int, ...]) -> tuple[list[int], str]:
        short.reset()
        generation, tokens = short.generate_ids(IDS[:5], max_tokens=max_tokens, stop=stop), []
        while True:
            try:
                tokens.append(next(generation))
            except StopIteration as end:
                return tokens, end.value

    free, reason = ended(6, ())
    assert (len(free), reason) == (6, "length")
    first = free.index(free[3])
    assert ended(6, (free[3],)) == (free[:first], "eos")
    assert ended(0, ()) == ([], "length")


def test_sessions_over_one_model_share_nothing(tiny_f32: TinyCase, expected: np.ndarray) -> None:
    """Two sessions on one executor, fed in turn."""
    one = tiny_f32.session("iree")
    other = Session(one.executor, one.facts, lambda: one.tokenizer)
    for n, token in enumerate(IDS[:20]):
        near(one.decode(token), expected[n])
        other.decode(IDS[-n])


@pytest.mark.slow
def test_the_shared_case_of_a_short_context(shared_dir: Path, tmp_path: Path) -> None:
    """Case 45: room for as many tokens as the context has left, and llama.cpp's own choice of them."""
    case = shared_dir / "cases" / "45-prompt-longer-than-the-context"
    ggufc.export(case / "input" / "ctx64.gguf", tmp_path / "bundle")
    session = ggufc.load(tmp_path / "bundle", threads=1)
    prompts = json.loads((case / "input" / "prompts.json").read_text())
    for name, found in json.loads((case / "expect.json").read_text())["cases"].items():
        session.reset()
        ids = prompts[name]["ids"]
        if len(ids) > 64:
            with pytest.raises(InputError, match="context of 64"):
                session.prefill(ids)
            continue
        wanted = found.get("greedy_if_no_end_token", {"ids": []})["ids"]  # a prompt that fills the context has no room
        room = found.get("room", 0)
        assert list(session.generate_ids(ids, max_tokens=min(len(wanted), room) or 9, stop=())) == wanted[:room]


@pytest.mark.parametrize("backend", ["native", "xla"])
def test_an_interrupted_call_is_as_if_it_had_never_been(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a convolution has moved on, and XLA has given up the caches that it was lent."""
    session = ggufc.load(DECODERS["lfm2"].write(tmp_path / "model.gguf"), backend=backend)
    wanted = [session.prefill(IDS[:20]).copy(), session.decode(IDS[20]).copy()][-1]
    run = session.executor.run

    def interrupted(*arguments: Any) -> None:
        run(*arguments)
        raise KeyboardInterrupt

    session.reset()
    session.prefill(IDS[:20])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(session.executor, "run", interrupted)
        session.decode(IDS[50])
    assert session.position == 20
    np.testing.assert_allclose(session.decode(IDS[20]), wanted, atol=1e-4)
