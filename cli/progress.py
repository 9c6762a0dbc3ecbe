"""Stages of long work, on standard error."""

import sys
from time import perf_counter

import click

from .interrupts import interrupts


class Progress:
    """Stages with the time that each took, on standard error while it is a terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._started = 0.0

    def __call__(self, stage: str) -> None:
        self.end()
        if interrupts.pending:
            raise KeyboardInterrupt
        self._started = perf_counter()
        if self._shown:
            click.echo(f"{stage} ... ", nl=False, err=True)

    def end(self) -> None:
        """Closes the line of the stage that is open."""
        if self._shown and self._started:
            click.echo(f"{perf_counter() - self._started:.1f} s", err=True)
        self._started = 0.0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
