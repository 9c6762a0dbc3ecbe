"""Products of prompts with activations of 8 bits, against gguf-py's dequantization."""

from __future__ import annotations

from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc.backends.bundles.bundle import read_bundle
from ggufc.backends.native.kernels.activation_bytes import activation_byte_width, quantize_bytes
from ggufc.backends.native.kernels.linear_many_bytes import linear_many_bytes, rounded_to_bytes
from ggufc.backends.native.launch import launch
from ggufc.backends.native.target import PRESETS, host_target
from ggufc.frontend.errors import InputError
from hypothesis import given, settings
from hypothesis import strategies as st

from ...aarch64 import Emulator, aarch64
from ...oracle import kl_divergence
from ...tiny_models import tiny_gemma3
from .blocks import block_size, dequantized, random_weight, with_scales

__all__ = ["aarch64"]

KINDS = sorted(rounded_to_bytes(8, PRESETS["x86-64-v4-vnni"]) - {"int8"})
here = pytest.mark.skipif(not rounded_to_bytes(8, host_target()), reason="this processor doesn't multiply bytes")
each_kind = pytest.mark.parametrize("kind", KINDS)


def rounded(x: np.ndarray) -> np.ndarray:
    """Activations (tokens, cols) to 8 bits, one scale per 32 elements."""
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(2, keepdims=True)
    inverse = np.where(largest > 0, np.float32(127) / np.where(largest > 0, largest, 1), 0)
    return (np.rint(groups * inverse) * (largest * np.float32(1 / 127))).reshape(x.shape)


def run(kind: str, raw: np.ndarray, x: np.ndarray) -> np.ndarray:
    tokens, cols = x.shape
    q = np.full((tokens, activation_byte_width(cols)), -1, np.int16)
    launch(quantize_bytes(), {"x": x, "q": q}, {"tokens": tokens, "cols": cols})
    y = np.full((tokens, len(raw)), np.nan, np.float32)
    launch(linear_many_bytes(kind), {"w": raw, "x": q, "y": y}, {"tokens": tokens, "rows": len(raw), "cols": cols})
    return y


def check(kind: str, raw: np.ndarray, x: np.ndarray, found: np.ndarray) -> None:
    weight = dequantized(raw, kind).astype(np.float64)
    wanted = rounded(x).astype(np.float64) @ weight.T
    bound = 1e-5 * np.maximum(np.abs(x).astype(np.float64) @ np.abs(weight).T, np.abs(wanted).max())
    assert (np.abs(found - wanted) <= bound).all()


def test_types_whose_scales_are_of_fewer_columns_keep_their_words() -> None:
    assert {"q4_0", "q8_0", "q4_k", "q6_k", "iq4_xs", "mxfp4"} <= set(KINDS)
    assert not rounded_to_bytes(16, PRESETS["x86-64-v4-vnni"])
    assert not rounded_to_bytes(8, PRESETS["x86-64-v3"])


@here
@each_kind
@settings(max_examples=10)
@given(rows=st.integers(1, 40), blocks=st.integers(1, 24), tokens=st.integers(1, 21), seed=st.integers(0, 2**32 - 1))
def test_products(kind: str, rows: int, blocks: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = random_weight(rng, kind, rows, blocks)
    x = rng.standard_normal((tokens, blocks * block_size(kind)[0]), np.float32)
    check(kind, raw, x, run(kind, raw, x))


@here
@each_kind
def test_the_largest_integers_that_can_meet(kind: str) -> None:
    size, count = block_size(kind)[1], 512 // block_size(kind)[0]
    one_scale = np.array([0.01], np.float16).view(np.uint16)
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        raw = with_scales(np.full((17, count * size), fill, np.uint8), kind, one_scale)
        for sign in (1, -1):
            x = np.full((3, 512), sign, np.float32)
            check(kind, raw, x, run(kind, raw, x))


@here
def test_int8_is_scaled_row_by_row() -> None:
    rng = np.random.default_rng(4)
    scales = rng.uniform(-0.02, 0.02, (37, 1)).astype("<f4").view(np.uint8)
    raw = np.concatenate([scales, rng.integers(0, 256, (37, 320), np.uint8)], 1)
    x = rng.standard_normal((8, 320), np.float32)
    check("int8", raw, x, run("int8", raw, x))


@here
@each_kind
def test_what_is_not_finite_stays_in_its_row_and_zeros_give_zero(kind: str) -> None:
    raw = random_weight(np.random.default_rng(7), kind, 20, 1024 // block_size(kind)[0])
    x = np.ones((4, 1024), np.float32)
    x[0, 300], x[1, 5], x[3] = np.nan, np.inf, 0
    y = run(kind, raw, x)
    assert not np.isfinite(y[:2]).any()
    assert np.isfinite(y[2]).all()
    assert not y[3].any()


@pytest.mark.slow
def test_products_on_an_emulated_aarch64(aarch64: Emulator, tmp_path: Path) -> None:
    rng, tokens, rows = np.random.default_rng(6), 3, 19
    target = PRESETS["aarch64-i8mm"]
    launches, results = [], []
    for kind in sorted(rounded_to_bytes(8, target) & {*KINDS}):
        blocks = max(1, 160 // block_size(kind)[0])
        raw, cols = random_weight(rng, kind, rows, blocks), blocks * block_size(kind)[0]
        x = rng.standard_normal((tokens, cols), np.float32)
        q, y = np.zeros((tokens, activation_byte_width(cols)), np.int16), np.full((tokens, rows), np.nan, np.float32)
        numbers = {"tokens": tokens, "rows": rows, "cols": cols}
        launches.append((quantize_bytes(), {"x": x, "q": q}, numbers))
        launches.append((linear_many_bytes(kind), {"w": raw, "x": q, "y": y}, numbers))
        results.append((kind, raw, x, y))
    aarch64.launch(launches, target, tmp_path)
    assert results
    for result in results:
        check(*result)


@here
@pytest.mark.slow
def test_a_bundle_keeps_its_bits_on_every_backend(tmp_path: Path) -> None:
    """Its native backend rounds prompts as its compiled module does, and no other one."""
    path, ids = tiny_gemma3(tmp_path / "m.gguf", types={"*": "q8_0"}), [2, *range(265, 300)]
    logits = {}
    for bits in (16, 8):
        ggufc.export(path, tmp_path / str(bits), activations=bits)
        assert read_bundle(tmp_path / str(bits)).manifest["activations"] == bits
        for backend in ("iree", "native"):
            logits[bits, backend] = ggufc.load(tmp_path / str(bits), backend).prefill(ids)
    for bits in (16, 8):
        np.testing.assert_allclose(logits[bits, "iree"], logits[bits, "native"], atol=1e-4)
    far = float(kl_divergence(logits[16, "iree"][None], logits[8, "iree"][None]).max())
    assert 1e-9 < far < 5e-2


def test_other_numbers_of_bits_are_refused(tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "m.gguf")
    with pytest.raises(InputError, match="activations of 4 bits; there are 16, 8"):
        ggufc.export(path, tmp_path / "b", activations=4)
    assert not (tmp_path / "b").exists()
