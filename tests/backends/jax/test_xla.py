"""The portable module on XLA: llama.cpp says whether the logits are right."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from ggufc.backends.sessions import rings

from ...oracle import Reference, dequantized_copy, kl_divergence
from ..conftest import TinyCase

IDS = [2, *range(265, 305), 17, 40, 5, *range(280, 300)]


@pytest.fixture(autouse=True)
def short_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of at most 16 tokens, so that the rings of the window of 8 have 24 rows and go round more than once."""
    monkeypatch.setattr(rings, "CHUNK", 16)
    monkeypatch.setattr(rings, "FIRST_ROWS", 64)


@pytest.mark.parametrize("name", ["tiny_f32", pytest.param("tiny_quantized", marks=pytest.mark.slow)])
def test_logits_are_those_of_llama_cpp(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case: TinyCase = request.getfixturevalue(name)
    judge = case.path
    if name == "tiny_quantized":
        judge = tmp_path / "exact.gguf"
        dequantized_copy(case.path, judge)
    session = case.session("xla")
    found = [session.prefill(IDS[:40]), *(session.decode(token) for token in IDS[40:])]
    with Reference(judge) as reference:
        wanted = reference.logits(IDS, last=len(IDS) - 39)
    found = np.stack(found)
    assert np.abs(found - wanted).max() < 0.03  # llama.cpp's GELU is a table of float16
    assert kl_divergence(wanted, found).max() < 1e-4
    np.testing.assert_array_equal(found.argmax(-1), wanted.argmax(-1))


def test_the_way_tokens_are_fed_changes_nothing(tiny_f32: TinyCase) -> None:
    whole = tiny_f32.session("xla").prefill(IDS)
    session = tiny_f32.session("xla")
    cuts = [0, 8, 24, 25, 33, 49, 57, 58, 59, 60, 61, 62, 63, 64]
    chunked = [session.prefill(IDS[start:end]) for start, end in pairwise(cuts)]
    session = tiny_f32.session("xla")
    decoded = [session.decode(token) for token in IDS]
    np.testing.assert_allclose(chunked[-1], whole, atol=1e-4)
    np.testing.assert_allclose(decoded[-1], whole, atol=1e-4)
