"""Whether two executors agree: what a pair must keep, and a row of figures for each."""

from dataclasses import dataclass, replace

import numpy as np

from ..sessions.sampling import log_softmax

TEXT, RANDOM = "text", "random ids"
"""What executors are fed."""


@dataclass(frozen=True)
class Bound:
    """What a pair must keep, and why.

    Attributes:
        mean_kl: largest mean of KL(reference || other), in nats.
        margin: where the reference's two likeliest tokens are further apart than this, in nats, the likeliest must be
            the same.
        max_abs: largest difference of two logits.
        apart: largest difference of what two executors have behind a layer, or give as an embedding, as a part of its
            length; measured on models of many kinds it is 5e-6 where both are exact, and 1e-3 where activations are
            rounded. llama.cpp's embeddings of models with random weights are up to 0.14 apart.
        why: the reason for these figures.
    """

    mean_kl: float
    margin: float
    max_abs: float = np.inf
    apart: float = 2e-2
    why: str = ""


EXACT = Bound(1e-5, 0.02, 1e-3, 1e-4, "both compute in float32 and differ in the order of sums alone")
FAST = Bound(4e-4, 0.05, why="activations are rounded to 15 bits; a tenth of what llama.cpp's 8 bits cost")
FASTER = Bound(
    4e-3, 0.5, apart=0.1, why="activations of prompts are rounded to 8 bits; no more than llama.cpp's 8 bits cost"
)
SAME = Bound(1e-4, 0.05, why="the same kernels; where sums differ in order, an activation may be rounded the other way")
_ROUNDED = "as exact, but for caches: where sums differ in order, one may be rounded the other way"
WITH_CACHES = {
    "f32": EXACT,
    "f16": Bound(1e-4, 0.05, apart=1e-4, why=_ROUNDED),
    "q8_0": Bound(4e-4, 0.05, apart=1e-4, why=_ROUNDED),
}
"""What two executors must keep that are both exact, by the type of their caches."""
JUDGE = Bound(2e-2, 1.0, apart=0.25, why="llama.cpp rounds activations to 8 bits and has float16 caches and GELU")


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
class EmbeddingRow:
    """One executor against another where a model gives embeddings, or a classifier's scores, over every text.

    `cosine` is the least of any embedding's two, and `apart` the largest distance of two as a part of the longest's
    length: that of text number `worst_text`, from 0. The rest is as in `Row`.
    """

    executor: str
    against: str
    max_abs: float
    cosine: float
    apart: float
    embeddings: int
    fed: str
    ok: bool
    why: str
    worst_text: int = 0
    first_layer: int | None = None
    layer_difference: float | None = None


def distances(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """How far rows (rows, width) are from those wanted, as a part of the longest of these; float64 (rows,)."""
    lengths = np.linalg.norm(wanted.astype(np.float64), axis=-1)
    apart = np.linalg.norm(found.astype(np.float64) - wanted, axis=-1)
    return np.nan_to_num(apart / max(lengths.max(), 1e-30), nan=np.inf)


def compare_embeddings(
    executor: str, against: str, found: np.ndarray, reference: np.ndarray, bound: Bound, fed: str = TEXT, texts: int = 1
) -> EmbeddingRow:
    """Judges embeddings (rows, dim), as many of each of the `texts`, by a reference's; `fed` says what was fed."""
    apart = distances(found, reference)
    a, b = (rows.astype(np.float64) for rows in (found, reference))
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    worst = int(apart.argmax())
    return EmbeddingRow(
        executor,
        against,
        max_abs=float(np.abs(a - b).max()),
        cosine=float(((a * b).sum(-1) / np.maximum(lengths, 1e-30)).min()),
        apart=float(apart[worst]),
        embeddings=len(apart),
        fed=fed,
        ok=bool(apart[worst] <= bound.apart),
        why=bound.why,
        worst_text=worst // (len(apart) // texts),
    )


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
