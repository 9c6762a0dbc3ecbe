"""Every program in `examples/` runs as it stands, on compiled bundles, and does what it says."""

import asyncio
import json
import os
import re
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import ggufc
import pytest
from ggufc import Session
from ggufc.backends.host.machine import this_machine
from ggufc.backends.native.target import PRESETS, host_target

from .minilm import model_folder, write_minilm
from .tiny_models import Sizes, tiny_model

FOLDER = Path(__file__).parents[1] / "examples"
PROMPTS = ("in the", "on 日本", "the end")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    path = tiny_model(folder / "tiny.gguf", "gemma3", Sizes(layers=2), seed=11)
    ggufc.export(path, folder / "tiny")
    return folder / "tiny"


@pytest.fixture(scope="module")
def session(bundle: Path) -> Session:
    return ggufc.load(bundle)


def main_of(name: str) -> Callable[..., Any]:
    """What a program runs with its words."""
    return runpy.run_path(str(FOLDER / f"{name}.py"))["main"]


def said(session: Session, prompt: str, tokens: int = 48) -> str:
    return "".join(session.new().generate(prompt, max_tokens=tokens))


@contextmanager
def program(name: str, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, str(FOLDER / f"{name}.py"), *map(str, words)], stdout=-1, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_by_hand(bundle: Path, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("by_hand")(str(bundle), PROMPTS[0])
    assert capsys.readouterr().out == said(session, PROMPTS[0]) + "\n"


def test_graph(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("graph")(str(bundle / "model.gguf"))
    assert capsys.readouterr().out.startswith("graph @decode(%tokens: i32[1]")


def test_graph_of_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("graph")(str(tiny_model(tmp_path / "bert.gguf", "bert", Sizes(layers=1, heads=2, kv_heads=2))))
    assert capsys.readouterr().out.startswith("graph @encode(")


@pytest.mark.parametrize("name", ["by_hand", "many_conversations", "functions"])
def test_a_model_of_another_kind_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "bert.gguf", "bert", Sizes(layers=1, heads=2, kv_heads=2))
    command = [sys.executable, str(FOLDER / f"{name}.py"), str(path), "in"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.endswith(
        "the model generates no text: it gives embeddings, by ggufc embed and embed()\n"
    )
    assert "Traceback" not in done.stderr


def test_the_plain_program_takes_what_this_machine_can_run() -> None:
    runs_here = runpy.run_path(str(FOLDER / "plain.py"))["runs_here"]
    for target in (host_target(), *PRESETS.values()):
        given = {"file": "x.vmfb", "triple": target.triple, "features": list(target.features)}
        assert runs_here(given) == (not this_machine().lacks(target.triple, target.features)), target.name


def test_many_conversations(bundle: Path, session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    main_of("many_conversations")(str(bundle), *PROMPTS)
    told = capsys.readouterr().out
    for prompt in PROMPTS:
        assert prompt + said(session, prompt, 24) in told
    assert told.endswith("the same again after a reset: True\n")
    assert len(re.findall(r"^\[\d+ tokens, \d\.\d MB of caches\]$", told, re.MULTILINE)) == 3


def test_functions_make_calls_that_can_be_made(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a model that knows nothing."""
    main_of("functions")(str(bundle), "What is 17 times 23?")
    call = json.loads(capsys.readouterr().out.splitlines()[0])
    assert set(call["arguments"]) == {"multiply": {"a", "b"}, "weather": {"city"}, "clock": set()}[call["name"]]


def test_functions_are_those_that_were_meant(
    real_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ggufc.load(real_model, "native")
    monkeypatch.setattr(ggufc, "load", lambda path: session)
    requests = {
        "What is 17 times 23?": "391",
        "How is the weather in Paris?": "In Paris it",
        "What time is it?": "It is ",
    }
    for request, begin in requests.items():
        main_of("functions")(str(real_model), request)
        assert capsys.readouterr().out.splitlines()[1].startswith(begin)


def test_similarity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder()
    if folder is None:
        pytest.skip("the package with MiniLM's weights is not installed")
    model = write_minilm(folder, tmp_path / "minilm.gguf")
    main_of("similarity")(str(model), "A cat sleeps.", "The market fell.", "The kitten is napping.")
    near, far = capsys.readouterr().out.splitlines()
    assert near.endswith("  The kitten is napping.") and far.endswith("  The market fell.")
    assert float(near.split()[0]) > float(far.split()[0]) + 0.2


def test_asyncio_server(bundle: Path, session: Session) -> None:
    async def talk(port: int, prompt: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{prompt}\n".encode())
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        return answer.decode()

    async def leave(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"in\n")
        await writer.drain()
        writer.transport.abort()

    async def everybody(port: int) -> list[str]:
        await leave(port)
        return await asyncio.gather(*(talk(port, prompt) for prompt in PROMPTS))

    with program("asyncio_server", bundle, "0") as process:
        assert process.stdout
        port = int(process.stdout.readline().split()[-1])
        assert asyncio.run(everybody(port)) == [said(session, prompt) + "\n" for prompt in PROMPTS]


def test_fastapi_service(bundle: Path, session: Session) -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def ask(body: dict[str, Any]) -> tuple[int, str]:
        headers = {"content-type": "application/json"}
        request = Request(f"http://127.0.0.1:{port}/continue", json.dumps(body).encode(), headers)
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    with program("fastapi_service", bundle, str(port)):
        about = {}
        for _ in range(300):
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/model") as answer:
                about = json.load(answer)
                break
            time.sleep(0.1)
        assert about == {"context_length": session.context_length, "vocabulary": session.vocabulary}
        assert ask({"text": PROMPTS[0], "max_tokens": 12}) == (200, said(session, PROMPTS[0], 12))
        assert ask({"text": ""})[0] == 422
        status, told = ask({"text": "日" * 2000})
        assert status == 422 and "exceed the context of 1024" in told
