"""How long work tells what it is at."""

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with what is done next."""


def silent(stage: str) -> None:
    """Progress that nobody sees."""
