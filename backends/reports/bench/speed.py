"""Speed, measured fairly: the same token ids, the same threads, each engine in a process of its own, taken in turn.

A round runs a fresh sequence of each length on every engine in turn, with the memory's speed measured between them.
A round that does not count goes before, and medians are reported, so that a machine whose speed drifts is unjust to
none. Numbers of threads are measured one after the other, each with processes of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from ....frontend.errors import InputError
from ....graph.model import Model
from ...bundles.cache import cached_bundle
from ...bundles.source import check_own_kv, located, lowered
from ...caches import chosen_kv
from ...host.cores import usable_cores
from ...progress import Progress, silent
from ...sessions.load import load
from ..bandwidth import NOISE, ReadBandwidth, noise, scatter
from ..costs import decode_bytes
from ..engine import Engine
from ..llama_cpp import KV, LlamaCpp
from .engines import EngineProcess, Run, Timing

OURS, THEIRS = "ggufc", "llama.cpp"


def bench(
    model: Path,
    *,
    prompts: Sequence[int] = (512,),
    tokens: Sequence[int] = (128,),
    depths: Sequence[int] = (),
    threads: Sequence[int] = (),
    backend: str = "iree",
    kv: str | None = None,
    llama_cpp: bool = False,
    rounds: int = 5,
    weights: Path | None = None,
    archdefs: Sequence[Path] = (),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measures a backend, and llama.cpp beside it where asked.

    Args:
        model: a bundle or a `.gguf`.
        prompts: lengths of the prompts, whose ids are drawn by a fixed seed.
        tokens: numbers of tokens to decode, greedily, past any stop token.
        depths: numbers of tokens that stand before the first that is decoded; none given: each of `prompts`.
        threads: numbers of workers of each engine; none given: one for each core.
        backend, kv: as `load`'s.
        llama_cpp: measure llama.cpp on the same file too.
        rounds: that count.
        weights: the GGUF of a bundle whose link to it is broken.
        archdefs: directories of definitions.
        progress: told of each stage.

    Returns:
        Of a decoder: `prefill_tok_s`, `decode_tok_s`, `decode_gb_s`, `decode_bytes` (what one token reads: the weights
        once, of a mixture the chosen experts', and the caches as far as they are read in the middle of the run),
        `load_ms` (as `load` of what was given: a `.gguf` is looked up in the cache), `peak_rss_mb`, `kv`,
        `bandwidth_gb_s` and `bandwidth_fraction` (decode's share of it); with llama.cpp the same of it under
        `llama.cpp`, and `ratio`. These are of the first prompt, depth and numbers given, which are there too, as
        `prompt_tokens`, `depth`, `tokens` and `threads`. All of them are in the lists `prefill` and `decode`, one row
        for each setting, `loads` and `bandwidth`, one for each number of threads. Of an encoder `encode_tok_s` and
        `encode` stand in the place of the others. `notes` are what to know before one believes it.

    Raises:
        InputError: the tokens exceed the model's context, or as `load`.
        UnsupportedError: as `load`, or `xllamacpp` is not installed.
    """
    progress("reading the header")
    bundle, file = located(model, weights)
    opened = lowered(bundle, file, archdefs)
    check_own_kv(bundle, kv)
    plan = _Plan.of(opened, prompts, tokens, depths or prompts)
    if backend == "iree" and not bundle:
        cached_bundle(file, kv=kv, archdefs=archdefs, progress=progress)  # compiled before anything is measured
    cached_as: str = bundle.manifest["kv"] if bundle else chosen_kv(opened.graph, kv)
    rivals = {OURS: cached_as} | ({THEIRS: KV} if llama_cpp else {})
    measured = []
    for workers in threads or (usable_cores(),):
        makers: dict[str, Callable[[], Engine]] = {
            OURS: partial(
                load,
                bundle.path if bundle else file,
                backend,
                threads=workers,
                kv=cached_as,
                weights=file if bundle else None,
                archdefs=tuple(archdefs),
            ),
            THEIRS: partial(LlamaCpp, file, workers, plan.longest, embeds=plan.encode is not None),
        }
        measured.append(_measure(plan, {name: makers[name] for name in rivals}, workers, rounds, progress))
    return _report(opened, plan, measured, rivals) | {"model": opened.name, "backend": backend, "rounds": rounds}


def counted(count: int, what: str) -> str:
    """A number of things, such as `2 threads`."""
    return f"{count} {what}{'s' * (count != 1)}"


@dataclass(frozen=True)
class _Plan:
    """What a round runs.

    Attributes:
        prompts, tokens, depths: as given, each once.
        runs: the sequences by the number of tokens that they begin with.
        encode: what an encoder does with the sequences, as in `Run`.
        longest: the most positions of a sequence.
    """

    prompts: tuple[int, ...]
    tokens: tuple[int, ...]
    depths: tuple[int, ...]
    runs: dict[int, Run]
    encode: Literal["embed", "classify"] | None
    longest: int

    @staticmethod
    def of(model: Model, prompts: Sequence[int], tokens: Sequence[int], depths: Sequence[int]) -> "_Plan":
        prompts, tokens, depths = (tuple(dict.fromkeys(given)) for given in (prompts, tokens, depths))
        encode: Literal["embed", "classify"] | None = None
        if model.definition.kind == "encoder":
            encode, tokens, depths = "classify" if model.labels else "embed", (), ()
        longest = max((*prompts, *(depth + max(tokens, default=0) for depth in depths)))
        if longest > model.context_length:
            raise InputError(
                f"{model.file.path}: a sequence of {longest} tokens exceeds the model's context of "
                f"{model.context_length}; give smaller numbers by -p, -n or --depth"
            )
        ids = np.random.default_rng(0).integers(0, model.vocabulary, max((*prompts, *depths))).tolist()
        runs = {n: Run(ids[:n], tokens if n in depths else (), encode) for n in sorted({*prompts, *depths})}
        return _Plan(prompts, tokens, depths, runs, encode, longest)


@dataclass
class _Measured:
    """What was found with so many threads: bytes per second of memory, seconds of loading, and the rounds of each
    engine by length."""

    threads: int
    reads: list[float] = field(default_factory=list)
    load_s: dict[str, float] = field(default_factory=dict)
    rounds: dict[tuple[str, int], list[Timing]] = field(default_factory=dict)

    def fed_tok_s(self, engine: str, length: int) -> float:
        """Tokens per second of feeding a sequence."""
        return length / median(t.fed_s for t in self.rounds[engine, length])

    def decoded_tok_s(self, engine: str, depth: int, count: int) -> float:
        """Tokens per second of decoding so many from a depth."""
        return count / median(t.decoded_s[count] for t in self.rounds[engine, depth])

    def loading(self, engine: str) -> dict[str, float]:
        """What it takes to be ready, and to have run."""
        peak = max(t.peak_rss for (name, _), rounds in self.rounds.items() if name == engine for t in rounds)
        return {"load_ms": self.load_s[engine] * 1e3, "peak_rss_mb": peak / 1e6}

    def waited(self, engine: str) -> float:
        """The share of its time that an engine's threads stood waiting for a core."""
        rounds = [t for (name, _), given in self.rounds.items() if name == engine for t in given]
        return sum(t.waited_s for t in rounds) / (self.threads * sum(t.total_s for t in rounds))

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return median(self.reads)


def _measure(
    plan: _Plan,
    makers: dict[str, Callable[[], Engine]],
    threads: int,
    rounds: int,
    progress: Progress,
) -> _Measured:
    found = _Measured(threads)
    with ExitStack() as stack:
        bandwidth = ReadBandwidth(threads)
        stack.callback(bandwidth.close)
        processes: list[EngineProcess] = []
        for name, make in makers.items():
            progress(f"loading and warming up {name}, {counted(threads, 'thread')}")
            processes.append(EngineProcess(name, make))
            stack.callback(processes[-1].close)
            found.load_s[name] = processes[-1].load_s
            for run in plan.runs.values():
                processes[-1].run(run)
        for n in range(rounds):
            progress(f"round {n + 1} of {rounds}, {counted(threads, 'thread')}")
            for length, run in plan.runs.items():
                found.reads.append(bandwidth.measure())
                for process in processes:
                    found.rounds.setdefault((process.name, length), []).append(process.run(run))
    return found


def _report(model: Model, plan: _Plan, measured: Sequence[_Measured], kinds: dict[str, str]) -> dict[str, Any]:
    """What `bench` returns; `kinds` are the types of the engines' caches."""
    word = "encode" if plan.encode else "prefill"
    fed: list[dict[str, Any]] = [
        {"threads": m.threads, "tokens": length}
        | _beside({name: {"tok_s": m.fed_tok_s(name, length)} for name in kinds})
        for m in measured
        for length in plan.prompts
    ]
    decoded = [
        _decoded(model, m, kinds, depth, count) for m in measured for depth in plan.depths for count in plan.tokens
    ]
    loads: list[dict[str, Any]] = [{"threads": m.threads} | {name: m.loading(name) for name in kinds} for m in measured]
    report: dict[str, Any] = {}
    for name, kv in kinds.items():
        figures = {f"{word}_tok_s": fed[0][name]["tok_s"]}
        if decoded:
            figures |= {f"decode_{key}": value for key, value in decoded[0][name].items()}
        figures |= loads[0][name] | ({} if plan.encode else {"kv": kv})
        report |= figures if name == OURS else {name: figures}
    report["bandwidth_gb_s"] = measured[0].bandwidth / 1e9
    if decoded:
        report["bandwidth_fraction"] = decoded[0]["fraction"]
    if THEIRS in kinds:
        report["ratio"] = {word: fed[0]["ratio"]} | ({"decode": decoded[0]["ratio"]} if decoded else {})
    report |= {"threads": measured[0].threads, "prompt_tokens": plan.prompts[0]}
    if decoded:
        report |= {"depth": plan.depths[0], "tokens": plan.tokens[0], "decode": decoded}
    report |= {word: fed, "loads": loads}
    report["bandwidth"] = [
        {"threads": m.threads, "gb_s": m.bandwidth / 1e9, "lowest": min(m.reads) / 1e9, "highest": max(m.reads) / 1e9}
        for m in measured
    ]
    return report | {"notes": _notes(measured, decoded)}


def _decoded(model: Model, found: _Measured, kinds: dict[str, str], depth: int, count: int) -> dict[str, Any]:
    """One row: decoding so many tokens from a depth; of ours the share of the bandwidth, and the speed at all of it."""
    engines = {}
    for name, kv in kinds.items():
        tok_s, read = found.decoded_tok_s(name, depth, count), decode_bytes(model, kv, depth + count // 2)
        engines[name] = {"tok_s": tok_s, "gb_s": tok_s * read / 1e9, "bytes": read}
    limit = found.bandwidth / engines[OURS]["bytes"]
    row = {"threads": found.threads, "depth": depth, "tokens": count} | _beside(engines)
    return row | {"limit_tok_s": limit, "fraction": engines[OURS]["tok_s"] / limit}


def _beside(engines: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What each engine did, and the ratio of the two."""
    return engines | ({"ratio": engines[OURS]["tok_s"] / engines[THEIRS]["tok_s"]} if THEIRS in engines else {})


def _notes(measured: Sequence[_Measured], decoded: Sequence[dict[str, Any]]) -> list[str]:
    notes = [f"{counted(m.threads, 'thread')}: {said}" for m in measured for said in _doubts(m)]
    above = max((row["fraction"] for row in decoded), default=0)
    if above > 1:
        notes.append(
            f"decode reads up to {above:.0%} of the memory's measured speed, which can't be: either the machine was "
            "busy while that was measured, or the weights fit into the processor's caches"
        )
    return notes


def _doubts(found: _Measured) -> Iterator[str]:
    """Signs that the machine was busy: reads of memory, rounds that lie apart, engines that waited for a core."""
    if said := noise(found.reads):
        yield said
    engines = dict.fromkeys(name for name, _ in found.rounds)
    for engine in engines:
        seconds = [[t.total_s for t in rounds] for (name, _), rounds in found.rounds.items() if name == engine]
        if (apart := max(map(scatter, seconds))) > NOISE:
            yield f"rounds of {engine} lie up to {apart:.0%} from their median: the machine was busy, or slowed down"
    for engine in engines:
        if (waited := found.waited(engine)) > NOISE:
            yield f"{engine} waited {waited:.0%} of its time for a core: other programs were running"
