"""The memory plan against what sessions and kernels really take."""

from pathlib import Path

import ggufc
import pytest
from ggufc.backends.native.program import lower
from ggufc.backends.reports.costs import caches_of
from ggufc.backends.reports.memory import lengths, plan, predicted_speed, scratch_bytes
from ggufc.graph.model import open_model
from ggufc.passes import pipeline

from ...tiny_models import Sizes, tiny_model


@pytest.mark.parametrize("architecture", ["gemma3", "lfm2"])
def test_caches_are_what_a_session_takes_at_the_end_of_its_context(architecture: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m.gguf", architecture, Sizes(layers=7, context=700, head_dim=32), window=8)
    model = open_model(path)
    found = plan(model)
    for kv in ("f32", "f16", "q8_0"):
        session = ggufc.load(path, "native", threads=1, kv=kv)
        session.prefill([5] * 512)
        session.prefill([5] * 187)
        assert session.cache_bytes() == found["caches"][kv][700]
    assert found["weights"] == sum(tensor.nbytes for tensor in model.file.tensors.values())
    assert caches_of(model, "f32")


def test_scratch_is_near_what_the_kernels_take(tmp_path: Path) -> None:
    """They keep products' inputs as INT8 too, and reuse memory in whole buffers."""
    model = open_model(tiny_model(tmp_path / "m.gguf", "llama", Sizes(layers=2), types={"*": "q8_0"}))
    graph = pipeline.fused(pipeline.prefill(model.graph, "f16"))
    for tokens in (16, 512):
        planned = scratch_bytes(graph, tokens)
        assert planned <= lower(graph, tokens, model.file.tensor_bytes, False).arena_bytes <= 3 * planned
    assert scratch_bytes(graph, 512) > 20 * scratch_bytes(graph, 16)


def test_a_model_that_is_cut_short_is_planned_as_such(tmp_path: Path) -> None:
    from ggufc.passes.first_layers import first_layers

    model = open_model(tiny_model(tmp_path / "m.gguf", "qwen3", Sizes(layers=3)))
    whole, cut = plan(model), plan(first_layers(model, 1))
    assert cut["weights"] < whole["weights"]
    assert 3 * cut["caches"]["f32"][model.context_length] == whole["caches"]["f32"][model.context_length]


def test_the_predicted_speed_falls_with_the_context(tmp_path: Path) -> None:
    model = open_model(tiny_model(tmp_path / "m.gguf", "qwen3", Sizes(layers=2, context=4096)))
    assert lengths(4096) == [512, 2048, 4096] and lengths(512) == [512] and lengths(7) == [7]
    found = predicted_speed(model, "f32", 1, lengths(4096))
    speeds = list(found["decode_tok_s"].values())
    assert speeds == sorted(speeds, reverse=True) and 0.5 < found["read_gb_s"] < 2000
