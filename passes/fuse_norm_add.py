"""A norm whose result is added to the residual stream is done in that addition."""

from dataclasses import dataclass

from ..graph.ir import Graph, Op
from ..graph.ops import make
from .peephole import Neighbours, rewrite


@dataclass(frozen=True)
class FuseNormAdd:
    """Before: `add(%x, rms_norm(%a, @n))`, in either order. After: `norm_add(%a, %x, @n)`."""

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, _match)


def _match(op: Op, at: Neighbours) -> Op | None:
    if op.name != "add":
        return None
    for operand, other in (op.operands[::-1], op.operands):
        norm = at.maker(operand, "rms_norm")
        if norm and norm.weights:
            operands = (norm.operands[0], other, *norm.weights)
            return make("norm_add", operands, op.result.name, op.note, **dict(norm.attributes))
    return None
