"""Many conversations over one loaded model: each is as if it were alone, whatever happens to the others."""

import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import pytest
from ggufc import InputError, Session

from ...tiny_models import Sizes, tiny_model

SESSIONS, TOKENS = 64, 12
PROMPTS = [random.Random(n).choices(range(8, 300), k=2 + n % 7) for n in range(SESSIONS)]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0} if n % 2 else {"temperature": 0.9, "top_k": 40, "seed": n} for n in range(SESSIONS)
]

Generation = Generator[int, None, str]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    return tiny_model(folder / "tiny.gguf", "gemma3", Sizes(layers=2, context=512), seed=3)


@pytest.fixture(scope="module", params=["native", pytest.param("iree", marks=pytest.mark.slow)])
def session(request: pytest.FixtureRequest, path: Path) -> Session:
    """The loaded model, itself at position 0."""
    if request.param == "iree":
        ggufc.export(path, path.with_suffix(""))
        return ggufc.load(path.with_suffix(""), threads=2)
    return ggufc.load(path, request.param, threads=2)


def begun(session: Session, n: int) -> Generation:
    return session.generate_ids(PROMPTS[n], max_tokens=TOKENS, stop=(), **SETTINGS[n])


@pytest.fixture(scope="module")
def expected(session: Session) -> list[list[int]]:
    """What each says alone, one after the other in the same session."""
    found = []
    for n in range(SESSIONS):
        session.reset()
        found.append(list(begun(session, n)))
    session.reset()
    return found


def test_64_sessions_in_any_order_say_what_64_runs_do(session: Session, expected: list[list[int]]) -> None:
    generations = [begun(session.new(), n) for n in range(SESSIONS)]
    said: list[list[int]] = [[] for _ in generations]
    chance, open_ones = random.Random(0), list(range(SESSIONS))
    while open_ones:
        n = chance.choice(open_ones)
        try:
            said[n].append(next(generations[n]))
        except StopIteration:
            open_ones.remove(n)
    assert said == expected


def test_threads_that_come_and_go_say_it_too(session: Session, expected: list[list[int]]) -> None:
    """Case 47 for threads: sessions are made, abandoned at any token and dropped while others run."""

    def talk(n: int) -> list[int]:
        abandoned = begun(session.new(), (n + 1) % SESSIONS)
        for _ in range(n % 5):
            next(abandoned)
        return list(begun(session.new(), n))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(talk, range(SESSIONS))) == expected


def test_a_session_costs_its_caches_alone(session: Session) -> None:
    """Bytes of 40 more sessions, counted by the system, against what their caches are said to be."""

    def resident() -> int:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps for later is given back too
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    ids = np.random.default_rng(0).integers(8, 300, 400).tolist()
    warm = [session.new() for _ in range(4)]
    for one in warm:
        one.prefill(ids)
    before = resident()
    more = [session.new() for _ in range(40)]
    fed = [one.prefill(ids) for one in more]
    assert all(one.tokenizer is session.tokenizer for one in more)
    caches = sum(one.cache_bytes() for one in more)
    assert caches > 20 << 20
    assert resident() - before < 1.1 * caches + (1 << 20)
    del more, fed
    assert resident() - before < 0.3 * caches


class Killed(Exception):  # noqa: N818 -- what happens to a thread, no error of anybody's
    """Raised in another thread at any instruction."""


def test_a_thread_killed_in_a_step_harms_no_other(session: Session, expected: list[list[int]]) -> None:
    def endless() -> None:
        one = session.new()
        while True:
            one.reset()
            for _ in begun(one, 3):
                pass

    def victim() -> None:
        try:
            endless()
        except Killed:
            return

    raise_in: Callable[..., int] = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for n in range(12):
        thread = threading.Thread(target=victim)
        thread.start()
        time.sleep(0.002 * n)
        assert raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Killed)) == 1
        assert list(begun(session.new(), n)) == expected[n]
        thread.join(10)
        assert not thread.is_alive()


def test_two_threads_at_one_session_are_told(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    one = session.new()
    run, inside, go_on = session.executor.run, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> np.ndarray:
        inside.set()
        go_on.wait(10)
        return run(*arguments)

    monkeypatch.setattr(session.executor, "run", slow)
    thread = threading.Thread(target=one.prefill, args=([2, 9, 5],))
    thread.start()
    inside.wait(10)
    try:
        for change in (lambda: one.prefill([7]), lambda: one.decode(7), one.reset, lambda: one.rewind(0)):
            with pytest.raises(InputError, match="another thread"):
                change()
    finally:
        go_on.set()
        thread.join()
    assert one.tokens == [2, 9, 5]


@pytest.mark.filterwarnings("ignore:.*fork")  # JAX and Python 3.12 warn of just this
def test_a_forked_process_is_told(session: Session) -> None:
    """The workers that it would wait for are not there."""
    child = os.fork()
    if not child:
        try:
            session.new().prefill([2])  # a session that the child made
            os._exit(1)
        except InputError:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


FORKING = """
import os, sys, warnings, ggufc
warnings.simplefilter("ignore")  # JAX and Python 3.12 warn of just this
session = ggufc.load(sys.argv[1], sys.argv[2], threads=2)
print(session.prefill([2, 9, 5]).argmax(), flush=True)
for loads in (False, True):
    child = os.fork()
    if not child:
        if loads:
            print(ggufc.load(sys.argv[1], sys.argv[2], threads=2).prefill([2, 9, 5]).argmax(), flush=True)
        sys.exit(5)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(session.decode_greedy(7), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["iree", "native"])
def test_a_forked_process_loads_the_model_itself_and_ends(path: Path, backend: str) -> None:
    """It has none of the workers that its parent made: neither its own model nor its end may wait for them."""
    ggufc.load(path, backend)  # compiles it here: JAX and the compiler are not made to be forked
    command = [sys.executable, "-c", FORKING, str(path), backend]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    first, exited, again, loaded, _ = done.stdout.split()
    assert (exited, again, loaded) == ("5", first, "5")
    assert done.stderr == ""


def test_a_session_outlives_the_one_that_it_came_from(path: Path) -> None:
    first = ggufc.load(path, "native", threads=1)
    wanted = list(begun(first, 5))
    second = first.new().new()
    del first
    gc.collect()
    path.rename(path.with_suffix(".gone"))  # what is mapped stays
    try:
        assert list(begun(second, 5)) == wanted
    finally:
        path.with_suffix(".gone").rename(path)
