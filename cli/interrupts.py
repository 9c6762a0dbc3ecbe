"""Signals that end a command in order."""

import signal
import sys
from _thread import interrupt_main
from threading import Timer
from types import FrameType
from typing import Any

SIGNALS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "the terminal was closed"}
"""What ends a command in order, with exit code SIGNALLED + its number."""
SIGNALLED = 128


class Interrupts:
    """Ctrl-C, and the like of it (SIGNALS), that isn't lost and leaves nothing temporary. Libraries swallow it in their
    callbacks: it is repeated where Python tells of that, and between stages `pending`, the signal's number, is looked
    at for where it doesn't. While native modules are imported it would crash them: it is put off until they are
    there."""

    def __init__(self) -> None:
        self.pending = 0
        self._repeats: list[Timer] = []

    def __enter__(self) -> None:
        self.pending = 0
        self._hook, sys.unraisablehook = sys.unraisablehook, self._repeat
        # one that is ignored stays so, as `nohup` and a shell's background want it
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._note) for number in heard}

    def __exit__(self, *_: object) -> None:
        for timer in self._repeats:
            timer.cancel()  # the interrupt got through already: a second one would hit the interpreter's end
        self._repeats.clear()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pending and number != signal.SIGINT:
            return  # a closed terminal tells of it more than once: the cleaning up goes on
        self.pending = self.pending or number
        if _importing(frame):
            self._later()
        else:
            signal.default_int_handler(number, frame)

    def _repeat(self, unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._later()
        else:
            self._hook(unraisable)

    def _later(self) -> None:
        self._repeats.append(Timer(0.05, interrupt_main))
        self._repeats[-1].start()


def _importing(frame: FrameType | None) -> bool:
    """Whether a frame is part of an import."""
    while frame and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


interrupts = Interrupts()
