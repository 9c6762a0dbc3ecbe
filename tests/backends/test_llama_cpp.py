"""llama.cpp as an engine: a prompt of any length that the context holds."""

from pathlib import Path

import numpy as np
import pytest
from ggufc.backends.llama_cpp import LlamaCpp

from ..tiny_models import TOKENS, tiny_gemma3


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
