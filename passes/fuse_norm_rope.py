"""The norm of queries and keys is done while they are rotated."""

from dataclasses import dataclass

from ..graph.ir import Graph, Op
from ..graph.ops import make
from .peephole import Neighbours, rewrite


@dataclass(frozen=True)
class FuseNormRope:
    """Before: `rope(rms_norm(%q, @n), %position)`. After: `norm_rope(%q, %position, @n)`."""

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, _match)


def _match(op: Op, at: Neighbours) -> Op | None:
    norm = at.maker(op.operands[0], "rms_norm") if op.name == "rope" else None
    if norm is None or not norm.weights:
        return None
    operands = (norm.operands[0], *op.values[1:], *norm.weights, *op.weights)
    return make("norm_rope", operands, op.result.name, op.note, **dict(norm.attributes), **dict(op.attributes))
