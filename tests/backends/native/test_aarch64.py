"""The kernels of AArch64 against gguf-py's dequantization, on an emulated machine."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ggufc.backends.native.kernels.activations import activation_width, quantize_rows
from ggufc.backends.native.kernels.embed import embed
from ggufc.backends.native.kernels.linear_many import linear_many
from ggufc.backends.native.kernels.linear_one import linear_one
from ggufc.backends.native.target import PRESETS

from ...aarch64 import Emulator, aarch64
from .blocks import PLAIN, TYPES, block_size, dequantized, random_weight, rounded

__all__ = ["aarch64"]
ROWS, TOKENS = 19, 3
SIGNED, UNSIGNED, WITH_MINIMA, OF_WORDS = "q8_0", "q6_k", "q4_k", "iq2_xs"
KINDS = {
    "aarch64": (UNSIGNED, WITH_MINIMA),
    "aarch64-dotprod": (SIGNED, UNSIGNED, WITH_MINIMA, OF_WORDS),
    "aarch64-i8mm": TYPES,
}
"""For each target the types that are tried: of all of them at least one."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kinds"), KINDS.items())
def test_products_and_embedding(name: str, kinds: Sequence[str], aarch64: Emulator, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    ids = np.array([3, 0, ROWS - 1], np.int32)
    launches, results = [], []
    for kind in kinds:
        blocks = max(1, 160 // block_size(kind)[0])
        raw, cols = random_weight(rng, kind, ROWS, blocks), blocks * block_size(kind)[0]
        x = rng.standard_normal((TOKENS, cols), np.float32)
        q = x if kind in PLAIN else np.zeros((TOKENS, activation_width(cols)), np.int16)
        many, one, rows = (np.full(s, np.nan, np.float32) for s in ((TOKENS, ROWS), ROWS, (TOKENS, cols)))
        numbers = {"tokens": TOKENS, "rows": ROWS, "cols": cols}
        if kind not in PLAIN:
            launches.append((quantize_rows(), {"x": x, "q": q}, numbers))
        launches += [
            (linear_many(kind), {"w": raw, "x": q, "y": many}, numbers),
            (linear_one(kind), {"w": raw, "x": x, "y": one}, numbers),
            (embed(kind), {"ids": ids, "w": raw, "y": rows}, numbers),
        ]
        results.append((kind, raw, x, many, one, rows))
    aarch64.launch(launches, PRESETS[name], tmp_path)
    for kind, raw, x, many, one, rows in results:
        weight = dequantized(raw, kind).astype(np.float64)
        wanted = (x if kind in PLAIN else rounded(x)).astype(np.float64) @ weight.T
        bound = 1e-5 * np.maximum(np.abs(x) @ np.abs(weight).T, np.abs(wanted).max())
        assert (np.abs(many - wanted) <= bound).all(), kind
        assert (np.abs(one - wanted[0]) <= bound[0]).all(), kind
        assert np.array_equal(rows.view(np.int32), dequantized(raw, kind)[ids].view(np.int32)), kind
