"""The element types of KV caches: what they cost in precision, and that every executor means the same by them."""

from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc.backends.caches import chosen_kv
from ggufc.frontend.errors import InputError
from ggufc.graph.model import open_model

from ..oracle import kl_divergence
from ..tiny_models import tiny_gemma3

IDS = list(range(5, 45))
WINDOW = 8


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kv")
    return tiny_gemma3(folder / "m.gguf", heads=4, kv_heads=2, head_dim=64, window=WINDOW, types={"*": "q8_0"})


def logits(path: Path, backend: str, kv: str, exact: bool = False) -> np.ndarray:
    """Of a prompt past the window, and of three tokens after it."""
    session = ggufc.load(path, backend, threads=2, kv=kv, exact=exact)
    return np.stack([session.prefill(IDS).copy(), *(session.decode(token).copy() for token in (7, 3, 9))])


@pytest.mark.parametrize(
    ("backend", "exact"), [("native", True), ("native", False), pytest.param("iree", False, marks=pytest.mark.slow)]
)
def test_smaller_caches_cost_little(
    path: Path, backend: str, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    wanted = logits(path, "native", "f32", exact=True)
    for kv, most in (("f16", 1e-5), ("q8_0", 1e-2)):
        found = logits(path, backend, kv, exact)
        assert 0 < kl_divergence(wanted, found).mean() < most


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["f16", "q8_0"])
def test_the_portable_module_means_the_same_by_them(path: Path, kv: str) -> None:
    """Exact arithmetic differs from XLA's in so few last bits that hardly a value is rounded to another."""
    assert kl_divergence(logits(path, "native", kv, exact=True), logits(path, "xla", kv)).mean() < 1e-5


def test_what_is_chosen_where_nobody_asks(path: Path, tmp_path: Path) -> None:
    quantized = open_model(path).graph
    assert chosen_kv(quantized) == "f16"
    assert chosen_kv(quantized, exact=True) == "f32"
    assert chosen_kv(quantized, "q8_0", exact=True) == "q8_0"
    assert chosen_kv(open_model(tiny_gemma3(tmp_path / "f32.gguf")).graph) == "f32"


def test_heads_that_are_no_whole_blocks(tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "m.gguf", head_dim=16)
    with pytest.raises(InputError, match="no q8_0 KV cache for heads of 16 elements: wanted a multiple of 32"):
        ggufc.load(path, "native", kv="q8_0")
