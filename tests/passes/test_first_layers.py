"""A model cut short: the first layers, and what stands behind the last."""

from pathlib import Path

import pytest
from ggufc.frontend.errors import InputError
from ggufc.graph.model import open_model
from ggufc.passes import pipeline
from ggufc.passes.first_layers import FirstLayers, first_layers, layer_outputs

from ..tiny_models.variants import DECODERS


@pytest.mark.parametrize("name", ["llama-experts", "gemma4", "glm4-nextn", "lfm2-window", "smollm3"])
def test_every_length_is_a_model(name: str, tmp_path: Path) -> None:
    model = open_model(DECODERS[name].write(tmp_path / "m.gguf"))
    layers = len(model.hyperparameters.layers)
    assert list(layer_outputs(model.graph)) == list(range(layers))
    operations = []
    for count in range(1, layers + 1):
        cut = first_layers(model, count)
        operations.append(len(cut.graph.ops))
        assert cut.graph.results[0].type == model.graph.results[0].type
        named = {op.note for op in cut.graph.ops if op.note.startswith("layer")}
        assert {note.split(",")[0] for note in named} <= {f"layer {n}" for n in range(count)}
        assert pipeline.fused(pipeline.prefill(cut.graph, "f32")).results
    assert operations == sorted(set(operations)) and operations[-1] == len(model.graph.ops)


def test_the_stream_behind_a_layer(tmp_path: Path) -> None:
    model = open_model(DECODERS["qwen3"].write(tmp_path / "m.gguf"))
    stream = FirstLayers(2, epilogue=False)(model.graph)
    assert stream.results == (layer_outputs(model.graph)[1],)
    assert "output_norm.weight" not in stream.weights()


@pytest.mark.parametrize("count", [0, 4, -1])
def test_other_numbers_of_layers_are_refused(count: int, tmp_path: Path) -> None:
    model = open_model(DECODERS["qwen3"].write(tmp_path / "m.gguf"))
    with pytest.raises(InputError, match=f"{count} layers: wanted a number from 1 to 3"):
        first_layers(model, count)
