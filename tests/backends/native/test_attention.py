"""Attention and cache updates against float64 arithmetic, for this machine and for lesser ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, quants
from ggufc.backends.native.emit import F32, vec
from ggufc.backends.native.kernel import Buffer, Kernel, Scalar
from ggufc.backends.native.kernels import math
from ggufc.backends.native.kernels.attention import (
    attention_many,
    attention_merge,
    attention_one,
    attention_spans,
    shared_heads,
    spans_of_keys,
)
from ggufc.backends.native.kernels.kv_update import kv_update
from ggufc.backends.native.launch import launch
from ggufc.backends.native.objects import object_code
from ggufc.backends.native.target import PRESETS, Target, host_target
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_objects import symbols

Floats = npt.NDArray[np.float32]
HOST = host_target()
TARGETS = [
    HOST,
    *(t for t in PRESETS.values() if t.arch == HOST.arch and all(HOST.has(f[1:]) for f in t.features)),
]
DTYPES = {"f32": np.float32, "f16": np.float16}
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@dataclass(frozen=True)
class Case:
    """One call on a sequence of position + tokens keys, of which a ring of `rows` holds the last."""

    tokens: int
    position: int
    rows: int
    window: int = 0
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 24
    value_dim: int = 24
    cap: float = 0.0
    dtype: str = "f32"
    scale: float = 0.25
    ahead: int = 0
    seed: int = 0

    @property
    def length(self) -> int:
        return self.position + self.tokens

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """q, and k and v of the whole sequence."""
        rng = np.random.default_rng(self.seed)
        q = rng.standard_normal((self.tokens, self.heads, self.head_dim), np.float32)
        k = rng.standard_normal((self.length, self.kv_heads, self.head_dim), np.float32)
        v = rng.standard_normal((self.length, self.kv_heads, self.value_dim), np.float32)
        if self.dtype == "q8_0":
            return q, k, v
        return q, k.astype(DTYPES[self.dtype]), v.astype(DTYPES[self.dtype])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any call that a ring can serve, the tightest rings among them."""
    tokens, window = draw(st.integers(1, 80)), draw(st.sampled_from((0, 0, 1, 3, 64, 65, 100)))
    position = draw(st.integers(0, 600 if window else 200))
    seen = min(window, position + tokens) if window else position + tokens
    needed = seen + tokens - 1 if window else seen
    kv_heads = draw(st.integers(1, 2))
    head_dim, value_dim = draw(st.sampled_from(((8, 16), (40, 24), (112, 80), (100, 3))))
    return Case(
        tokens=tokens,
        position=position,
        rows=needed + draw(st.sampled_from((0, 0, 1, 70))),
        window=window,
        heads=kv_heads * draw(st.sampled_from((1, 2, 3))),
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        cap=draw(st.sampled_from((0.0, 0.0, 2.0, 50.0))),
        dtype=draw(st.sampled_from(tuple(DTYPES))),
        scale=draw(st.sampled_from((0.3, 1.0, 2.0))) / head_dim**0.5,
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def exact(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """In float64, over the whole sequence and without a ring."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    share = case.heads // case.kv_heads
    k, v = (np.repeat(a, share, axis=1) for a in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) * case.scale
    if case.cap:
        scores = case.cap * np.tanh(scores / case.cap)
    at = case.position + np.arange(case.tokens)[:, None]
    keys = np.arange(case.length)[None]
    seen = (keys <= at + case.ahead) & ((keys > at - case.window) if case.window else True)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v)


def ring(case: Case, sequence: np.ndarray) -> np.ndarray:
    """The last rows of the sequence in their places; what was never written is NaN."""
    empty = -1 if sequence.dtype == np.int8 else np.nan  # of a block's scale, too
    result = np.full((case.rows, *sequence.shape[1:]), empty, sequence.dtype)
    for p in range(max(0, case.length - case.rows), case.length):
        result[p % case.rows] = sequence[p]
    return result


def scalars(case: Case) -> dict[str, float]:
    names = ("tokens", "rows", "heads", "kv_heads", "window", "scale", "cap", "ahead")
    return {name: getattr(case, name) for name in names}


def prefill(case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray, target: Target, threads: int = 1) -> np.ndarray:
    """All tokens of the case in one call."""
    out = np.full((case.tokens, case.heads, case.value_dim), np.nan, np.float32)
    position = np.array([case.position], np.int32)
    arrays = {"q": q, "k": ring(case, k), "v": ring(case, v), "position": position, "out": out}
    launch(attention_many(case.dtype, case.head_dim, case.value_dim), arrays, scalars(case), threads, target)
    return out


def decode(
    case: Case, q: np.ndarray, k: np.ndarray, v: np.ndarray, token: int, share: int, target: Target
) -> np.ndarray:
    """One token of the case, on the ring of all."""
    out = np.full((case.heads, case.value_dim), np.nan, np.float32)
    position = np.array([case.position + token], np.int32)
    arrays = {"q": q[token], "k": ring(case, k), "v": ring(case, v), "position": position, "out": out}
    launch(attention_one(case.dtype, case.head_dim, case.value_dim, share), arrays, scalars(case), 1, target)
    return out


def check(case: Case, target: Target) -> None:
    """Prefill is exact to float32; threads and decoding change no bit of it."""
    q, k, v = case.arrays()
    wanted = exact(case, q, k, v)
    found = prefill(case, q, k, v, target)
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
    np.testing.assert_array_equal(prefill(case, q, k, v, target, threads=2), found)
    for share in {1, case.heads // case.kv_heads}:
        for token in {0 if case.ahead == 0 else case.tokens - 1, case.tokens - 1}:
            np.testing.assert_array_equal(decode(case, q, k, v, token, share, target), found[token])


@pytest.mark.slow
@each_target
@settings(max_examples=12)
@given(case=cases())
def test_attention_of_any_shape(target: Target, case: Case) -> None:
    check(case, target)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(64, 0, 64, heads=4, head_dim=256, value_dim=256, scale=1 / 16), id="gemma"),
        pytest.param(Case(70, 9000, 161, 92, 4, 2, 64, 64, dtype="f16"), id="wrapped"),
        pytest.param(Case(5, 1000, 8, 3, 8, 1, 96, 24, cap=3.0), id="ring-within-a-block"),
        pytest.param(Case(1, 3000, 3001, 0, 2, 1, 80, 8), id="long"),
        pytest.param(Case(150, 0, 150, heads=2, ahead=2**31 - 1), id="encoder"),
        pytest.param(Case(200, 0, 200, 65, heads=2, head_dim=33, value_dim=20, ahead=64), id="window-on-both-sides"),
        pytest.param(Case(9, 70, 79, 1, ahead=2), id="more-after-than-before"),
        pytest.param(Case(3, 7, 3, 1), id="window-of-one"),
    ],
)
@each_target
def test_attention_of_known_shapes(target: Target, case: Case) -> None:
    check(case, target)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "wanted"), [(4, 1, 2), (32, 8, 4), (14, 2, 7), (64, 4, 8), (40, 8, 5), (8, 8, 1), (1, 1, 1)]
)
def test_heads_of_a_kv_head_share_a_work_group_but_leave_two(heads: int, kv_heads: int, wanted: int) -> None:
    assert shared_heads(heads, kv_heads) == wanted


@pytest.mark.parametrize(
    ("heads", "kv_heads", "wanted"), [(4, 1, 8), (8, 2, 4), (32, 8, 1), (16, 1, 4), (64, 4, 1), (1, 1, 8)]
)
def test_keys_are_shared_where_heads_are_few(heads: int, kv_heads: int, wanted: int) -> None:
    assert spans_of_keys(heads, kv_heads) == wanted


def by_spans(case: Case, k: np.ndarray, v: np.ndarray, q: np.ndarray, share: int, spans: int, target: Target) -> Floats:
    """The only token of a case, its keys in spans that are merged."""
    part = np.full((spans, case.heads, case.value_dim + 2), np.nan, np.float32)
    out = np.full((case.heads, case.value_dim), np.nan, np.float32)
    numbers = scalars(case) | {"spans": spans, "value_dim": case.value_dim}
    arrays = {"q": q, "k": k, "v": v, "position": np.array([case.position], np.int32), "part": part}
    launch(attention_spans(case.dtype, case.head_dim, case.value_dim, share), arrays, numbers, 2, target)
    launch(attention_merge(), {"part": part, "out": out}, numbers, 1, target)
    return out


@each_target
@settings(max_examples=30, deadline=None)
@given(
    position=st.integers(0, 700),
    spans=st.integers(1, 9),
    dims=st.sampled_from(((32, 64), (40, 24))),
    seed=st.integers(0, 99),
)
def test_spans_of_keys_merge_to_the_whole(
    target: Target, position: int, spans: int, dims: tuple[int, int], seed: int
) -> None:
    """Spans without a key among them, and rings that have turned."""
    case = Case(1, position, position + 1, heads=6, kv_heads=2, head_dim=dims[0], value_dim=dims[1], seed=seed)
    q, k, v = case.arrays()
    found = by_spans(case, ring(case, k), ring(case, v), q, 3, spans, target)
    np.testing.assert_allclose(found, exact(case, q, k, v)[0], rtol=0, atol=3e-6)


@each_target
@pytest.mark.parametrize(("tokens", "window"), [(1, 0), (70, 0), (70, 9)])
def test_attention_over_blocks_of_eight_bits(target: Target, tokens: int, window: int) -> None:
    """As over what gguf-py makes of the blocks."""
    case = Case(tokens, 130, 200, window, heads=6, kv_heads=2, head_dim=96, value_dim=64, dtype="q8_0", scale=0.1)
    q, k, v = case.arrays()
    k, v = (quants.quantize(a, GGMLQuantizationType.Q8_0).view(np.int8) for a in (k, v))
    values = [quants.dequantize(a.view(np.uint8), GGMLQuantizationType.Q8_0) for a in (k, v)]
    wanted = exact(case, q, *values)
    np.testing.assert_allclose(prefill(case, q, ring(case, k), ring(case, v), target), wanted, rtol=0, atol=3e-6)
    if tokens == 1:
        np.testing.assert_allclose(
            by_spans(case, ring(case, k), ring(case, v), q, 3, 4, target), wanted[0], rtol=0, atol=3e-6
        )


@each_target
def test_rows_become_blocks_of_eight_bits(target: Target) -> None:
    """Scales as gguf-py's to the bit; integers the nearest, which it rounds from another product."""
    x = np.random.default_rng(0).standard_normal((5, 192), np.float32)
    x[1, :32], x[2, 32:64] = 0.0, 1e-6
    cache = np.full((7, 6 * 34), 77, np.int8)
    arrays = {"cache": cache, "x": x, "position": np.array([4], np.int32)}
    launch(kv_update("q8_0"), arrays, {"tokens": 5, "rows": 7, "row": 192}, 2, target)
    found = cache[(4 + np.arange(5)) % 7].view(np.uint8).reshape(5, 6, 34)
    wanted = quants.quantize(x, GGMLQuantizationType.Q8_0).reshape(5, 6, 34)
    np.testing.assert_array_equal(found[..., :2], wanted[..., :2])
    assert np.abs(found[..., 2:].view(np.int8).astype(int) - wanted[..., 2:].view(np.int8)).max() <= 1
    assert (found[..., 2:] != wanted[..., 2:]).mean() < 0.01
    assert (cache[2:4] == 77).all()


@each_target
def test_scores_beyond_the_range_of_exp(target: Target) -> None:
    check(Case(6, 60, 66, scale=300.0), target)


@pytest.mark.slow
@pytest.mark.parametrize("target", PRESETS.values(), ids=PRESETS)
@each_dtype
def test_objects_need_no_library(target: Target, dtype: str) -> None:
    for kernel in (attention_one(dtype, 64, 24, 4), attention_many(dtype, 24, 64), kv_update(dtype)):
        assert symbols(object_code(kernel, target)) == ({kernel.name}, set())


@each_target
@each_dtype
def test_a_window_of_four_sees_itself_and_three_before(target: Target, dtype: str) -> None:
    case = Case(tokens=9, position=0, rows=12, window=4, dtype=dtype)
    q, k, v = case.arrays()
    before = prefill(case, q, k, v, target)
    v[0] += 1
    after = prefill(case, q, k, v, target)
    assert [bool((a != b).any()) for a, b in zip(before, after, strict=True)] == [True] * 4 + [False] * 5


@each_target
@each_dtype
@pytest.mark.parametrize(
    ("window", "first", "ahead"), [(0, 0, 0), (7, 0, 0), (7, 100, 0), (90, 60, 0), (6, 0, 5), (1, 0, 70), (0, 0, 3)]
)
def test_keys_out_of_sight_leave_no_trace(target: Target, dtype: str, window: int, first: int, ahead: int) -> None:
    """Not even as NaN: the other rows' results keep their bits."""
    case = Case(80, first, first + 80, window, heads=2, head_dim=40, value_dim=40, dtype=dtype, ahead=ahead)
    q, k, v = case.arrays()
    clean = prefill(case, q, k, v, target)
    for p in (0, first + 1, first + 37, first + 64, first + 79):
        for poisoned in (k, v):
            kept = poisoned[p].copy()
            poisoned[p] = np.nan
            found = prefill(case, q, k, v, target)
            poisoned[p] = kept
            at = first + np.arange(80)
            sees = (p <= at + ahead) & ((p > at - window) if window else True)
            assert np.isnan(found[sees]).all()
            np.testing.assert_array_equal(found[~sees], clean[~sees])


@each_target
@settings(max_examples=30)
@given(tokens=st.integers(1, 9), spare=st.integers(0, 4), row=st.integers(1, 70), position=st.integers(0, 10**6))
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_go_to_their_places_in_the_ring(
    target: Target, dtype: str, tokens: int, spare: int, row: int, position: int
) -> None:
    cache = np.random.default_rng(0).standard_normal((tokens + spare, row)).astype(DTYPES[dtype])
    x = np.random.default_rng(1).standard_normal((tokens, row), np.float32)
    wanted = cache.copy()
    for t in range(tokens):
        wanted[(position + t) % len(cache)] = x[t]
    arrays = {"cache": cache, "x": x, "position": np.array([position], np.int32)}
    launch(kv_update(dtype), arrays, {"tokens": tokens, "rows": len(cache), "row": row}, 2, target)
    np.testing.assert_array_equal(cache, wanted)


@each_target
def test_halves_are_rounded_to_the_nearest_even(target: Target) -> None:
    """All halves, the points half-way between them, and the floats on either side of these."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    points = np.concatenate([halves, (halves[1:] + halves[:-1]) / 2, [65520.0]]).astype(np.float32)
    around = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    x = np.concatenate([around, -around, np.array([np.inf, -np.inf, np.nan, 3e38, 1e-45], np.float32)])[None]
    cache = np.zeros(x.shape, np.float16)
    arrays = {"cache": cache, "x": x, "position": np.zeros(1, np.int32)}
    launch(kv_update("f16"), arrays, {"tokens": 1, "rows": 1, "row": x.size}, 1, target)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(cache, x.astype(np.float16))


@each_target
@pytest.mark.parametrize(("name", "bound"), [("exp", 2e-7), ("tanh", 3e-7)])
def test_polynomials(target: Target, name: str, bound: float) -> None:
    def emit(e, a) -> None:
        at, kind = e.times(a["@n"], 64), vec(F32, 16)
        e.write(getattr(math, name)(e, e.read(kind, a["x"], at)), a["y"], at)

    buffers = (Buffer("x", "f32"), Buffer("y", "f32", output=True))
    kernel = Kernel(f"test_{name}", buffers, (Scalar("n"),), (("n", 16),), emit)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.72283, 88.73, -86.99, -87.01, -1e30, 1e30, 10.0, 1e-30, -1e-30]
    small = np.geomspace(1e-9, 1, 10000)
    x = np.concatenate([edges, small, -small, np.linspace(-87, 88.7, 200002)]).astype(np.float32)
    y = np.empty_like(x)
    launch(kernel, {"x": x, "y": y}, {"n": x.size}, 1, target)
    with np.errstate(over="ignore"):
        wanted = getattr(np, name)(x.astype(np.float64))
    if name == "exp":
        wanted[x < -87] = 0
        wanted[x > 88.725] = np.inf
        assert y[0] == y[1] == 1
    same = (y == wanted) | (np.isnan(y) & np.isnan(wanted))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0, np.abs(y / np.where(same, 1, wanted) - 1))
    assert error.max() <= bound
