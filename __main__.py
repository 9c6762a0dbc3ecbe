"""`python -m ggufc` is the command `ggufc`, which begins here: signals are heard before anything big is imported."""

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def main() -> None:
    """The command, from its first moment on: an early Ctrl-C is one line too."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from .cli import main as command
    from .cli.interrupts import interrupts

    try:
        command()
    except SystemExit as end:
        if not interrupts.pending:
            raise
        # XLA's threads may still compile or compute, and crash when the interpreter is taken down under them
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(int(end.code or 0))


def _leave(number: int, _: FrameType | None) -> None:
    """Ends at once, as there is nothing to clean up yet, and imports of native modules don't stand an exception."""
    with suppress(OSError):
        os.write(2, b"ggufc: error: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
