"""Engines and a memory whose speeds are known, so that every figure of a report can be."""

import pytest
from ggufc.backends.reports.bench import speed
from ggufc.backends.reports.bench.engines import Run, Timing

FED, DECODED = {"ggufc": 1000, "llama.cpp": 500}, {"ggufc": 100, "llama.cpp": 80}
"""Tokens per second of feeding and decoding."""
BANDWIDTH = 2e9


ROUNDS = (9, 1, 1.1, 0.92)
"""How much longer than it should take each round does, the one that warms up most of all."""
WAITED = 0.0
"""Seconds that each round's threads stood waiting."""


class FakeProcess:
    """Stands for an `EngineProcess`."""

    def __init__(self, name: str, make: object) -> None:
        self.name, self.load_s = name, 0.25
        self._rounds: dict[int, int] = {}

    def run(self, run: Run) -> Timing:
        length = len(run.ids)
        n = self._rounds[length] = self._rounds.get(length, -1) + 1
        factor = ROUNDS[n % 4]
        decoded = {count: factor * count / DECODED[self.name] for count in run.counts}
        return Timing(factor * length / FED[self.name], decoded, 10_000_000 + n, WAITED)

    def close(self) -> None:
        pass


class FakeBandwidth:
    """Stands for `ReadBandwidth`."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def measure(self) -> float:
        return self._threads * BANDWIDTH

    def close(self) -> None:
        pass


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts them in the place of the real ones."""
    monkeypatch.setattr(speed, "EngineProcess", FakeProcess)
    monkeypatch.setattr(speed, "ReadBandwidth", FakeBandwidth)
