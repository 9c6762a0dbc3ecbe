"""The executors held against each other, and against llama.cpp: they run one graph, so they must agree.

Every executor is fed the same ids: a prompt in one piece, then token by token what the reference likes best, so both
entry points are judged; and where a model gives embeddings, whole texts. The reference is the native backend in exact
mode: float32 arithmetic on dequantized weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...frontend.errors import GgufcError, UnsupportedError
from ...frontend.models import find_model
from ...frontend.tokenizer import Tokenizer
from ...graph.model import Model
from ..bundles.bundle import read_bundle
from ..bundles.check import Check, check_bundle
from ..bundles.source import activations_of, check_own_kv, located, lowered
from ..host.cores import usable_cores
from ..host.machine import free_memory
from ..progress import Progress, silent
from ..sessions.load import load
from .agreement import (
    FAST,
    FASTER,
    JUDGE,
    RANDOM,
    SAME,
    TEXT,
    WITH_CACHES,
    Bound,
    EmbeddingRow,
    Row,
    compare,
    compare_embeddings,
)
from .costs import caches_of
from .engine import Engine
from .layers import EXECUTORS, Layers
from .llama_cpp import KV, LlamaCpp

TEXTS = (
    "The capital of France is Paris. It lies on the river Seine, and its oldest bridge, despite its name, is",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return",
    "春はあけぼの。やうやう白くなりゆく山ぎは、少しあかりて、紫だちたる雲の細くたなびきたる。",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987, 1597, 2584, 4181,",
)
PROMPT_TOKENS = 24
"""Ids of each prompt: all are equally long, so that XLA compiles prefill once."""
STEPS = 11
"""Tokens decoded after each."""
REFERENCE = "native exact"
REFERENCE_KV = "f32"
"""Of its caches, and of those of what must agree with it exactly, where no bundle says otherwise."""
LLAMA_CPP = "llama.cpp"
LONG_FACTORS = "rope_factors_long.weight"


@dataclass(frozen=True)
class Verdict:
    """The rows, what couldn't be run, for each such executor why, and how a bundle stands to its manifest.

    Nothing is run of a bundle that isn't what its manifest says.
    """

    rows: tuple[Row | EmbeddingRow, ...]
    not_available: Mapping[str, str]
    checks: tuple[Check, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything held that was looked at."""
        return all(check.ok for check in self.checks) and all(row.ok for row in self.rows)


def verify(
    model: Path,
    *,
    threads: int | None = None,
    kv: str | None = None,
    llama_cpp: bool = False,
    layers: bool = False,
    weights: Path | None = None,
    archdefs: Sequence[Path] = (),
    progress: Progress = silent,
) -> Verdict:
    """Holds a bundle against its manifest, then runs every executor over it or a `.gguf` and compares what they give:
    the logits of a decoder, and the embeddings, or a classifier's scores, of what has some.

    Args:
        model: a bundle or a `.gguf`.
        threads: workers; None is one for each core.
        kv: as `load`'s; all executors but llama.cpp have caches of this type then.
        llama_cpp: llama.cpp as one more; where it can't be run, the verdict says so.
        layers: look for the first layer behind which two of ggufc's executors differ.
        weights: the GGUF of a bundle whose link to it is broken.
        archdefs: directories of definitions.
        progress: told of each stage.

    Raises:
        InputError, UnsupportedError: as `load`.
    """
    checks: tuple[Check, ...] = ()
    if (path := find_model(model)).is_dir():
        progress("reading the bundle")
        given = read_bundle(path)
        if not (weights or path / given.weight_files[0]).exists():
            given.weights(weights)  # raises: weights that aren't there are a matter of where to look
        checks = check_bundle(given, weights)
        if not all(check.ok for check in checks):
            return Verdict((), {}, checks)
    progress("reading the header")
    bundle, file = located(model, weights)
    check_own_kv(bundle, kv)
    opened = lowered(bundle, file, archdefs)
    workers = usable_cores() if threads is None else threads
    prompts, fed = _prompts(opened)
    kv = bundle.manifest["kv"] if bundle else kv
    activations = activations_of(bundle)
    fast = FAST if activations == 16 else FASTER

    def session(backend: str, kv: str | None, exact: bool = False) -> Callable[[], Engine]:
        return lambda: load(
            model,
            backend,
            threads=workers,
            kv=kv,
            exact=exact,
            weights=file if bundle else None,
            archdefs=archdefs,
            progress=progress,
        )

    makers: dict[str, Callable[[], Engine]] = {
        REFERENCE: session("native", kv, exact=True),
        "native": session("native", kv),
        "iree": session("iree", kv),
        "xla": session("xla", kv or REFERENCE_KV),
    }
    pairs = [
        ("native", REFERENCE, fast),
        ("iree", REFERENCE, fast),
        ("iree", "native", SAME),
        ("xla", REFERENCE, WITH_CACHES[kv or REFERENCE_KV]),
    ]
    if llama_cpp:
        makers[LLAMA_CPP] = lambda: _llama_cpp(opened, workers, PROMPT_TOKENS + STEPS)
        pairs.append((LLAMA_CPP, REFERENCE, JUDGE))
    found: dict[str, _Given] = {}
    not_available: dict[str, str] = {}
    continuations: list[list[int]] = []
    for name, make in makers.items():
        progress(f"running {name}")
        try:
            found[name] = _everything(make(), opened, prompts, continuations)
        except GgufcError as error:
            if name != LLAMA_CPP:
                raise
            not_available[name] = str(error)
    streams = Layers(opened, prompts, workers, progress, activations) if layers else None
    rows: list[Row | EmbeddingRow] = []
    for executor, against, bound in pairs:
        if executor in found:
            of_pair = _compared(executor, against, found[executor], found[against], bound, prompts, fed)
            rows += [_with_layers(row, streams, bound) for row in of_pair] if streams else of_pair
    return Verdict(tuple(rows), not_available, checks)


@dataclass(frozen=True)
class _Given:
    """What an executor gave for the prompts: logits (positions, vocabulary) and embeddings (rows, dim), where there are
    some."""

    logits: np.ndarray | None
    embeddings: np.ndarray | None


def _compared(
    executor: str, against: str, found: _Given, wanted: _Given, bound: Bound, prompts: list[list[int]], fed: str
) -> list[Row | EmbeddingRow]:
    """A row for each of the things that a model gives."""
    rows: list[Row | EmbeddingRow] = []
    if found.logits is not None and wanted.logits is not None:
        row = compare(executor, against, found.logits, wanted.logits, bound, fed, len(wanted.logits) // len(prompts))
        rows.append(replace(row, worst_position=len(prompts[0]) - 1 + row.worst_position))
    if found.embeddings is not None and wanted.embeddings is not None:
        rows.append(
            compare_embeddings(executor, against, found.embeddings, wanted.embeddings, bound, fed, len(prompts))
        )
    return rows


def _with_layers(row: Row | EmbeddingRow, streams: Layers, bound: Bound) -> Row | EmbeddingRow:
    """A row with what was found behind the layers; llama.cpp doesn't let us look."""
    if row.executor not in EXECUTORS:
        return row
    pair = row.executor, row.against
    first = streams.first_difference(*pair, bound.apart)
    return replace(row, first_layer=first, layer_difference=streams.difference(*pair, streams.count))


def _llama_cpp(model: Model, threads: int, positions: int) -> LlamaCpp:
    """llama.cpp over the model.

    Raises:
        UnsupportedError: its caches would not find room; or as `LlamaCpp`.
    """
    context = context_as_chosen(model, positions)
    need, free = sum(c.nbytes(c.rows or context) for c in caches_of(model, KV)), free_memory()
    if free is not None and need > free:
        raise UnsupportedError(
            f"its caches of {context} tokens need {need / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free"
        )
    return LlamaCpp(model.file.path, threads, context, embeds=model.embedding is not None)


def context_as_chosen(model: Model, positions: int) -> int:
    """The shortest context of so many positions in which llama.cpp chooses the same factors of rope as the definition.

    Of a file's two tables llama.cpp takes the long one where the context that it is opened with is above the trained
    one, and definitions where the file's is. The file's own context would do, but llama.cpp fills all its caches at
    the start: one position beyond the trained context is enough.
    """
    if LONG_FACTORS not in model.graph.weights():
        return positions
    trained = model.file.metadata_value(f"{model.definition.name}.rope.scaling.original_context_length", int)
    return max(positions, trained + 1)


def _prompts(model: Model) -> tuple[list[list[int]], str]:
    """Ids of each text, all equally long, and what they are: drawn by a fixed seed without a tokenizer known here."""
    length = max(1, min(PROMPT_TOKENS, model.context_length - STEPS))
    try:
        tokenizer = Tokenizer.of(model.file)
    except UnsupportedError:
        return np.random.default_rng(0).integers(0, model.vocabulary, (len(TEXTS), length)).tolist(), RANDOM
    encoded = [tokenizer.encode(text) for text in TEXTS]
    return [np.resize(np.asarray(ids), length).tolist() for ids in encoded], TEXT


def _everything(engine: Engine, model: Model, prompts: list[list[int]], continuations: list[list[int]]) -> _Given:
    """What an engine gives for the prompts, and for what follows them."""
    logits = embeddings = None
    if model.definition.kind == "decoder":
        steps = min(STEPS, model.context_length - len(prompts[0]))
        logits = _logits(engine, prompts, continuations, steps)
    if model.embedding:
        encode = engine.classify if model.labels else engine.embed
        embeddings = np.concatenate([np.atleast_2d(encode(prompt)) for prompt in prompts])
    return _Given(logits, embeddings)


def _logits(engine: Engine, prompts: list[list[int]], continuations: list[list[int]], steps: int) -> np.ndarray:
    """Logits (positions, vocabulary). The first engine chooses the continuations, the others are fed them."""
    rows = []
    chosen = len(continuations) < len(prompts)
    for n, prompt in enumerate(prompts):
        engine.reset()
        rows.append(np.array(engine.prefill(prompt)))
        if chosen:
            continuations.append([])
        for step in range(steps):
            if chosen:
                continuations[n].append(int(rows[-1].argmax()))
            rows.append(np.array(engine.decode(continuations[n][step])))
    return np.stack(rows)
