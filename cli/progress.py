"""Stages of long work, on standard error while it is a terminal."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import perf_counter

from .interrupts import interrupts
from .output import line_drawn

PATIENCE = 0.4
"""Seconds that a stage may take unseen."""
PERIOD = 0.1
WIDTH, BLOCK = 12, 4
"""Of the bar and of what moves in it, in characters."""
CLEAR = "\r\x1b[K"


class Progress:
    """Draws a moving bar while a stage lasts, and leaves its time; a short stage leaves nothing.

    A terminal that can't move its cursor (TERM=dumb) is told of each stage in a line, any other file of none. Colours
    are left out where NO_COLOR is set.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._moves = self._shown and os.environ.get("TERM", "dumb") != "dumb"
        self._colours = self._moves and not os.environ.get("NO_COLOR")
        self._stage: Callable[[], str] = str
        self._started = 0.0
        self._ended = Event()
        self._drawer: Thread | None = None

    def __call__(self, stage: str | Callable[[], str]) -> None:
        """Ends the stage that is open and begins another.

        Args:
            stage: its name; or what gives it anew each time that it is drawn, with how far it has come.

        Raises:
            KeyboardInterrupt: an interrupt was swallowed by a library in the meantime.
        """
        self.end()
        if interrupts.pending:
            raise KeyboardInterrupt
        self._stage = stage if callable(stage) else lambda: stage
        self._started = perf_counter()
        if self._moves:
            self._ended.clear()
            self._drawer = Thread(target=self._draw, daemon=True)
            self._drawer.start()
        elif self._shown:
            self._write(f"{self._stage()} ...\n")

    def end(self) -> None:
        """Closes the line of the stage that is open."""
        if self._drawer:
            self._ended.set()
            self._drawer.join()
            self._drawer = None
            if line_drawn.is_set():
                self._write(f"{CLEAR}{self._stage()} {self._dim(f'{self._seconds():.1f} s')}\n")
                line_drawn.clear()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _draw(self) -> None:
        """The stage's thread: once it has taken long enough, the line again and again until it ends."""
        wait, steps = PATIENCE, 0
        while not self._ended.wait(wait):
            line_drawn.set()
            at = abs(steps % (2 * (WIDTH - BLOCK)) - (WIDTH - BLOCK))
            bar = f"[{' ' * at}{'=' * BLOCK}{' ' * (WIDTH - BLOCK - at)}]"
            self._write(f"{CLEAR}{self._dim(bar)} {self._stage()} {self._seconds():.0f} s")
            wait, steps = PERIOD, steps + 1

    def _seconds(self) -> float:
        return perf_counter() - self._started

    def _dim(self, text: str) -> str:
        return f"\x1b[2m{text}\x1b[0m" if self._colours else text

    @staticmethod
    def _write(text: str) -> None:
        with suppress(OSError):  # a terminal that was closed
            sys.stderr.write(text)
            sys.stderr.flush()
