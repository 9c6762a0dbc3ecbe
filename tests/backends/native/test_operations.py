"""Kernels of experts, encoders and convolutions against numpy, for this machine and for lesser ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ggufc.backends.native.kernel import Kernel
from ggufc.backends.native.kernels.elementwise import by_row, elementwise, gain_by_one
from ggufc.backends.native.kernels.experts import expert_gain, expert_linear, mix, route, top_k
from ggufc.backends.native.kernels.norm import layer_norm
from ggufc.backends.native.kernels.rows import conv_update, copy_rows, mean_rows, positions, short_conv
from ggufc.backends.native.launch import launch
from ggufc.backends.native.objects import object_code
from ggufc.backends.native.target import PRESETS, Target

from .blocks import PLAIN, block_size, dequantized, random_weight, rounded
from .test_kernels import TARGETS
from .test_objects import symbols

RNG = np.random.default_rng(0)
each_target = pytest.mark.parametrize("target", TARGETS)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def run(kernel: Kernel, target: Target, result: np.ndarray, *operands: np.ndarray, **scalars: float) -> np.ndarray:
    """What a kernel makes of the operands, in the order of its buffers; `result` is where its output is at first."""
    given = iter(operands)
    arrays = {b.name: result if b.output else next(given) for b in kernel.buffers}
    launch(kernel, arrays, scalars, 2, target)
    return result


def new(*shape: int) -> np.ndarray:
    """A result that nothing was written to."""
    return np.full(shape, np.nan, np.float32)


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


# Experts


@each_target
@pytest.mark.parametrize(("count", "k"), [(1, 1), (9, 3), (128, 8), (40, 40)])
def test_top_k_and_route(target: Target, count: int, k: int) -> None:
    x = np.round(normal(7, count) * 2) / 2  # many ties
    wanted = np.argsort(-x, axis=1, kind="stable")[:, :k].astype(np.int32)
    chosen = run(top_k(), target, np.full((7, k), -1, np.int32), x, tokens=7, count=count, k=k)
    np.testing.assert_array_equal(chosen, wanted)
    shares = np.take_along_axis(softmax(x), wanted.astype(np.int64), 1)
    scalars = {"tokens": 7, "count": count, "k": k, "by": 2.5}
    near(run(route(False), target, new(7, k), x, chosen, **scalars), 2.5 * shares)
    shares /= shares.sum(1, keepdims=True)
    near(run(route(True), target, new(7, k), x, chosen, **scalars), 2.5 * shares)


@each_target
def test_shares_too_small_to_be_made_one(target: Target) -> None:
    """The sum is held above the smallest normal half, as in llama.cpp."""
    x = np.array([[20.0, 0.0, 1.0]], np.float32)
    found = run(route(True), target, new(1, 1), x, np.array([[1]], np.int32), tokens=1, count=3, k=1, by=1.0)
    np.testing.assert_allclose(found, softmax(x)[:, 1:2] / 2.0**-14, rtol=1e-5)


@each_target
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_k"])
@pytest.mark.parametrize("shared", [False, True])
def test_products_read_the_chosen_experts_alone(target: Target, kind: str, exact: bool, shared: bool) -> None:
    """Every tensor that no token chose is bits of NaN, which must not reach a result."""
    rows, cols, k = 70, 512, 2
    weight = random_weight(RNG, kind, 5 * rows, cols // block_size(kind)[0]).reshape(5, rows, -1)
    weight[[0, 3]] = 0xFF
    experts = np.array([[4, 1], [2, 4], [1, 2]], np.int32)
    x = normal(3, cols) if shared else normal(6, cols)
    matrices = {n: dequantized(weight[n], kind).astype(np.float64) for n in (1, 2, 4)}
    values = x if exact or kind in PLAIN else rounded(x)
    values = np.repeat(values, k, axis=0) if shared else values
    pairs = zip(experts.reshape(-1).tolist(), values, strict=True)
    wanted = np.array([matrices[expert] @ value for expert, value in pairs])
    scalars = {"pairs": 6, "rows": rows, "cols": cols, "share": k if shared else 1}
    kernel = expert_linear(kind, cols if exact else 0)
    found = run(kernel, target, new(6, rows), weight, x, experts, **scalars)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


@each_target
def test_gains_and_the_sum_of_experts(target: Target) -> None:
    x, gains, shares, experts = normal(5, 3, 37), normal(9), normal(5, 3), RNG.integers(0, 9, (5, 3)).astype(np.int32)
    found = run(expert_gain(), target, new(5, 3, 37), x, experts, gains, pairs=15, row=37)
    np.testing.assert_array_equal(found, x * gains[experts][:, :, None])
    found = run(mix(), target, new(5, 37), x, shares, tokens=5, k=3, row=37)
    near(found, np.einsum("tkr,tk->tr", x, shares))


# Rows


@each_target
@pytest.mark.parametrize("row", [1, 37, 640])
def test_rows_combined_and_moved(target: Target, row: int) -> None:
    x, w, b = normal(5, row), normal(row), normal(row)
    centred = x.astype(np.float64) - x.mean(1, keepdims=True, dtype=np.float64)
    norm = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 0.1)
    size = {"rows": 5, "row": row}
    for weights, wanted in enumerate((norm, norm * w, norm * w + b)):
        found = run(layer_norm(weights), target, new(5, row), x, *(w, b)[:weights], **size, eps=0.1)
        near(found, wanted)
    np.testing.assert_array_equal(run(by_row("add"), target, new(5, row), x, w, **size), x + w)
    np.testing.assert_array_equal(run(by_row("mul"), target, new(5, row), x, w, **size), x * w)
    np.testing.assert_array_equal(run(gain_by_one(), target, new(5, row), x, w[:1].copy(), **size), x * w[0])
    found = run(mean_rows(), target, new(1, row), x, tokens=5, row=row)
    near(found[0], x.mean(0))
    taken = {"tokens": 5, "row": row, "start": 3, "from": row + 5, "to": row + 1}
    wide, found = normal(5, row + 5), new(5, row + 1)
    run(copy_rows(), target, found, wide, **taken)
    np.testing.assert_array_equal(found[:, :row], wide[:, 3 : row + 3])
    assert np.isnan(found[:, row]).all()


@each_target
def test_elements_and_positions(target: Target) -> None:
    x = np.array([-2.0, -0.0, 0.0, 3.0, np.inf, -np.inf, np.nan, *RNG.standard_normal(40)], np.float32)
    np.testing.assert_array_equal(run(elementwise("relu"), target, new(x.size), x, count=x.size), np.maximum(x, 0))
    found = run(elementwise("tanh"), target, new(x.size), x, count=x.size)
    np.testing.assert_allclose(found, np.tanh(x.astype(np.float64)), rtol=1e-6)
    found = run(positions(), target, np.zeros(9, np.int32), np.array([7], np.int32), tokens=9, groups=1)
    np.testing.assert_array_equal(found, np.arange(7, 16))


# Convolutions


@each_target
@pytest.mark.parametrize("taps", [2, 3, 5])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9])
def test_a_convolution_sees_its_state_and_renews_it(target: Target, taps: int, tokens: int) -> None:
    row = 300
    state, x, w = normal(taps - 1, row), normal(tokens, row), normal(row, taps)
    scalars = {"tokens": tokens, "row": row, "taps": taps}

    def convolved(rows: np.ndarray) -> np.ndarray:
        return sum((rows[n : n + tokens] * w[:, n] for n in range(taps)), start=np.zeros((tokens, row)))

    both: Any = np.concatenate([state, x])
    found = run(short_conv(True), target, new(tokens, row), x, state, w, **scalars)
    near(found, convolved(both))
    found = run(short_conv(False), target, new(tokens, row), x, w, **scalars)
    near(found, convolved(np.concatenate([np.zeros_like(state), x])))
    run(conv_update(), target, state, x, tokens=tokens, rows=taps - 1, row=row)
    np.testing.assert_array_equal(state, both[-(taps - 1) :])


@pytest.mark.slow
@pytest.mark.parametrize("target", PRESETS.values(), ids=PRESETS)
def test_objects_need_no_library(target: Target) -> None:
    kernels = [top_k(), route(True), expert_gain(), mix(), layer_norm(2), mean_rows(), copy_rows(), conv_update()]
    kernels += [expert_linear("q4_k"), expert_linear("q4_k", 512), short_conv(True)]
    for kernel in [*kernels, by_row("add"), gain_by_one(), positions()]:
        assert symbols(object_code(kernel, target)) == ({kernel.name}, set())
