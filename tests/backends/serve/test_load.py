"""`ggufc serve` with many clients at once, some of which vanish: no wrong text, nothing left behind, a clean stop."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ggufc
import openai
import pytest
from click.testing import CliRunner
from ggufc import Session
from ggufc.backends.serve.server import listening
from ggufc.cli import main
from openai import AsyncOpenAI

from ...serving import NAME, TEMPLATE, Running, post, running
from ...tiny_models import Sizes, tiny_model

TOKENS = 16
MANY = 1000
READS = {"before": 0, "early": 1, "late": 9}  # of a stream, until its client vanishes
PROMPTS = [[2, *random.Random(seed).choices(range(8, 300), k=3 + seed)] for seed in range(16)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load") / "tiny.gguf"
    metadata = {"tokenizer.chat_template": TEMPLATE}
    return tiny_model(path, "gemma3", Sizes(layers=1, context=4096), metadata=metadata, seed=3)


@pytest.fixture(scope="module")
def session(model: Path) -> Session:
    return ggufc.load(model, "native", threads=1)


@pytest.fixture(scope="module")
def expected(session: Session) -> list[str]:
    """What each of PROMPTS is continued with where nobody else asks anything."""
    found = ["".join(session.new().generate(prompt, max_tokens=TOKENS)) for prompt in PROMPTS]
    assert len(set(found)) > len(found) / 2  # so that one client's text with another shows
    return found


def body(n: int, **more: Any) -> dict[str, Any]:
    return {"model": NAME, "prompt": PROMPTS[n % len(PROMPTS)], "max_tokens": TOKENS, "temperature": 0, **more}


def settled(server: Running) -> None:
    """Waits until the server has nothing to do any more."""
    state: dict[str, int] = {}
    for _ in range(200):
        state = server.ask("/health")[1]
        if not state["requests"] + state["running"] + state["waiting"]:
            return
        time.sleep(0.02)
    raise AssertionError(state)


@pytest.mark.slow
def test_of_200_at_once_those_that_stay_get_their_text(session: Session, expected: list[str]) -> None:
    chance = random.Random(1)
    leaving = [chance.choice(["no", "no", "before", "early", "late"]) for _ in range(200)]

    async def talk(client: AsyncOpenAI, port: int, n: int) -> None:
        if leaving[n] != "no":
            asked = body(n, stream=leaving[n] != "before", max_tokens=4000)
            reader, writer = await post(port, "/v1/completions", asked)
            for _ in range(READS[leaving[n]]):
                await reader.read(4096)
            await asyncio.sleep(chance.random() / 20)
            writer.transport.abort()
            return
        stream = await client.completions.create(**body(n, stream=True))
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == expected[n % len(PROMPTS)]
        answer = await client.completions.create(**body(n))
        assert answer.choices[0].text == text

    async def everybody(server: Running) -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
            await asyncio.gather(*(talk(client, server.port, n) for n in range(200)))

    with running(session, queue=400) as server:
        asyncio.run(everybody(server))
        settled(server)


def test_a_full_server_says_so_at_once(session: Session, expected: list[str]) -> None:
    async def ask(client: AsyncOpenAI, n: int) -> str | None:
        try:
            return (await client.completions.create(**body(n))).choices[0].text
        except openai.RateLimitError as error:
            assert error.response.headers["retry-after"] == "1"
            assert error.code == "queue_full" and "try again" in str(error)
            return None

    async def everybody(server: Running) -> list[str | None]:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            # one that lasts takes the model's only place, so that the queue fills
            _, long = await post(server.port, "/v1/completions", body(0, stream=True, max_tokens=4000))
            while not server.ask("/health")[1]["running"]:
                await asyncio.sleep(0.01)
            tasks = [asyncio.ensure_future(ask(client, n)) for n in range(12)]
            while sum(task.done() for task in tasks) < 9:
                await asyncio.sleep(0.01)
            long.transport.abort()
            return await asyncio.gather(*tasks)

    with running(session, parallel=1, queue=3) as server:
        found = asyncio.run(everybody(server))
        assert sum(text is None for text in found) == 9
        assert all(text in (None, expected[n]) for n, text in enumerate(found))
        settled(server)


@pytest.mark.slow
def test_nothing_is_left_of_many_requests(session: Session) -> None:
    """Of a thousand requests, of which every fifth vanishes: neither memory nor threads nor open files."""

    async def some(server: Running, count: int) -> None:
        async def one(n: int) -> None:
            reader, writer = await post(server.port, "/v1/completions", body(n % 4, max_tokens=2, stream=n % 2 == 0))
            if n % 5:
                assert b" 200 " in await reader.readline()
                assert await reader.read()
            writer.close()

        for start in range(0, count, 20):
            await asyncio.gather(*(one(start + n) for n in range(20)))

    def held() -> tuple[int, int, int]:
        settled(server)
        status = Path("/proc/self/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0])
        return resident, threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))

    with running(session, queue=100) as server:
        asyncio.run(some(server, 300))
        before = held()
        asyncio.run(some(server, MANY))
        after = held()
    assert after[0] - before[0] < 4 << 10  # kB: less than one and a half of a request's own
    assert after[1] <= before[1] and after[2] <= before[2] + 1


@dataclass(frozen=True)
class Command:
    """`ggufc serve` in a process of its own."""

    process: subprocess.Popen[str]
    port: int


@contextmanager
def command(model: Path, *words: str) -> Iterator[Command]:
    line = [sys.executable, "-m", "ggufc", "serve", str(model), "--backend", "native", "--threads", "1", "--json"]
    line += ["--name", NAME]
    process = subprocess.Popen(
        [*line, "--port", "0", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        said = "".join(iter(process.stdout.readline, "}\n")) + "}"
        found = json.loads(said)
        assert found["model"] == NAME
        yield Command(process, int(found["url"].split(":")[-1].strip("/")))
    finally:
        process.kill()
        process.communicate()


async def stopped(server: Command, tokens: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The last event of each of two streams, and what is answered to three requests that wait, one of which would be
    a stream, when SIGTERM comes."""
    bodies = [body(n, stream=True, max_tokens=tokens) for n in range(2)] + [body(n, stream=not n) for n in range(3)]
    sent = [await post(server.port, "/v1/completions", bodies[n]) for n in range(2)]
    try:
        for reader, _ in sent:
            await reader.readuntil(b"data: ")
        sent += [await post(server.port, "/v1/completions", bodies[n]) for n in range(2, 5)]
        await asyncio.sleep(0.2)
        os.kill(server.process.pid, signal.SIGTERM)
        streams, answers = [(await reader.read()).decode() for reader, _ in sent[:2]], []
        for reader, _ in sent[2:]:
            assert b" 503 " in await reader.readline()
            answers.append((await reader.read()).partition(b"\r\n\r\n")[2])
    finally:
        for _, writer in sent:
            writer.close()
            await writer.wait_closed()
    events = [[line for line in text.splitlines() if line.startswith("data: {")] for text in streams]
    return [json.loads(lines[-1].removeprefix("data: ")) for lines in events], list(map(json.loads, answers))


@pytest.mark.slow
@pytest.mark.parametrize(("grace", "tokens"), [("30", 3000), ("0", 4000)])
def test_a_stop_with_requests_in_flight_is_clean(grace: str, tokens: int, model: Path) -> None:
    """What runs ends whole, or with an event that says why; what waits is refused; the process ends without a word."""
    with command(model, "--parallel", "2", "--grace", grace) as server:
        ends, refused = asyncio.run(stopped(server, tokens))
        for end in ends:
            if grace == "0":
                assert end["error"]["code"] == "stopping"
            else:
                assert end["choices"][0]["finish_reason"] in ("length", "stop")
        assert [answer["error"]["code"] for answer in refused] == ["stopping"] * 3
        _, errors = server.process.communicate(timeout=20)
        assert (server.process.returncode, errors) == (0, "")


def test_an_address_that_is_taken_is_said_before_the_model_is_opened() -> None:
    with closing(listening("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(main, ["serve", "no such model", "--port", str(port)])
    assert done.exit_code == 2
    assert f"can't listen at 127.0.0.1 port {port}: Address already in use" in done.stderr


def test_who_sends_half_a_body_takes_nobodys_place(session: Session, expected: list[str]) -> None:
    async def everybody(server: Running) -> list[str]:
        half = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"
        slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(6)]
        for _, writer in slow:
            writer.write(half)
            await writer.drain()
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            found = [(await client.completions.create(**body(n))).choices[0].text for n in range(2)]
        for _, writer in slow:
            writer.transport.abort()
        return found

    with running(session, parallel=1, queue=1) as server:
        assert asyncio.run(everybody(server)) == expected[:2]
        settled(server)


@pytest.mark.slow
def test_who_reads_nothing_of_an_answer_loses_the_place(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ggufc.backends.serve.server.READ_SECONDS", 1)
    long = json.dumps(body(0) | {"stream": True, "n": 64, "logprobs": 5, "max_tokens": 1000}).encode()  # some 20 MB
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(long)
    with running(session, parallel=64, queue=0) as server, closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head + long)
        while not server.ask("/health")[1]["running"]:
            time.sleep(0.01)
        deadline = time.monotonic() + 60
        while server.ask("/health")[1]["requests"]:
            assert time.monotonic() < deadline
            time.sleep(0.2)
