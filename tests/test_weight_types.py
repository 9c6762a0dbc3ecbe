"""Models in every type that weights may have: llama.cpp's logits for the dequantized weights, on every executor."""

from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc.graph.ops import WEIGHT_TYPES

from .oracle import Reference, dequantized_copy, kl_divergence
from .tiny_models import TOKENS
from .tiny_models.variants import DECODERS

IDS = [2, *np.random.default_rng(3).integers(3, len(TOKENS), 12).tolist()]
CASE = Path(__file__).parents[2] / "shared" / "cases" / "28-bf16-and-f16-edge-values" / "input"
CASE_IDS = [1, 5, 300, 41, 7, 99]
EXACT = 2e-4


def prefilled(path: Path, backend: str, ids: list[int], exact: bool = False) -> np.ndarray:
    """The logits after all of the ids in one piece, and after them one by one."""
    session = ggufc.load(path, backend=backend, exact=exact, kv="f32")
    whole = session.prefill(ids).copy()
    session.reset()
    return np.stack([whole, [session.decode(token).copy() for token in ids][-1]])


def check(path: Path, copy: Path, ids: list[int]) -> None:
    dequantized_copy(path, copy)
    with Reference(copy) as reference:
        wanted = reference.logits(ids, 1)
    for backend in ("native", "xla"):
        assert np.abs(prefilled(path, backend, ids, backend == "native") - wanted).max() < EXACT, backend
    assert kl_divergence(wanted, prefilled(path, "native", ids)).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_every_type(name: str, tmp_path: Path) -> None:
    path = DECODERS["llama"].write(tmp_path / "model.gguf", types=name, large=True)
    check(path, tmp_path / "exact.gguf", IDS)


@pytest.mark.slow
@pytest.mark.skipif(not CASE.is_dir(), reason=f"no shared cases at {CASE}")
@pytest.mark.parametrize("name", ["bf16-wide", "f16-small"])
def test_values_at_the_edges_of_sixteen_bits(name: str, tmp_path: Path) -> None:
    """BF16 weights from 1e-30 to 1e5, which halves can't hold, and F16 weights that are subnormal."""
    check(CASE / f"{name}.gguf", tmp_path / "exact.gguf", CASE_IDS)
