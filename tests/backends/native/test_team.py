"""A team's threads when the caller is interrupted."""

from threading import current_thread, main_thread
from typing import Any

import numpy as np
import pytest
from ggufc.backends.native.team import RECORD, Team, _Function


def test_an_interrupt_waits_until_the_run_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may be writing to what the caller would then free."""
    calls: list[tuple[Any, ...]] = []

    def loop(*arguments: int) -> None:
        if current_thread() is main_thread():
            calls.append(arguments)
            if len(calls) < 3:
                raise KeyboardInterrupt  # at a step of Python's before the loop

    team = Team(2)
    monkeypatch.setattr(team, "_function", _Function(loop, None))
    with pytest.raises(KeyboardInterrupt):
        team.run(np.zeros((1, RECORD), np.int64))
    assert len(calls) == 3
    assert len(set(calls)) == 1
