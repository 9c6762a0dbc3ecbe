"""A model cut short for debugging: the first layers, then what stands behind the last."""

from dataclasses import dataclass, replace

from ..frontend.errors import InputError
from ..graph.ir import Graph, Operand, Value
from ..graph.model import Model
from .dce import EliminateDeadCode


@dataclass(frozen=True)
class FirstLayers:
    """Before: operations know their layers, as those that the builder made do. After: whatever read the last layer's
    output reads that of layer `count - 1`, and what only later layers needed is gone. Without `epilogue` that output is
    the graph's result.
    """

    count: int
    epilogue: bool = True

    def __call__(self, graph: Graph) -> Graph:
        outputs = layer_outputs(graph)
        output, last = outputs[self.count - 1], outputs[max(outputs)]

        def shorter(operand: Operand) -> Operand:
            return output if operand == last else operand

        # what makes `last` reads other values, so the change touches its readers alone
        ops = tuple(op.with_operands(shorter) for op in graph.ops)
        results = graph.results if self.epilogue else (output,)
        return EliminateDeadCode()(replace(graph, ops=ops, results=results))


def layer_outputs(graph: Graph) -> dict[int, Value]:
    """What each layer hands on: the last of its values that an operation outside of it reads."""
    layer_of = {op.result: op.layer for op in graph.ops}
    outputs: dict[int, Value] = {}
    read_outside = set(graph.results)
    for op in graph.ops:
        read_outside |= {value for value in op.values if layer_of.get(value) != op.layer}
    for value, layer in layer_of.items():
        if layer is not None and value in read_outside:
            outputs[layer] = value
    return outputs


def first_layers(model: Model, count: int | None) -> Model:
    """The model with no more than its first `count` layers; None leaves it whole.

    Raises:
        InputError: it has fewer, or none are wanted.
    """
    if count is None:
        return model
    layers = model.hyperparameters.layers
    if not 1 <= count <= len(layers):
        raise InputError(
            f"{model.file.path}: {count} layers: wanted a number from 1 to {len(layers)}, as many as it has"
        )
    cut = FirstLayers(count)
    return replace(
        model,
        graph=cut(model.graph),
        embedding=model.embedding and cut(model.embedding),
        hyperparameters=replace(model.hyperparameters, layers=layers[:count]),
    )
