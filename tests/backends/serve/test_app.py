"""`ggufc serve` as OpenAI's own client meets it."""

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import openai
import pytest
from ggufc import Session
from ggufc.backends.serve.answers import ChatForm, Usage
from ggufc.backends.serve.generation import Asked, generation
from ggufc.backends.serve.requests import NEUTRAL, SAMPLING
from ggufc.backends.sessions.sampling import Sampling
from ggufc.frontend.chat.templates import ChatTemplates
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from ...serving import NAME, TEMPLATE, Running, running
from ...tiny_models import Sizes, tiny_model

GREEDY: dict[str, Any] = {"model": NAME, "temperature": 0}
TALK: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "an ox"},
    {"role": "user", "content": "in the end <end_of_turn>"},
]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    path = tmp_path_factory.mktemp("serve") / "tiny.gguf"
    return ggufc.load(tiny_model(path, "gemma3", Sizes(layers=2, context=128), seed=3), "native", threads=1)


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as found:
        yield found


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Running]]:
    path = tmp_path_factory.mktemp("serve") / "bert.gguf"
    sizes = Sizes(layers=1, heads=2, kv_heads=2, context=64)
    session = ggufc.load(tiny_model(path, "bert", sizes), "native", threads=1)
    with running(session) as found:
        yield session, found


def alone(session: Session, ids: list[int], tokens: int, **settings: Any) -> str:
    """What the model says when nobody else asks it anything."""
    return "".join(session.new().generate(ids, max_tokens=tokens, **settings))


def prompt_of(session: Session, messages: Any) -> list[int]:
    return ChatTemplates({"default": TEMPLATE}).render(messages, session.tokenizer).encode(session.tokenizer)


def test_models_and_health(client: OpenAI, server: Running) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "ggufc"
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")
    assert server.ask("/health") == (
        200,
        {"status": "ok", "model": NAME, "requests": 0, "running": 0, "waiting": 0},
    )


def test_a_conversation_is_answered_as_a_session_alone_would(client: OpenAI, session: Session) -> None:
    ids = prompt_of(session, TALK)
    answer = client.chat.completions.create(messages=TALK, max_tokens=12, **GREEDY)
    assert answer.choices[0].message.content == alone(session, ids, 12)
    assert (answer.choices[0].finish_reason, answer.model) == ("length", NAME)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 12)
    drawn = client.chat.completions.create(messages=TALK, model=NAME, temperature=0.9, top_p=0.8, seed=7, max_tokens=12)
    assert drawn.choices[0].message.content == alone(session, ids, 12, temperature=0.9, top_p=0.8, seed=7)


def test_a_stream_joins_to_the_whole(client: OpenAI, session: Session) -> None:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    stream = client.chat.completions.create(messages=TALK, max_completion_tokens=20, **GREEDY, **options)
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == alone(session, prompt_of(session, TALK), 20)
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["length"]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 20
    assert len({chunk.id for chunk in chunks}) == 1


def test_texts_are_completed_several_at_a_time(client: OpenAI, session: Session) -> None:
    prompts = ["in the", "on", "日本"]
    answer = client.completions.create(prompt=prompts, max_tokens=9, echo=True, **GREEDY)
    expected = [text + alone(session, session.tokenizer.encode(text), 9) for text in prompts]
    assert [choice.text for choice in answer.choices] == expected
    ids = [[2, 300], [2, 9, 5]]
    drawn = client.completions.create(prompt=ids, n=2, model=NAME, seed=5, max_tokens=9)
    expected = [alone(session, prompt, 9, temperature=1.0, seed=seed) for prompt in ids for seed in (5, 6)]
    assert [choice.text for choice in drawn.choices] == expected
    assert drawn.usage is not None and drawn.usage.prompt_tokens == 5
    streamed = ["", "", ""]
    for chunk in client.completions.create(prompt=prompts, max_tokens=9, stream=True, **GREEDY):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [
        choice.text for choice in client.completions.create(prompt=prompts, max_tokens=9, **GREEDY).choices
    ]


def test_another_seed_each_time(client: OpenAI) -> None:
    texts = {client.completions.create(prompt="in", model=NAME, max_tokens=12).choices[0].text for _ in range(4)}
    assert len(texts) > 1


def test_log_probabilities_are_the_models_own(client: OpenAI, session: Session) -> None:
    """Of every token, in every form, whatever the temperature and however text is held back."""
    ids = session.tokenizer.encode("in the")
    logits: list[np.ndarray] = []
    tokens = list(
        session.new().generate_ids(ids, max_tokens=8, stop=(), watch=lambda _, row: logits.append(row.astype(float)))
    )
    expected = [row - np.log(np.exp(row).sum()) for row in logits]
    asked: dict[str, Any] = {"prompt": ids, "max_tokens": 8, "stop": "never said", **GREEDY}
    found = client.completions.create(**asked, logprobs=5).choices[0].logprobs
    assert found and found.tokens and found.top_logprobs and found.token_logprobs and found.text_offset
    assert np.allclose(found.token_logprobs, [row[token] for row, token in zip(expected, tokens, strict=True)])
    assert [len(top) for top in found.top_logprobs] == [5] * 8
    assert found.text_offset[0] == 0 and sorted(found.text_offset) == found.text_offset
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "in the"}]
    chat: dict[str, Any] = {"messages": messages, "max_tokens": 6, "logprobs": True, "top_logprobs": 20, **GREEDY}
    entries = client.chat.completions.create(**chat).choices[0].logprobs
    assert entries and entries.content
    for entry in entries.content:
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 20 and values == sorted(values, reverse=True) and values[0] == entry.logprob <= 0
        assert entry.bytes and bytes(entry.bytes).decode("utf-8", "replace") == entry.token
    assert sum(len(entry.bytes or ()) for entry in entries.content)
    streamed = [
        entry
        for chunk in client.chat.completions.create(**chat, stream=True)
        for entry in (chunk.choices[0].logprobs.content or () if chunk.choices[0].logprobs else ())
    ]
    assert streamed == entries.content
    plain = client.chat.completions.create(**{**chat, "top_logprobs": 0}).choices[0].logprobs
    assert plain and plain.content and [entry.top_logprobs for entry in plain.content] == [[]] * 6


def test_a_stop_text_ends_an_answer(client: OpenAI, session: Session) -> None:
    whole = alone(session, prompt_of(session, TALK), 30)
    middle = whole[len(whole) // 2 :][:2]
    for stop in (middle, ["never said", middle]):
        answer = client.chat.completions.create(messages=TALK, max_tokens=30, stop=stop, **GREEDY)
        assert answer.choices[0].message.content == whole[: whole.index(middle)]
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("path", "change", "said"),
    [
        ("chat", {"messages": None}, "no messages"),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text alone"),
        ("chat", {"messages": [{"role": "user", "content": "\ud800"}]}, "UTF-8|surrogate"),
        ("chat", {"top_logprobs": 3}, "wants logprobs"),
        ("chat", {"logprobs": True, "top_logprobs": 21}, "from 0 to 20"),
        ("chat", {"logprobs": True, "top_logprobs": -1}, "from 0 to 20"),
        ("chat", {"logprobs": 1}, "true or false"),
        ("chat", {"max_tokens": 0}, "from 1"),
        ("chat", {"temperature": -1}, "temperature"),
        ("chat", {"temperature": True}, "temperature"),
        ("chat", {"top_p": "1"}, "top_p"),
        ("chat", {"seed": 1.5}, "seed"),
        ("chat", {"stop": ""}, "stop"),
        ("chat", {"stop": 5}, "stop"),
        ("chat", {"stop": ["a", 5]}, "stop"),
        ("chat", {"n": 0}, "n 0"),
        ("chat", {"n": 65}, "at most 64"),
        ("chat", {"response_format": {"type": "json_object"}}, "response_format"),
        ("chat", {"logit_bias": {"5": 1}}, "logit_bias"),
        ("chat", {"chat_template_kwargs": {"bos_token": "x"}}, "bos_token"),
        ("text", {"prompt": None}, "prompt: wanted"),
        ("text", {"prompt": []}, "prompt: wanted"),
        ("text", {"prompt": [[]]}, "one at least"),
        ("text", {"prompt": [True]}, "token ids"),
        ("text", {"prompt": [1 << 40]}, "outside the vocabulary"),
        ("text", {"prompt": [2, -1]}, "outside the vocabulary"),
        ("text", {"logprobs": 6}, "from 0 to 5"),
        ("text", {"echo": True, "logprobs": 1}, "echo"),
        ("text", {"prompt": [5] * 128}, "128 tokens, and the context holds 128"),
        ("text", {"prompt": [5] * 500}, "500 tokens, and the context holds 128"),
        ("text", {"prompt": [5] * 500, "stream": True}, "500 tokens, and the context holds 128"),
    ],
)
def test_what_is_not_served_is_said_before_anything_runs(
    path: str, change: dict[str, Any], said: str, server: Running
) -> None:
    routes = {
        "chat": ("/v1/chat/completions", {"messages": TALK}),
        "text": ("/v1/completions", {"prompt": "in"}),
    }
    route, body = routes[path]
    status, answer = server.ask(route, body | change)
    assert status == 400
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(answer["error"]["message"])


def test_what_asks_for_nothing_is_no_fault(server: Running) -> None:
    body = {"messages": TALK, "max_tokens": 1, "stop": None, "n": 1, "presence_penalty": 0, "logit_bias": {}}
    body |= {"user": "me", "response_format": {"type": "text"}, "tools": [], "stream_options": None}
    assert server.ask("/v1/chat/completions", body)[0] == 200


def test_tools_that_the_template_does_not_read_are_refused(server: Running, session: Session) -> None:
    body = {"messages": TALK, "max_tokens": 1, "tools": [{"type": "function", "function": {"name": "clock"}}]}
    status, answer = server.ask("/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "tools")
    assert server.ask("/v1/chat/completions", body | {"tool_choice": "none"})[0] == 200
    with running(session, TEMPLATE + "{{ tools[0].function.name }}") as reading:
        assert reading.ask("/v1/chat/completions", body)[0] == 200


def test_an_answer_ends_where_the_context_does(server: Running, session: Session) -> None:
    status, answer = server.ask("/v1/completions", {"prompt": "in the", "max_tokens": 10**6, "temperature": 0})
    usage = answer["usage"]
    assert status == 200 and usage["total_tokens"] <= session.context_length
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 100_000, b'{"messages": 1e999}'])
def test_a_body_that_is_none_is_refused(raw: bytes, server: Running) -> None:
    assert server.ask("/v1/chat/completions", raw)[0] == 400


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = [*NEUTRAL, "model", "messages", "prompt", "stream", "stream_options", "n", "stop", "logprobs", "top_logprobs"]
_FIELDS += [*SAMPLING, "echo", "tools", "chat_template_kwargs"]
_ROUTES = ("chat/completions", "completions")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=5), st.sampled_from(_ROUTES))
def test_no_field_whatever_its_value_is_a_fault(server: Running, body: dict[str, Any], route: str) -> None:
    base: dict[str, Any] = {"messages": TALK, "prompt": "in"}
    status, _ = server.ask(f"/v1/{route}", base | body | {"max_tokens": 1, "stream": False})
    assert status in (200, 400, 404)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("in the end " * 300_000, " in its first 65536 characters"), ("x" * 3_000_000, "3000000 characters")],
)
def test_a_prompt_that_cant_fit_is_not_read_to_its_end(
    prompt: str, said: str, server: Running, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []

    def encode(text: str, **_: Any) -> list[int]:
        lengths.append(len(text))
        return [5] * text.count(" ")

    monkeypatch.setattr(session.tokenizer, "encode", encode)
    for path, body in (
        ("/v1/completions", {"prompt": prompt}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}]}),
    ):
        status, answer = server.ask(path, body)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert f"the context holds {session.context_length}" in answer["error"]["message"]
        if path == "/v1/completions":
            assert said in answer["error"]["message"]
    assert max(lengths) == 1 << 16


def test_a_wrong_number_of_tokens_is_told_by_the_name_it_was_given(server: Running) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        status, answer = server.ask("/v1/chat/completions", {"messages": TALK, name: 0})
        assert (status, answer["error"]["param"]) == (400, name)
        assert answer["error"]["message"].startswith(f"{name} 0: wanted")


def test_wrong_roads(server: Running) -> None:
    assert server.ask("/v1/nothing")[0] == 404
    assert server.ask("/v1/completions")[0] == 405
    status, answer = server.ask("/v1/completions", {"model": "gpt-4", "prompt": "in"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert "'tiny'" in answer["error"]["message"]


def test_embeddings(embedder: tuple[Session, Running]) -> None:
    session, server = embedder
    texts = ["a cat", "the end"]
    expected = [row / np.linalg.norm(row) for row in map(session.embed, texts)]
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model=NAME, input=texts)  # the client asks for base64
        assert np.allclose([row.embedding for row in found.data], expected, atol=1e-6)
        plain = client.embeddings.create(model=NAME, input=session.tokenizer.encode(texts[1]), encoding_format="float")
        assert np.allclose(plain.data[0].embedding, expected[1], atol=1e-6)
        assert found.usage.prompt_tokens == sum(len(session.tokenizer.encode(text)) for text in texts)
        with pytest.raises(openai.BadRequestError, match="context holds 64"):
            client.embeddings.create(model=NAME, input="a cat " * 200)
        status, answer = server.ask("/v1/embeddings", {"input": [5] * 65})
        assert (status, answer["error"]["param"]) == (400, "input")
        assert answer["error"]["message"] == "the text has 65 tokens, and the context holds 64"
        with pytest.raises(openai.BadRequestError, match="generates no text"):
            client.completions.create(model=NAME, prompt="in")
    raw = server.ask("/v1/embeddings", {"input": texts[0], "encoding_format": "base64"})[1]["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(raw), "<f4"), expected[0], atol=1e-6)


def test_a_decoder_embeds_nothing(server: Running) -> None:
    status, answer = server.ask("/v1/embeddings", {"input": "a cat"})
    assert status == 400 and "no embedding" in answer["error"]["message"]


def _case(shared_dir: Path, number: int) -> tuple[Path, Any]:
    folder = next((shared_dir / "cases").glob(f"{number}-*"))
    return folder / "input", json.loads((folder / "expect.json").read_text("utf-8"))


def test_shared_case_45_a_prompt_beyond_the_context(shared_dir: Path) -> None:
    folder, expected = _case(shared_dir, 45)
    prompts = json.loads((folder / "prompts.json").read_text())
    session = ggufc.load(folder / "ctx64.gguf", "native", threads=1, exact=True)
    with running(session) as server:
        for name, wanted in expected["cases"].items():
            ids = prompts[name]["ids"]
            body = {"prompt": ids, "temperature": 0, "max_tokens": 1000}
            status, answer = server.ask("/v1/completions", body)
            if len(ids) >= 64:
                assert status == 400, name
                assert all(number in answer["error"]["message"] for number in wanted["message_contains"])
                assert server.ask("/v1/completions", body | {"stream": True})[0] == 400
                continue
            assert status == 200, name
            usage, reason = answer["usage"], answer["choices"][0]["finish_reason"]
            assert usage["prompt_tokens"] == len(ids)
            assert (reason, usage["completion_tokens"]) == ("length", wanted["room"]) or reason == "stop"


def test_shared_case_47_many_connections_at_once(shared_dir: Path) -> None:
    folder, expected = _case(shared_dir, 47)
    session = ggufc.load(folder / "shared.gguf", "native", threads=1, exact=True)
    prompts = expected["prompts"]
    with running(session, parallel=8) as server, ThreadPoolExecutor(8) as pool:
        bodies = [{"prompt": case["prompt"], "temperature": 0, "max_tokens": 24} for case in prompts]
        answers = list(pool.map(lambda body: server.ask("/v1/completions", body), bodies))
    for (status, answer), case in zip(answers, prompts, strict=True):
        ids = case["ids"]
        ends = [n for n, token in enumerate(ids) if token in session.tokenizer.eog_ids]
        text = session.tokenizer.decode(ids[: ends[0]] if ends else ids)
        assert (status, answer["choices"][0]["text"]) == (200, text)


def test_shared_case_48_stop_texts_over_the_borders_of_tokens(shared_dir: Path) -> None:
    folder, expected = _case(shared_dir, 48)
    stops = json.loads((folder / "stops.json").read_text("utf-8"))
    session = ggufc.load(folder / "script.gguf", "native", threads=1, exact=True)
    with running(session) as server, OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for name, wanted in expected["cases"].items():
            asked: dict[str, Any] = {
                "prompt": expected["prompt_ids"],
                "max_tokens": 100,
                "stop": stops[name] or None,
                **GREEDY,
            }
            whole = client.completions.create(**asked).choices[0]
            assert (whole.text, whole.finish_reason) == (wanted["content"], wanted["finish_reason"]), name
            chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
            assert "".join(chunk.text for chunk in chunks) == wanted["content"], name
            assert chunks[-1].finish_reason == wanted["finish_reason"], name


def test_shared_case_50_log_probabilities(shared_dir: Path) -> None:
    folder, expected = _case(shared_dir, 50)
    session = ggufc.load(folder / "logprobs.gguf", "native", threads=1, exact=True)
    pieces = list(generation(Asked(expected["prompt_ids"], 3, Sampling(), top=5), session.new()))
    answer = ChatForm(NAME, session.tokenizer, logprobs=True).whole([pieces], Usage(5, 3))
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 3
    for entry, wanted in zip(entries, expected["positions"], strict=True):
        assert [top["bytes"] for top in entry["top_logprobs"]] == [top["bytes"] for top in wanted["top5"]]
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert np.allclose(values, [top["logprob"] for top in wanted["top5"]], atol=2e-3)
        assert entry["logprob"] == values[0]
    with running(session) as server:
        body = {"prompt": expected["prompt_ids"], "temperature": 0, "max_tokens": 3, "logprobs": 5}
        named = server.ask("/v1/completions", body)[1]["choices"][0]["logprobs"]["top_logprobs"]
    assert [len(top) for top in named] == [5, 5, 5]  # also of tokens that are no characters
    assert [list(top.values()) for top in named] == [[top["logprob"] for top in e["top_logprobs"]] for e in entries]
