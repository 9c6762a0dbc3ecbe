"""The kernels on INT8 rows, a float32 scale and then a byte for each weight, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from ggufc.backends.jax.dequantize import dequantize
from ggufc.backends.native.target import Target, host_target
from ggufc.frontend.ggml_types import by_name
from hypothesis import given, settings
from hypothesis import strategies as st

from .blocks import dequantized
from .test_kernels import TARGETS, check_products, run_embed, run_many, run_one

each_target = pytest.mark.parametrize("target", TARGETS)


def int8_rows(scales: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Raw rows, uint8 (rows, 4 + cols), of scales (rows,) and whole numbers (rows, cols)."""
    return np.concatenate([scales.astype("<f4")[:, None].view(np.uint8), values.astype(np.int8).view(np.uint8)], 1)


def random_rows(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    return int8_rows(rng.uniform(-0.02, 0.02, rows), rng.integers(-128, 128, (rows, cols)))


def test_a_row_is_its_scale_and_then_its_bytes() -> None:
    """1.0 is 00 00 80 3f; ff is -1."""
    raw = np.frombuffer(bytes.fromhex("0000803f" + "01ff7f80" * 8 + "00000040" + "03000000" * 8), np.uint8)
    found = run_embed("int8", raw.reshape(2, 36), np.array([0, 1]), host_target())
    assert found.tolist() == [[1.0, -1.0, 127.0, -128.0] * 8, [6.0, 0.0, 0.0, 0.0] * 8]
    assert np.asarray(dequantize(raw.reshape(2, 36), "int8")).tolist() == found.tolist()  # type: ignore[arg-type]
    assert by_name("int8").nbytes(32, 2) == raw.size


@each_target
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40), st.integers(1, 24), st.integers(1, 21), st.integers(0, 2**32 - 1))
def test_products_and_embedding(target: Target, rows: int, blocks: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = random_rows(rng, rows, 32 * blocks)
    check_products("int8", raw, rng.standard_normal((tokens, 32 * blocks), np.float32), target)
    ids = rng.integers(-2, rows + 2, tokens)
    assert np.array_equal(run_embed("int8", raw, ids, target), dequantized(raw, "int8")[np.clip(ids, 0, rows - 1)])


@pytest.mark.parametrize("cols", [8192, 8192 + 96, 20480])
def test_rows_longer_than_a_panel(cols: int) -> None:
    rng = np.random.default_rng(cols)
    check_products("int8", random_rows(rng, 70, cols), rng.standard_normal((2, cols), np.float32), host_target(), 2)


@each_target
@pytest.mark.parametrize("value", [-128, 127])
def test_worst_case_sums_do_not_overflow(value: int, target: Target) -> None:
    raw = int8_rows(np.full(17, 0.01), np.full((17, 512), value))
    for sign in (1, -1):
        check_products("int8", raw, np.full((9, 512), sign, np.float32), target)


def test_a_scale_that_is_not_finite_is_its_rows_alone() -> None:
    scales = np.array([1e-40, np.inf, 1.0, np.nan, 0.0, -1.0])
    raw = int8_rows(scales, np.ones((6, 288)))
    assert np.array_equal(run_embed("int8", raw, np.arange(6), host_target()), dequantized(raw, "int8"), equal_nan=True)
    x = np.ones((2, 288), np.float32)
    for y in (run_one("int8", raw, x[0], host_target()), run_many("int8", raw, x, host_target())[0]):
        assert np.isfinite(y).tolist() == [True, False, True, False, True, True]
        np.testing.assert_allclose(y[[2, 4, 5]], [288, 0, -288], rtol=1e-6)


def test_rows_need_no_alignment_and_threads_change_nothing() -> None:
    rng = np.random.default_rng(9)
    raw, x = random_rows(rng, 300, 480), rng.standard_normal((3, 480), np.float32)
    shifted = np.concatenate([np.zeros(3, np.uint8), raw.reshape(-1)])[3:].reshape(raw.shape)
    for run, argument in ((run_one, x[0].copy()), (run_many, x)):
        alone = run("int8", raw, argument, host_target())
        assert np.array_equal(run("int8", shifted, argument, host_target(), 2), alone)
