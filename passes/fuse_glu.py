"""Gated feed-forward: two products of the same rows and their gate become one operation."""

from dataclasses import dataclass

from ..graph.ir import Graph, Op
from ..graph.ops import GATES, make
from .peephole import Neighbours, rewrite


@dataclass(frozen=True)
class FuseGlu:
    """Before: `mul(act(linear(%x, @gate)), linear(%x, @up))`, in either order, with weights of one type and shape.
    After: `glu(%x, @gate, @up)`, which computes both a part at a time and writes only what the next product reads.
    """

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, _match)


def _match(op: Op, at: Neighbours) -> Op | None:
    if op.name != "mul":
        return None
    for gated, other in (op.operands, op.operands[::-1]):
        act, up = at.maker(gated, *GATES), at.maker(other, "linear")
        gate = at.maker(act.operands[0], "linear") if act else None
        if act and gate and up and gate.operands[0] == up.operands[0] and gate.attributes == up.attributes:
            (w_gate,), (w_up,) = gate.weights, up.weights
            if w_gate.type == w_up.type:
                operands = (gate.operands[0], w_gate, w_up)
                return make("glu", operands, op.result.name, op.note, act=act.name, **dict(up.attributes))
    return None
