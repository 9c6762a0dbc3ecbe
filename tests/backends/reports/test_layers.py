"""The layer where two executors part is found, wherever it is."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import pytest
from ggufc.backends.bundles.check import check_bundle
from ggufc.backends.reports import layers
from ggufc.backends.reports.layers import EXECUTORS, Layers
from ggufc.graph.model import Model, open_model

from ...tiny_models.variants import DECODERS, ENCODERS, Variant

PROMPTS = [[3, 17, 40, 8, 21], [9, 9, 30, 2, 5]]
FAULTY = "faulty"


def written(variant: Variant, folder: Path) -> Model:
    return open_model(variant.write(folder / "m.gguf", types={"*": "q8_0"}, large=True))


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return written(DECODERS["gemma3"], tmp_path)


@dataclass(frozen=True)
class Changed:
    """A file in which a tensor has other bytes."""

    file: Any
    name: str

    def tensor_bytes(self, name: str) -> np.ndarray:
        raw = self.file.tensor_bytes(name)
        return raw[::-1].copy() if name == self.name else raw


@pytest.mark.parametrize("variant", [DECODERS["gemma3"], ENCODERS["gemma-embedding"]], ids=["decoder", "encoder"])
@pytest.mark.parametrize("layer", [0, 3, 6])
def test_a_fault_is_found_in_its_layer(
    layer: int, variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = written(variant, tmp_path)

    def faulty(model: Model, *rest: Any) -> Any:
        changed: Any = Changed(model.file, f"blk.{layer}.attn_norm.weight")
        return EXECUTORS["native"](replace(model, file=changed), *rest)

    monkeypatch.setitem(layers.EXECUTORS, FAULTY, faulty)
    probe = Layers(model, PROMPTS, 1, lambda stage: None)
    assert probe.first_difference("native", "native exact", 2e-2) is None
    assert probe.first_difference(FAULTY, "native exact", 2e-2) == layer


@pytest.mark.slow
def test_executors_agree_behind_every_layer(model: Model) -> None:
    probe = Layers(model, PROMPTS, 1, lambda stage: None)
    for count in (1, probe.count):
        assert probe.difference("xla", "native exact", count) < 1e-4
        assert probe.difference("iree", "native", count) < 1e-4
        assert 1e-6 < probe.difference("iree", "native exact", count) < 2e-2


@pytest.mark.slow
def test_a_bundle_that_is_cut_short_runs_on_every_backend(tmp_path: Path) -> None:
    path = DECODERS["qwen3"].write(tmp_path / "m.gguf")
    bundle = ggufc.export(path, tmp_path / "cut", layers=2, weights="irpa")
    assert bundle.manifest["layers"] == 2 and len(bundle.caches) == 4
    assert not [name for name in bundle.manifest["parameters"] if name.startswith("blk.2.")]
    assert all(check.ok for check in check_bundle(bundle))
    logits = [ggufc.load(bundle.path, backend, threads=1).prefill(PROMPTS[0]) for backend in ("iree", "native", "xla")]
    for other in logits[1:]:
        np.testing.assert_allclose(other, logits[0], atol=1e-3)
    assert np.abs(ggufc.load(path, "native", threads=1).prefill(PROMPTS[0]) - logits[0]).max() > 0.1
