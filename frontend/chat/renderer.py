"""The process that renders templates: started, asked and ended."""

import atexit
import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer

from ..errors import InputError, UnsupportedError

MEMORY = 192 << 20
"""Bytes of address space of the process that renders."""
PATIENCE = 60.0
"""Seconds on the clock until a rendering is given up, on a machine that is busy with other things."""
MOST_REQUEST = 32 << 20


def rendered(request: bytes) -> str:
    """The text that a template makes; the request is that of `worker`.

    Raises:
        InputError: the request is too long, or the template fails, with what it says.
    """
    if len(request) > MOST_REQUEST:
        raise InputError(f"a conversation of {len(request)} bytes; at most {MOST_REQUEST} are rendered")
    answer = _renderer.ask(request)
    if "error" in answer:
        raise InputError(f"the chat template says: {' '.join(answer['error'].split())[:300]}")
    return answer["text"]


class _Renderer:
    """The process that renders, started when it is first needed and again after a template ended it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: bytes) -> dict[str, str]:
        """The answer to a request.

        Raises:
            InputError: the template ended the process.
        """
        with self._lock:
            process = self._started()
            assert process.stdin and process.stdout
            timer = Timer(PATIENCE, process.kill)
            timer.start()
            answer, status = b"", 0
            try:
                with suppress(BrokenPipeError):
                    process.stdin.write(request + b"\n")
                    process.stdin.flush()
                    answer = process.stdout.readline(8 * MOST_REQUEST)
            finally:
                timer.cancel()
                if not answer.endswith(b"\n"):  # the process died, or an exception left its answer unread
                    status = self._stop()
        if answer.endswith(b"\n"):
            return json.loads(answer)
        timed_out = status in (-signal.SIGKILL, -getattr(signal, "SIGPROF", signal.SIGKILL))
        why = "takes more than its time" if timed_out else f"ended its process (status {status})"
        raise InputError(f"the chat template {why}; it was stopped")

    def close(self) -> None:
        """Ends the process, if there is one."""
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            script = Path(__file__).with_name("worker.py")
            words = [sys.executable, "-I", "-S", str(script), json.dumps(sys.path), str(MEMORY)]
            try:
                self._process = subprocess.Popen(  # in a group of its own, where no terminal interrupts it
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                )
            except OSError as error:
                raise UnsupportedError(f"chat templates need a process of their own: {error}") from None
        return self._process

    def _stop(self) -> int:
        """Ends the process; its status where it had ended already."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        process.stdout.close()
        return status


_renderer = _Renderer()
