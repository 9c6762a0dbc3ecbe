"""Every kernel on every type against gguf-py's dequantization, for this machine and for lesser ones."""

from __future__ import annotations

import ggufc.backends.native.kernels.types as types
import numpy as np
import pytest
from ggufc.backends.native.kernels.activations import activation_width, quantize_rows
from ggufc.backends.native.kernels.embed import embed
from ggufc.backends.native.kernels.linear_many import linear_many
from ggufc.backends.native.kernels.linear_one import linear_one
from ggufc.backends.native.launch import launch
from ggufc.backends.native.target import PRESETS, Target, host_target
from hypothesis import given, settings
from hypothesis import strategies as st

from .blocks import (
    PLAIN,
    QUANTIZED,
    TYPES,
    block_size,
    dequantized,
    random_weight,
    rounded,
    with_every_scale,
    with_scales,
)


def _runnable() -> list[Target]:
    """This machine, and the presets that it can run; x86-64-v2 gets the same instructions as x86-64 from us."""
    host, presets = host_target(), [t for t in PRESETS.values() if t.name != "x86-64-v2"]
    fits = [t for t in presets if t.arch == host.arch and all(host.has(f[1:]) for f in t.features)]
    return [host, *fits]


TARGETS = [pytest.param(t, id=t.name) for t in _runnable()]
each_type = pytest.mark.parametrize("kind", TYPES)
each_quantized = pytest.mark.parametrize("kind", QUANTIZED)
each_target = pytest.mark.parametrize("target", TARGETS)

shapes = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 40),
        "blocks": st.integers(1, 24),
        "tokens": st.integers(1, 21),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def run_one(kind: str, raw: np.ndarray, x: np.ndarray, target: Target, threads: int = 1) -> np.ndarray:
    y = np.full(len(raw), np.nan, np.float32)
    launch(linear_one(kind), {"w": raw, "x": x, "y": y}, {"rows": len(raw), "cols": x.size}, threads, target)
    return y


def run_many(kind: str, raw: np.ndarray, x: np.ndarray, target: Target, threads: int = 1) -> np.ndarray:
    tokens, cols = x.shape
    y = np.full((tokens, len(raw)), np.nan, np.float32)
    if kind not in PLAIN:
        q = np.full((tokens, activation_width(cols)), -1, np.int16)
        launch(quantize_rows(), {"x": x, "q": q}, {"tokens": tokens, "cols": cols}, threads, target)
        x = q
    scalars = {"tokens": tokens, "rows": len(raw), "cols": cols}
    launch(linear_many(kind), {"w": raw, "x": x, "y": y}, scalars, threads, target)
    return y


def run_embed(kind: str, raw: np.ndarray, ids: np.ndarray, target: Target) -> np.ndarray:
    cols = raw.shape[1] // block_size(kind)[1] * block_size(kind)[0]
    y = np.full((len(ids), cols), np.nan, np.float32)
    scalars = {"tokens": len(ids), "rows": len(raw), "cols": cols}
    launch(embed(kind), {"ids": ids.astype(np.int32), "w": raw, "y": y}, scalars, 1, target)
    return y


def check_products(kind: str, raw: np.ndarray, x: np.ndarray, target: Target, threads: int = 1) -> None:
    """Both products equal the float product with the rounded activations, and come near the exact one."""
    weight = dequantized(raw, kind).astype(np.float64)
    exact = x.astype(np.float64) @ weight.T
    wanted = exact if kind in PLAIN else rounded(x).astype(np.float64) @ weight.T
    magnitude = np.abs(x).astype(np.float64) @ np.abs(weight).T
    many = run_many(kind, raw, x, target, threads)
    one = run_one(kind, raw, x[0].copy(), target, threads)
    for got, row in ((many, slice(None)), (one, 0)):
        assert (np.abs(got - wanted[row]) <= 1e-5 * np.maximum(magnitude[row], np.abs(wanted).max())).all()
        assert (np.abs(got - exact[row]) <= 1e-4 * magnitude[row] + 1e-30).all()


@pytest.mark.slow
@each_type
@each_target
@settings(max_examples=10)
@given(shape=shapes)
def test_products_and_embedding(kind: str, target: Target, shape: dict[str, int]) -> None:
    rng = np.random.default_rng(shape["seed"])
    raw = random_weight(rng, kind, shape["rows"], shape["blocks"])
    cols = shape["blocks"] * block_size(kind)[0]
    check_products(kind, raw, rng.standard_normal((shape["tokens"], cols), np.float32), target)
    ids = rng.integers(-2, shape["rows"] + 2, shape["tokens"])
    wanted = dequantized(raw, kind)[np.clip(ids, 0, shape["rows"] - 1)]
    assert np.array_equal(run_embed(kind, raw, ids, target).view(np.int32), wanted.view(np.int32))


@each_quantized
@pytest.mark.parametrize("cols", [8192, 8192 + 256, 20480])
def test_rows_longer_than_a_panel(kind: str, cols: int) -> None:
    rng = np.random.default_rng(cols)
    raw = random_weight(rng, kind, 70, cols // block_size(kind)[0])
    check_products(kind, raw, rng.standard_normal((2, cols), np.float32), host_target(), threads=2)


@each_type
def test_outliers_stay_in_their_group(kind: str) -> None:
    """One huge activation costs precision in its 256 neighbours alone."""
    rng = np.random.default_rng(3)
    raw = random_weight(rng, kind, 33, 2048 // block_size(kind)[0])
    x = rng.standard_normal((9, 2048), np.float32)
    x[:, 700] = 1000.0
    weight = dequantized(raw, kind).astype(np.float64)
    bound = 0.5 * 1000 / 16383 * np.abs(weight[:, 512:768]).sum(1)
    bound += 1e-4 * np.abs(weight).sum(1)
    wanted = x.astype(np.float64) @ weight.T
    assert (np.abs(run_many(kind, raw, x, host_target()) - wanted) <= bound).all()
    assert (np.abs(run_one(kind, raw, x[0].copy(), host_target()) - wanted[0]) <= bound).all()


@each_quantized
@each_target
def test_worst_case_sums_do_not_overflow(kind: str, target: Target) -> None:
    """All bits set or clear in the weights and activations of one sign: the largest integers that can meet."""
    size, count = block_size(kind)[1], 512 // block_size(kind)[0]
    one_scale = np.array([0.01], np.float16).view(np.uint16)
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        raw = with_scales(np.full((17, count * size), fill, np.uint8), kind, one_scale)
        for sign in (1, -1):
            check_products(kind, raw, np.full((9, 512), sign, np.float32), target)


@pytest.mark.slow
@each_quantized
@each_target
def test_every_half_is_a_scale(kind: str, target: Target) -> None:
    """Subnormal, infinite and NaN scales give what the formula gives."""
    per_row = 512 // block_size(kind)[0]
    raw = with_every_scale(random_weight(np.random.default_rng(5), kind, 65536 // per_row, per_row), kind)
    with np.errstate(all="ignore"):
        wanted = dequantized(raw, kind)
    got = run_embed(kind, raw, np.arange(len(raw)), target)
    assert np.array_equal(got, wanted, equal_nan=True)
    magnitude = np.abs(wanted).sum(1, dtype=np.float64)
    x = np.ones((1, 512), np.float32)
    for y in (run_one(kind, raw, x[0], target), run_many(kind, raw, x, target)[0]):
        assert np.isfinite(y[magnitude < 1e30]).all()  # in MXFP4 more than that may overflow in products
        assert not np.isfinite(y[~np.isfinite(magnitude)]).any()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@each_target
def test_every_sixteen_bit_float(kind: str, target: Target) -> None:
    """All 65536 patterns: subnormals are kept, BF16 has the range of float32, NaN stays NaN."""
    raw = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(256, 512)
    with np.errstate(all="ignore"):
        wanted = dequantized(raw, kind)
    got = run_embed(kind, raw, np.arange(256), target)
    assert np.array_equal(got, wanted, equal_nan=True)
    assert kind == "f16" or np.array_equal(got.view(np.int32), wanted.view(np.int32))
    eye = np.eye(256, dtype=np.float32)[:3]
    finite = np.isfinite(wanted).all(1)
    columns = np.where(np.isfinite(wanted), wanted, np.nan)[:, :3]
    assert np.array_equal(run_many(kind, raw, eye, target).T[finite], columns[finite])
    assert np.array_equal(run_one(kind, raw, eye[2], target)[finite], columns[finite, 2])
    assert np.isnan(run_one(kind, raw, eye[2], target)[~finite]).all()


@each_quantized
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite_are_not_lost(kind: str, value: float) -> None:
    raw = random_weight(np.random.default_rng(7), kind, 20, 1024 // block_size(kind)[0])
    x = np.ones((3, 1024), np.float32)
    x[0, 300] = value
    assert not np.isfinite(run_one(kind, raw, x[0].copy(), host_target())).any()
    y = run_many(kind, raw, x, host_target())
    assert not np.isfinite(y[0]).any()
    assert np.isfinite(y[1:]).all()


@each_quantized
def test_zero_activations_give_zero(kind: str) -> None:
    raw = random_weight(np.random.default_rng(8), kind, 5, 512 // block_size(kind)[0])
    x = np.zeros((2, 512), np.float32)
    assert not run_one(kind, raw, x[0].copy(), host_target()).any()
    assert not run_many(kind, raw, x, host_target()).any()


@each_quantized
def test_weights_need_no_alignment_and_threads_change_nothing(kind: str) -> None:
    rng = np.random.default_rng(9)
    raw = random_weight(rng, kind, 300, 512 // block_size(kind)[0])
    x = rng.standard_normal((3, 512), np.float32)
    shifted = np.concatenate([np.zeros(3, np.uint8), raw.reshape(-1)])[3:].reshape(raw.shape)
    for run, argument in ((run_one, x[0].copy()), (run_many, x)):
        alone = run(kind, raw, argument, host_target())
        assert np.array_equal(run(kind, shifted, argument, host_target(), 2), alone)


def test_the_description_of_a_type_agrees_with_gguf() -> None:
    for name, kind in types.QUANT_TYPES.items():
        assert block_size(name) == (kind.block, kind.block_bytes)
        covered = sorted(e for part in kind.parts for start in part.starts for e in range(start, start + part.run))
        assert covered == list(range(kind.chunk))
