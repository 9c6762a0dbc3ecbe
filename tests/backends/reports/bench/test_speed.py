"""The figures of a report, of engines whose speeds are known and of real ones."""

import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ggufc.backends.host.cores import usable_cores
from ggufc.backends.reports.bench.engines import Run, _waited, timed
from ggufc.backends.reports.bench.speed import bench
from ggufc.backends.reports.costs import decode_bytes
from ggufc.frontend.errors import InputError
from ggufc.graph.model import open_model

from ....tiny_models import Sizes, tiny_model
from . import fakes

LISTS: dict[str, Any] = {"prompts": [8, 16], "tokens": [2, 4], "depths": [0, 8], "threads": [2, 1], "rounds": 3}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "llama.gguf", "llama", Sizes(layers=1))


@pytest.fixture
def report(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    fakes.install(monkeypatch)
    return bench(decoder, backend="native", llama_cpp=True, **LISTS)


class Recorder:
    """An engine that notes what it is fed; the likeliest token is the number of tokens so far."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.fed = 0

    def reset(self) -> None:
        self.calls.append("reset")
        self.fed = 0

    def prefill(self, ids: Sequence[int]) -> np.ndarray:
        self.calls.append(list(ids))
        return self._logits(len(ids))

    def decode(self, token: int) -> np.ndarray:
        self.calls.append(token)
        return self._logits(1)

    def decode_greedy(self, token: int) -> int:
        return int(self.decode(token).argmax())

    def embed(self, ids: Sequence[int]) -> np.ndarray:
        self.calls.append(("embed", list(ids)))
        return np.zeros(4, np.float32)

    def classify(self, ids: Sequence[int]) -> np.ndarray:
        self.calls.append(("classify", list(ids)))
        return np.zeros(2, np.float32)

    def _logits(self, count: int) -> np.ndarray:
        self.fed += count
        return np.eye(16, dtype=np.float32)[self.fed]


@pytest.mark.parametrize(
    ("run", "calls"),
    [
        (Run([7, 8, 9], (2,)), ["reset", [7, 8, 9], 3, 4]),
        (Run([], (1, 3)), ["reset", 0, 1, 2]),
        (Run([7]), ["reset", [7]]),
        (Run([7, 8], encode="embed"), [("embed", [7, 8])]),
        (Run([7, 8], encode="classify"), [("classify", [7, 8])]),
    ],
)
def test_a_run_is_a_fresh_sequence(run: Run, calls: list[object]) -> None:
    engine = Recorder()
    timing = timed(engine, run)
    assert engine.calls == calls
    assert set(timing.decoded_s) == set(run.counts)
    assert list(timing.decoded_s.values()) == sorted(timing.decoded_s.values())
    assert timing.fed_s >= 0 and timing.peak_rss > 1_000_000


def test_there_is_a_row_for_every_setting(report: dict[str, Any]) -> None:
    assert [(row["threads"], row["tokens"]) for row in report["prefill"]] == [(2, 8), (2, 16), (1, 8), (1, 16)]
    settings = [(row["threads"], row["depth"], row["tokens"]) for row in report["decode"]]
    assert settings == [(n, depth, count) for n in (2, 1) for depth in (0, 8) for count in (2, 4)]


def test_figures_are_medians_of_rounds_after_the_first(report: dict[str, Any], decoder: Path) -> None:
    for row in report["prefill"]:
        assert {name: row[name]["tok_s"] for name in fakes.FED} == pytest.approx(fakes.FED)
        assert row["ratio"] == pytest.approx(2)
    model = open_model(decoder)
    for row in report["decode"]:
        read = decode_bytes(model, "f32", row["depth"] + row["tokens"] // 2)
        assert row["ggufc"] == pytest.approx({"tok_s": 100, "gb_s": 100 * read / 1e9, "bytes": read})
        assert row["llama.cpp"]["bytes"] == decode_bytes(model, "f16", row["depth"] + row["tokens"] // 2)
        assert row["ratio"] == pytest.approx(1.25)
        assert row["limit_tok_s"] == pytest.approx(row["threads"] * fakes.BANDWIDTH / read)
        assert row["fraction"] == pytest.approx(100 / row["limit_tok_s"])


def test_the_first_setting_stands_at_the_top(report: dict[str, Any]) -> None:
    first = report["decode"][0]
    wanted = {"prefill_tok_s": 1000, "decode_tok_s": 100, "decode_gb_s": first["ggufc"]["gb_s"]}
    wanted |= {"load_ms": 250, "peak_rss_mb": 10.000003, "bandwidth_gb_s": 4, "bandwidth_fraction": first["fraction"]}
    wanted |= {"threads": 2, "prompt_tokens": 8, "depth": 0, "tokens": 2, "rounds": 3}
    assert {name: report[name] for name in wanted} == pytest.approx(wanted)
    assert report["ratio"] == pytest.approx({"prefill": 2, "decode": 1.25})
    assert report["llama.cpp"]["decode_tok_s"] == pytest.approx(80)
    assert (report["kv"], report["llama.cpp"]["kv"]) == ("f32", "f16")
    assert report["notes"] == []


def test_more_than_the_memory_can_is_not_left_without_a_word(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install(monkeypatch)
    monkeypatch.setattr(fakes, "BANDWIDTH", 1e6)
    (note,) = bench(decoder, prompts=[4], tokens=[2], threads=[1], backend="native", rounds=3)["notes"]
    assert "can't be" in note and "%" in note


@pytest.mark.parametrize(
    ("name", "value", "rounds", "said"),
    [
        ("ROUNDS", (9, 1, 1.5, 0.9), 3, "rounds of ggufc lie up to 50% from their median"),
        ("WAITED", 0.01, 1, "ggufc waited 42% of its time for a core"),
    ],
)
def test_a_busy_machine_is_told_of(
    name: str, value: Any, rounds: int, said: str, decoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens take 0.02 s and four of a prompt 0.004."""
    fakes.install(monkeypatch)
    monkeypatch.setattr(fakes, name, value)
    (note,) = bench(decoder, prompts=[4], tokens=[2], threads=[1], backend="native", rounds=rounds)["notes"]
    assert note.startswith(f"1 thread: {said}")


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system doesn't tell")
def test_threads_that_wait_for_a_core_are_noticed() -> None:
    done, raw = threading.Event(), bytes(1 << 20)

    def work() -> None:
        while not done.is_set():
            zlib.crc32(raw)

    threads = [threading.Thread(target=work) for _ in range(4 * usable_cores())]
    before = _waited()
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    waited = _waited() - before
    done.set()
    for thread in threads:
        thread.join()
    assert waited > 0.2


def test_without_depths_tokens_are_decoded_after_each_prompt(decoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.install(monkeypatch)
    report = bench(decoder, prompts=[4, 8], tokens=[2], threads=[1], backend="native", rounds=1)
    assert [row["depth"] for row in report["decode"]] == [4, 8]
    assert "ratio" not in report and "llama.cpp" not in report


def test_a_sequence_that_the_context_does_not_hold_is_refused(decoder: Path) -> None:
    with pytest.raises(InputError, match=r"a sequence of 1025 tokens exceeds the model's context of 1024"):
        bench(decoder, prompts=[16], depths=[1000], tokens=[25], backend="native")
    with pytest.raises(InputError, match="a sequence of 2147483647 tokens"):  # before any are made
        bench(decoder, prompts=[2**31 - 1], depths=[0], tokens=[25], backend="native")


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "bert"])
def test_real_engines_in_turn(architecture: str, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp's package is not installed")
    sizes = Sizes(layers=1, heads=2, kv_heads=2)
    model = tiny_model(tmp_path / "model.gguf", architecture, sizes)
    report = bench(model, prompts=[16], tokens=[3], threads=[1], backend="native", llama_cpp=True, rounds=1)
    word = "encode" if architecture == "bert" else "prefill"
    for engine in (report, report["llama.cpp"]):
        assert engine[f"{word}_tok_s"] > 0 and engine["load_ms"] > 0 and engine["peak_rss_mb"] > 1
    assert report["ratio"][word] == pytest.approx(report[f"{word}_tok_s"] / report["llama.cpp"][f"{word}_tok_s"])
    assert ("decode" in report) == (architecture != "bert")
