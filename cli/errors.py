"""Exit codes, and one line for every error."""

import os
import signal
from collections.abc import Iterator

import click

from ..backends.host.extras import remedy
from ..frontend.errors import GgufcError, UnsupportedError
from .interrupts import SIGNALLED, SIGNALS, interrupts

FAULT, NO_MEMORY, NO_READER = 70, 71, 141
MEMORY_PHRASES = (
    "failed to map segment",
    "annot allocate memory",
    "can't start new thread",
    "bad_alloc",
    "RESOURCE_EXHAUSTED",
)
"""What the loader, the system and native libraries say when memory is short, in errors of many types."""


def explain(error: Exception) -> tuple[str, int]:
    """One line for an error, and the exit code."""
    match error:
        case _ if interrupts.pending or isinstance(error, click.Abort):  # libraries make errors of their own of it
            number = interrupts.pending or signal.SIGINT
            return SIGNALS[signal.Signals(number)], SIGNALLED + number
        case GgufcError():
            return str(error), error.exit_code
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "ggufc"
            return f"{error.format_message()} (see {command} --help)", 2
        case click.ClickException():
            return error.format_message(), error.exit_code
        case _ if any(isinstance(e, MemoryError) or any(p in str(e) for p in MEMORY_PHRASES) for e in _chain(error)):
            return "out of memory", NO_MEMORY
        case ModuleNotFoundError() if said := remedy(error):
            return said, UnsupportedError.exit_code
        case OSError(filename=None):
            return f"{error.strerror or error}", 2
        case OSError():
            return f"{os.fsdecode(error.filename)}: {error.strerror}", 2
    return f"a fault of ggufc, {type(error).__name__}: {error}; please report what --debug shows", FAULT


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it arose from."""
    while error:
        yield error
        error = error.__cause__ or error.__context__
