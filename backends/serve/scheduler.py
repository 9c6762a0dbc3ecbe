"""One thread that runs the model for many requests, a step of each in turn.

A job is a generator over a session of its own: each `next` is one step, some tokens of a prompt or one of an answer.
So nothing is waited for longer than a step, and what nobody wants any more ends between two of them.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from ..sessions.session import Session

Steps = Generator[Any, None, None]

_log = logging.getLogger("ggufc")


class StoppedError(Exception):
    """The server stops before the job is done."""


@dataclass(eq=False)
class Job:
    """Work for the model.

    Attributes:
        work: begins it on a session; what the generator yields is told on.
        tell: called in the scheduler's thread with what was yielded; at the end with None, or with the exception.
        unwanted: set, by whoever wants it no more; it ends before its next step.
    """

    work: Callable[[Session], Steps]
    tell: Callable[[Any], None]
    unwanted: threading.Event = field(default_factory=threading.Event)


class Scheduler:
    """Runs jobs, at most `parallel` of them begun and not ended; the others wait in their order."""

    def __init__(self, session: Session, parallel: int) -> None:
        self._session, self._parallel = session, parallel
        self._waiting: deque[Job] = deque()
        self._running: list[tuple[Job, Steps]] = []
        self._changed = threading.Condition()
        self._closed = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="ggufc scheduler", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """The number of jobs that were begun."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of jobs that were not."""
        return len(self._waiting)

    @property
    def stopping(self) -> bool:
        """Whether nothing new is begun any more."""
        return self._deadline is not None

    def submit(self, job: Job) -> None:
        """Puts a job at the end of the queue."""
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def drain(self, seconds: float) -> None:
        """Ends what waits, and after so many seconds what runs, with `StoppedError`; a signal's handler may call it."""
        self._deadline = time.monotonic() + seconds

    def close(self) -> None:
        """Ends everything and the thread, after the step that is running now."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._begin():
            for job, steps in list(self._running):
                self._step(job, steps)
        for job in (*(job for job, _ in self._running), *self._waiting):
            job.tell(StoppedError())

    def _begin(self) -> bool:
        """Waits for work and begins what may begin; False where the thread ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closed)
            while self._waiting and (self.stopping or len(self._running) < self._parallel):
                job = self._waiting.popleft()
                if self.stopping or job.unwanted.is_set():
                    job.tell(None if job.unwanted.is_set() else StoppedError())
                else:
                    self._running.append((job, job.work(self._session.new())))
            return not self._closed

    def _step(self, job: Job, steps: Steps) -> None:
        """The next step of a job; its end, whatever it is, touches no other job."""
        try:
            if job.unwanted.is_set():
                raise StopIteration
            if self._deadline is not None and time.monotonic() > self._deadline:
                raise StoppedError
            found = next(steps)
        except StopIteration:
            found = None
        except Exception as error:
            found = error
        if found is None or isinstance(found, Exception):
            self._running.remove((job, steps))
            steps.close()  # its session's caches go now
        try:
            job.tell(found)
        except Exception:
            _log.exception("nobody heard what a request's next step gave")
            job.unwanted.set()
