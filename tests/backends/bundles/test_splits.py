"""A model in several files runs on every backend as the same model in one."""

import json
from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc import InputError
from ggufc.backends.bundles.bundle import MANIFEST
from ggufc.backends.reports.llama_cpp import LlamaCpp

from ...splitting import split_model
from ...tiny_models import tiny_gemma3

IDS = [2, 300, 301, 5, 7, 260]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gemma3(tmp_path_factory.mktemp("whole") / "tiny.gguf", layers=1)


@pytest.fixture(scope="module")
def first(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_model(model, tmp_path_factory.mktemp("split"), tensors=5)


@pytest.mark.slow
def test_its_logits_are_those_of_the_whole(first: Path, model: Path, tmp_path: Path) -> None:
    whole = ggufc.load(model, "native", threads=1).prefill(IDS)
    bundle = ggufc.export(first, tmp_path / "linked")
    files = json.loads((bundle.path / MANIFEST).read_text())["weights"]
    assert [file["name"] for file in files] == sorted(path.name for path in first.parent.iterdir())
    np.testing.assert_array_equal(ggufc.load(first, "native", threads=1).prefill(IDS), whole)
    np.testing.assert_allclose(ggufc.load(bundle.path, threads=1).prefill(IDS), whole, atol=1e-3)
    np.testing.assert_allclose(ggufc.load(bundle.path, threads=1, weights=first).prefill(IDS), whole, atol=1e-3)
    links = sorted(path for path in bundle.path.iterdir() if path.suffix == ".gguf")
    judge = LlamaCpp(links[0], 1, 32)
    np.testing.assert_allclose(judge.prefill(IDS), LlamaCpp(model, 1, 32).prefill(IDS), atol=1e-4)
    links[1].unlink()
    with pytest.raises(InputError, match=f"{links[1].name}.*--weights-file"):
        ggufc.load(bundle.path, threads=1)
    with pytest.raises(InputError, match=f"wanted the first of {len(files)} files"):
        ggufc.load(bundle.path, threads=1, weights=model)


@pytest.mark.slow
def test_a_copy_holds_every_file(first: Path, tmp_path: Path) -> None:
    bundle = ggufc.export(first, tmp_path / "copied", copy_weights=True)
    for original, size in ((path, path.stat().st_size) for path in sorted(first.parent.iterdir())):
        copy = bundle.path / original.name.replace(first.name.split("-0")[0], "model")
        assert not copy.is_symlink() and copy.stat().st_size == size
    again = ggufc.export(first, bundle.path)  # what it replaces is its own
    assert all(path.is_symlink() for path in again.path.glob("*.gguf"))
