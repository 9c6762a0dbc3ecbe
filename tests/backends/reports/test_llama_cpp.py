"""llama.cpp as an engine: a prompt of any length that the context holds."""

from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc.backends.reports.llama_cpp import LlamaCpp

from ...tiny_models import TOKENS, Sizes, tiny_gemma3, tiny_model


def test_a_prompt_may_be_longer_than_one_call(tmp_path: Path) -> None:
    """llama.cpp aborts the process on more than its batch of 2048; however fed, the answer is the same."""
    pytest.importorskip("xllamacpp", reason="llama.cpp's package is not installed")
    engine = LlamaCpp(tiny_gemma3(tmp_path / "model.gguf", layers=2, context=4096), 2, 3010)
    ids = np.random.default_rng(0).integers(5, len(TOKENS), 3000).tolist()
    whole = engine.prefill(ids)
    engine.reset()
    pieces = [engine.prefill(ids[start : start + 1000]) for start in range(0, 3000, 1000)]
    np.testing.assert_allclose(whole, pieces[-1], atol=0.05)
    engine.close()


def test_an_encoder_gives_what_it_pools(tmp_path: Path) -> None:
    """Each text anew, of any length that the context holds."""
    pytest.importorskip("xllamacpp", reason="llama.cpp's package is not installed")
    path = tiny_model(tmp_path / "model.gguf", "bert", Sizes(layers=1, heads=2, kv_heads=2))
    engine = LlamaCpp(path, 1, 64, embeds=True)
    ids = np.random.default_rng(0).integers(5, len(TOKENS), 64).tolist()
    found = [engine.embed(ids[:n]) for n in (64, 7, 64)]
    engine.close()
    wanted = ggufc.load(path, "native", threads=1, exact=True).embed(ids)
    np.testing.assert_allclose(found[0], wanted, atol=1e-2)
    np.testing.assert_array_equal(found[0], found[2])
    assert np.abs(found[0] - found[1]).max() > 0.1
