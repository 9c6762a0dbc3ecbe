"""The entry points of a model: all made from one block definition."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from ggufc.graph.ir import Graph
from ggufc.graph.model import open_model
from ggufc.graph.types import TensorType
from ggufc.graph.verify import VerifyError
from ggufc.passes import pipeline

from ..tiny_models import TOKENS


@pytest.fixture(scope="module")
def lowered(tiny_gemma3_path: Path) -> Graph:
    return open_model(tiny_gemma3_path).graph


def steps(graph: Graph) -> Counter[tuple[str, str]]:
    """How often each operation stands in each layer, without what caches need."""
    return Counter((op.note, op.name) for op in graph.ops if op.name not in ("kv_update", "last_row"))


def test_every_step_of_every_layer_is_in_every_entry_point(lowered: Graph) -> None:
    wanted = steps(lowered)
    assert wanted["layer 5, global", "attention"] == wanted["layer 6, local", "attention"] == 1
    assert steps(pipeline.forward(lowered)) == wanted
    assert steps(pipeline.prefill(lowered, "f32")) == wanted
    assert steps(pipeline.decode(lowered, "f32")) == wanted


def test_entry_points_differ_in_their_tokens_alone(lowered: Graph) -> None:
    prefill, decode = pipeline.prefill(lowered, "f16"), pipeline.decode(lowered, "f16")
    assert prefill.argument("tokens").type.shape == ("T",)
    assert decode.argument("tokens").type.shape == (1,)
    assert prefill.caches() == decode.caches()
    assert [str(cache.type) for cache in prefill.caches()[8:12]] == ["f16[S8, 2, 32]"] * 2 + ["f16[S, 2, 32]"] * 2
    for graph in (prefill, decode):
        assert [result.type for result in graph.results[1:]] == [cache.type for cache in graph.caches()]
        assert graph.results[0].type == TensorType("f32", (1, len(TOKENS)))


def test_the_tied_head_is_the_embedding_itself(lowered: Graph) -> None:
    for graph in (pipeline.forward(lowered), pipeline.prefill(lowered, "f32"), pipeline.decode(lowered, "f32")):
        users = [op.name for op in graph.ops for weight in op.weights if weight.name == "token_embd.weight"]
        assert users == ["embed", "linear"]
        assert "output.weight" not in graph.weights()


def test_only_the_last_row_goes_through_what_follows_the_last_attention(lowered: Graph) -> None:
    prefill = pipeline.prefill(lowered, "f32")
    last = max(n for n, op in enumerate(prefill.ops) if op.name == "attention")
    assert {op.result.type.shape[0] for op in prefill.ops[last + 1 :]} == {1}
    assert prefill.ops[last].result.type.shape[0] == "T"


class ForgetsTheFirst:
    """A pass that drops an operation whose result is still read."""

    def __call__(self, graph: Graph) -> Graph:
        return replace(graph, ops=graph.ops[1:])


class Fails:
    """A pass that ends in an error of its own."""

    def __call__(self, graph: Graph) -> Graph:
        raise KeyError("a name")


@pytest.mark.parametrize("step", [ForgetsTheFirst(), Fails()])
def test_a_pass_that_fails_is_named(step: pipeline.Pass, lowered: Graph) -> None:
    with pytest.raises(VerifyError, match=f"{type(step).__name__} on @"):
        pipeline.run(lowered, (*pipeline.CLEAN_UP, step))
