"""An engine in a process of its own, which runs and times a sequence whenever it is asked to.

A process of its own gives each engine its own threads and its own peak of memory.
"""

import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

from ....frontend.errors import GgufcError
from ..engine import Engine


@dataclass(frozen=True)
class Run:
    """A fresh sequence to be timed.

    Attributes:
        ids: fed at once; there may be none.
        counts: numbers of tokens decoded after them, greedily and past any stop token; the largest are decoded, and the
            time is taken at each.
        encode: `embed` or `classify` where the ids are turned into an embedding or scores instead.
    """

    ids: Sequence[int]
    counts: Sequence[int] = ()
    encode: Literal["embed", "classify"] | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds that a sequence took.

    Attributes:
        fed_s: for its ids.
        decoded_s: by number of tokens decoded.
        peak_rss: most memory that was resident in the process so far, in bytes.
        waited_s: of the process's threads together, while they could have run and had no core.
    """

    fed_s: float
    decoded_s: dict[int, float]
    peak_rss: int
    waited_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All that was timed."""
        return self.fed_s + max(self.decoded_s.values(), default=0.0)


class EngineProcess:
    """A process that has loaded an engine; an error there is raised here.

    Args:
        name: for messages.
        make: gives the engine; it is pickled.

    Attributes:
        load_s: seconds that `make` took.
    """

    def __init__(self, name: str, make: Callable[[], Engine]) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()
        self.load_s: float = self._receive()

    def run(self, run: Run) -> Timing:
        """Runs a sequence."""
        self._connection.send(run)
        return self._receive()

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join(5)
        self._process.kill()

    def _receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except EOFError:
            self._process.join()
            raise GgufcError(f"the process of {self.name} ended with status {self._process.exitcode}") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _serve(connection: Connection, make: Callable[[], Engine]) -> None:
    """The other process: loads, tells how long that took, then runs what it is sent."""
    try:
        start = perf_counter()
        engine = make()
        connection.send(perf_counter() - start)
        while True:
            connection.send(timed(engine, connection.recv()))
    except (EOFError, KeyboardInterrupt):
        pass
    except Exception as error:
        connection.send(error)


def timed(engine: Engine, run: Run) -> Timing:
    """Runs a sequence from its start."""
    waited = _waited()
    if run.encode is None:
        fed, decoded = _fed_and_decoded(engine, run)
    else:
        start = perf_counter()
        (engine.embed if run.encode == "embed" else engine.classify)(run.ids)
        fed, decoded = perf_counter() - start, {}
    return Timing(fed, decoded, _peak_rss(), max(0.0, _waited() - waited))


def _fed_and_decoded(engine: Engine, run: Run) -> tuple[float, dict[int, float]]:
    engine.reset()
    start = perf_counter()
    token = int(engine.prefill(run.ids).argmax()) if run.ids else 0
    fed = perf_counter()
    decoded = {}
    for n in range(1, max(run.counts, default=0) + 1):
        token = engine.decode_greedy(token)
        if n in run.counts:
            decoded[n] = perf_counter() - fed
    return fed - start, decoded


def _waited() -> float:
    """Seconds that this process's threads stood in the queue for a core so far; 0 where the system doesn't tell."""
    waited = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended, or the system keeps no such count
            waited += int(path.read_text().split()[1])
    return waited / 1e9


def _peak_rss() -> int:
    """Bytes. Linux's VmHWM is this program's alone, while getrusage counts what the parent had before the exec too."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10
