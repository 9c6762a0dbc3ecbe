"""The executors held against each other, and against llama.cpp: they run one graph, so they must agree.

Every executor is fed the same ids: a prompt in one piece, then token by token what the reference likes best, so both
entry points are judged. The reference is the native backend in exact mode: float32 arithmetic on dequantized weights.
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
from ..bundles.cache import cached_bundle
from ..bundles.check import Check, check_bundle
from ..bundles.source import located, lowered
from ..host.cores import usable_cores
from ..host.machine import free_memory
from ..progress import Progress, silent
from ..sessions.load import load
from ..sessions.sampling import log_softmax
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
TEXT, RANDOM = "text", "random ids"
LLAMA_CPP = "llama.cpp"
LONG_FACTORS = "rope_factors_long.weight"


@dataclass(frozen=True)
class Bound:
    """What a pair must keep, and why.

    Attributes:
        mean_kl: largest mean of KL(reference || other), in nats.
        margin: where the reference's two likeliest tokens are further apart than this, in nats, the likeliest must be
            the same.
        max_abs: largest difference of two logits.
        stream: largest difference of what two executors have behind a layer, as a part of its length; measured on
            models of many kinds it is 5e-6 where both are exact, and 1e-3 where activations are rounded.
        why: the reason for these figures.
    """

    mean_kl: float
    margin: float
    max_abs: float = np.inf
    stream: float = 2e-2
    why: str = ""


EXACT = Bound(1e-5, 0.02, 1e-3, 1e-4, "both compute in float32 and differ in the order of sums alone")
FAST = Bound(4e-4, 0.05, why="activations are rounded to 15 bits; a tenth of what llama.cpp's 8 bits cost")
SAME = Bound(1e-4, 0.05, why="the same kernels; where sums differ in order, an activation may be rounded the other way")
ROUNDED = Bound(
    1e-4,
    0.05,
    stream=1e-4,
    why="as exact, but for caches: where sums differ in order, one may be rounded the other way",
)
JUDGE = Bound(2e-2, 1.0, why="llama.cpp rounds activations to 8 bits and has float16 caches and GELU")


@dataclass(frozen=True)
class Row:
    """One executor against another, over every position of every prompt.

    `ok` says whether the bound held; `top1_agreement` is the share of positions with the same likeliest token, and
    `worst_margin` the largest of the reference's margins where it isn't. `fed` is `text`, or `random ids` where the
    model has no tokenizer that is known.

    The divergence is largest, `worst_kl`, at position `worst_position` of the text number `worst_text`, both from 0.
    `first_layer` is the first behind which the two differ by more than rounding, from 0, and `layer_difference` by how
    much behind the last; both None where layers were not looked at.
    """

    executor: str
    against: str
    max_abs: float
    mean_kl: float
    top1_agreement: float
    worst_margin: float
    positions: int
    fed: str
    ok: bool
    why: str
    worst_text: int = 0
    worst_position: int = 0
    worst_kl: float = 0.0
    first_layer: int | None = None
    layer_difference: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The rows, what couldn't be run, for each such executor why, and how a bundle stands to its manifest.

    Nothing is run of a bundle that isn't what its manifest says.
    """

    rows: tuple[Row, ...]
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
    llama_cpp: bool = False,
    layers: bool = False,
    weights: Path | None = None,
    archdefs: Sequence[Path] = (),
    progress: Progress = silent,
) -> Verdict:
    """Holds a bundle against its manifest, then runs every executor over it or a `.gguf` and compares their logits.

    Args:
        model: a bundle or a `.gguf`.
        threads: workers; None is one for each core.
        llama_cpp: llama.cpp as one more; where it can't be run, the verdict says so.
        layers: look for the first layer behind which two of ggufc's executors differ.
        weights: the GGUF of a bundle whose link to it is broken.
        archdefs: directories of definitions.
        progress: told of each stage.

    Raises:
        InputError, UnsupportedError: as `load`; UnsupportedError too for an encoder.
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
    opened = lowered(bundle, file, archdefs)
    if opened.definition.kind != "decoder":
        raise UnsupportedError(f"{file}: {opened.definition.name} is an encoder, which verify can't compare yet")
    workers = usable_cores() if threads is None else threads
    prompts, fed = _prompts(opened)
    steps = min(STEPS, opened.context_length - len(prompts[0]))

    def session(backend: str, exact: bool = False, kv: str | None = None) -> Callable[[], Engine]:
        return lambda: load(
            model, backend, threads=workers, kv=kv, exact=exact, weights=file if bundle else None, archdefs=archdefs
        )

    def compiled() -> Engine:
        found = bundle or cached_bundle(file, archdefs=archdefs, progress=progress)
        return load(found.path, "iree", threads=workers, weights=file)

    makers: dict[str, Callable[[], Engine]] = {
        REFERENCE: session("native", exact=True),
        "native": session("native"),
        "iree": compiled,
        "xla": session("xla", kv=REFERENCE_KV),
    }
    pairs = [
        ("native", REFERENCE, FAST),
        ("iree", REFERENCE, FAST),
        ("iree", "native", SAME),
        ("xla", REFERENCE, exact_bound(bundle.manifest["kv"] if bundle else REFERENCE_KV)),
    ]
    if llama_cpp:
        makers[LLAMA_CPP] = lambda: _llama_cpp(opened, workers, PROMPT_TOKENS + STEPS)
        pairs.append((LLAMA_CPP, REFERENCE, JUDGE))
    logits: dict[str, np.ndarray] = {}
    not_available: dict[str, str] = {}
    continuations: list[list[int]] = []
    for name, make in makers.items():
        progress(f"running {name}")
        try:
            logits[name] = _run(make(), prompts, continuations, steps)
        except GgufcError as error:
            if name != LLAMA_CPP:
                raise
            not_available[name] = str(error)
    rows = [compare(a, b, logits[a], logits[b], bound, fed, steps + 1) for a, b, bound in pairs if a in logits]
    first = len(prompts[0]) - 1
    rows = [replace(row, worst_position=first + row.worst_position) for row in rows]
    if layers:
        streams = Layers(opened, prompts, workers, progress)
        rows = [_with_layers(row, streams, bound) for row, (_, _, bound) in zip(rows, pairs, strict=False)]
    return Verdict(tuple(rows), not_available, checks)


def _with_layers(row: Row, streams: Layers, bound: Bound) -> Row:
    """A row with what was found behind the layers; llama.cpp doesn't let us look."""
    if row.executor not in EXECUTORS:
        return row
    pair = row.executor, row.against
    first = streams.first_difference(*pair, bound.stream)
    return replace(row, first_layer=first, layer_difference=streams.difference(*pair, streams.count))


def exact_bound(kv: str) -> Bound:
    """What XLA must keep beside the reference, both with caches of a type: a bundle has its own."""
    return EXACT if kv == REFERENCE_KV else ROUNDED


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
    return LlamaCpp(model.file.path, threads, context)


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
        tokenizer = Tokenizer.from_metadata(model.file.metadata)
    except UnsupportedError:
        return np.random.default_rng(0).integers(0, model.vocabulary, (len(TEXTS), length)).tolist(), RANDOM
    encoded = [tokenizer.encode(text) for text in TEXTS]
    return [np.resize(np.asarray(ids), length).tolist() for ids in encoded], TEXT


def _run(engine: Engine, prompts: list[list[int]], continuations: list[list[int]], steps: int) -> np.ndarray:
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


def compare(
    executor: str,
    against: str,
    logits: np.ndarray,
    reference: np.ndarray,
    bound: Bound,
    fed: str = TEXT,
    per_text: int | None = None,
) -> Row:
    """Judges logits (positions, vocabulary) by a reference's.

    `fed` says what was fed; `per_text` are the positions of each text, among which `worst_position` is counted.
    """
    p, q = log_softmax(reference), log_softmax(logits)
    kl = (np.exp(p) * (p - q)).sum(-1)
    top = np.partition(p, -2, axis=-1)[:, -2:]
    same = p.argmax(-1) == q.argmax(-1)
    margins = np.where(same, 0.0, top[:, 1] - top[:, 0])
    worst = int(np.nan_to_num(kl, nan=np.inf).argmax())
    text, position = divmod(worst, per_text or len(kl))
    row = Row(
        executor,
        against,
        max_abs=float(np.abs(logits - reference).max()),
        mean_kl=float(kl.mean()),
        top1_agreement=float(same.mean()),
        worst_margin=float(margins.max()),
        positions=len(same),
        fed=fed,
        ok=True,
        why=bound.why,
        worst_text=text,
        worst_position=position,
        worst_kl=float(kl[worst]),
    )
    ok = row.max_abs <= bound.max_abs and row.mean_kl <= bound.mean_kl and row.worst_margin <= bound.margin
    return replace(row, ok=ok)
