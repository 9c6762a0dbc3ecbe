"""Speed, measured fairly: the same token ids, the same threads, each engine in a process of its own, taken in turn.

One round is a fresh sequence: prefill of the prompt, then greedy decoding token by token. Each engine runs one round
that does not count, then the rounds alternate and medians are reported, so that a machine whose speed drifts is
unjust to none. A process of its own gives each engine its own threads and its own peak of memory.
"""

import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ..frontend.errors import GgufcError, InputError, UnsupportedError
from .bandwidth import ReadBandwidth
from .engine import Engine
from .executor import chosen_kv
from .inspect import decode_bytes
from .llama_cpp import KV, LlamaCpp
from .load import cached_bundle, load, located, lowered, usable_cores


@dataclass(frozen=True)
class Round:
    """Seconds that one round's prefill and decoding took, and the process's peak resident memory in bytes."""

    prefill_s: float
    decode_s: float
    peak_rss: int


@dataclass(frozen=True)
class Speed:
    """What one engine did: tokens per second, bytes per second read while decoding, load time and memory.

    `decode_bytes` are what one token reads: the weights once, of a mixture the chosen experts', and the caches as far
    as they are read at the middle of the run.
    """

    prefill_tok_s: float
    decode_tok_s: float
    decode_gb_s: float
    decode_bytes: int
    load_ms: float
    peak_rss_mb: float
    kv: str


class _Process:
    """An engine in a process of its own; an error there is raised here."""

    def __init__(self, name: str, kv: str, make: Callable[[], Engine], prompt: Sequence[int], tokens: int) -> None:
        self.name, self.kv = name, kv
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, prompt, tokens), daemon=True)
        self._process.start()
        theirs.close()
        self.load_s: float = self._receive()

    def round(self) -> Round:
        """Runs one round."""
        self._connection.send("round")
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


def _serve(connection: Connection, make: Callable[[], Engine], prompt: Sequence[int], tokens: int) -> None:
    """The other process: loads, tells how long that took, then runs a round whenever it is asked."""
    try:
        start = perf_counter()
        engine = make()
        connection.send(perf_counter() - start)
        while connection.recv():
            connection.send(_round(engine, prompt, tokens))
    except (EOFError, KeyboardInterrupt):
        pass
    except Exception as error:
        connection.send(error)


def _round(engine: Engine, prompt: Sequence[int], tokens: int) -> Round:
    engine.reset()
    start = perf_counter()
    logits = engine.prefill(prompt)
    middle = perf_counter()
    for _ in range(tokens):
        logits = engine.decode(int(logits.argmax()))
    return Round(middle - start, perf_counter() - middle, _peak_rss())


def _peak_rss() -> int:
    """Bytes. Linux's VmHWM is this program's alone, while getrusage counts what the parent had before the exec too."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10


def bench(
    model: Path,
    *,
    prompt_tokens: int = 512,
    tokens: int = 128,
    threads: int | None = None,
    backend: str = "iree",
    llama_cpp: bool = False,
    rounds: int = 5,
    weights: Path | None = None,
    archdefs: Sequence[Path] = (),
    progress: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """Measures a backend, and llama.cpp beside it where asked.

    Args:
        model: a bundle or a `.gguf`.
        prompt_tokens: ids of the prompt, drawn by a fixed seed.
        tokens: decoded after it, greedily, past any stop token.
        threads: workers of each engine; None is one for each core.
        backend: one of `load`'s.
        llama_cpp: measure llama.cpp on the same file too.
        rounds: that count.
        weights: the GGUF of a bundle whose link to it is broken.
        archdefs: directories of definitions.
        progress: told of each stage.

    Returns:
        The fields of `Speed`, `bandwidth_gb_s` and `bandwidth_fraction` (decode's share of it), the settings; with
        llama.cpp its `Speed` under `llama.cpp`, and `ratio`.

    Raises:
        InputError: the tokens exceed the model's context, or as `load`.
        UnsupportedError: as `load`, or `xllamacpp` is not installed.
    """
    workers = usable_cores() if threads is None else threads
    progress("reading the header")
    bundle, file = located(model, weights)
    opened = lowered(bundle, file, archdefs)
    if opened.definition.kind != "decoder":
        raise UnsupportedError(f"{file}: {opened.definition.name} is an encoder, which bench can't measure yet")
    if prompt_tokens + tokens > opened.context_length:
        raise InputError(f"{prompt_tokens} + {tokens} tokens exceed the model's context of {opened.context_length}")
    prompt = np.random.default_rng(0).integers(0, opened.vocabulary, prompt_tokens).tolist()
    if backend == "iree" and not bundle:
        bundle = cached_bundle(file, archdefs=archdefs, progress=progress)
    kv = bundle.manifest["kv"] if bundle else chosen_kv(opened.graph)
    make_session = partial(
        load,
        bundle.path if bundle else file,
        backend,
        threads=workers,
        weights=file if bundle else None,
        archdefs=() if backend == "iree" else tuple(archdefs),  # a compiled module has its definition in it
    )
    makers: dict[str, tuple[str, Callable[[], Engine]]] = {"ggufc": (kv, make_session)}
    if llama_cpp:
        makers["llama.cpp"] = (KV, partial(LlamaCpp, file, workers, prompt_tokens + tokens))
    with ExitStack() as stack:
        bandwidth = ReadBandwidth(workers)
        stack.callback(bandwidth.close)
        processes: list[_Process] = []
        for name, (kv_type, make) in makers.items():
            progress(f"loading and warming up {name}")
            processes.append(_Process(name, kv_type, make, prompt, tokens))
            stack.callback(processes[-1].close)
            processes[-1].round()
        measured: dict[str, list[Round]] = {name: [] for name in makers}
        reads = []
        for n in range(rounds):
            progress(f"round {n + 1} of {rounds}")
            reads.append(bandwidth.measure())
            for process in processes:
                measured[process.name].append(process.round())
    speeds = {
        p.name: _speed(
            p, measured[p.name], prompt_tokens, tokens, decode_bytes(opened, p.kv, prompt_tokens + tokens // 2)
        )
        for p in processes
    }
    own = speeds["ggufc"]
    report: dict[str, Any] = {
        **vars(own),
        "bandwidth_gb_s": median(reads) / 1e9,
        "bandwidth_fraction": own.decode_gb_s * 1e9 / median(reads),
        "backend": backend,
        "threads": workers,
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "rounds": rounds,
    }
    if llama_cpp:
        rival = speeds["llama.cpp"]
        report["llama.cpp"] = vars(rival)
        report["ratio"] = {
            "prefill": own.prefill_tok_s / rival.prefill_tok_s,
            "decode": own.decode_tok_s / rival.decode_tok_s,
        }
    return report


def _speed(process: _Process, rounds: Sequence[Round], prompt_tokens: int, tokens: int, read: int) -> Speed:
    decode_tok_s = median(tokens / r.decode_s for r in rounds)
    return Speed(
        prefill_tok_s=median(prompt_tokens / r.prefill_s for r in rounds),
        decode_tok_s=decode_tok_s,
        decode_gb_s=decode_tok_s * read / 1e9,
        decode_bytes=read,
        load_ms=process.load_s * 1e3,
        peak_rss_mb=max(r.peak_rss for r in rounds) / 1e6,
        kv=process.kv,
    )
