"""A norm that only products read becomes part of each: it costs them nothing, and a pass over memory is saved."""

from dataclasses import dataclass

from ..graph.ir import Graph, Op
from ..graph.ops import make
from .peephole import Neighbours, rewrite

_INTO = {"linear": "norm_linear", "glu": "norm_glu"}


@dataclass(frozen=True)
class FuseNormLinear:
    """Before: `linear(rms_norm(%x, @n), @w)`, where only `linear` and `glu` read the norm's result.
    After: `norm_linear(%x, @n, @w)`, and `norm_glu` likewise.
    """

    def __call__(self, graph: Graph) -> Graph:
        return rewrite(graph, _match)


def _match(op: Op, at: Neighbours) -> Op | None:
    if op.name not in _INTO:
        return None
    norm = at.maker_for_all(op.operands[0], "rms_norm", tuple(_INTO))
    if norm is None or not norm.weights or len(norm.result.type.shape) != 2:
        return None
    operands = (norm.operands[0], *norm.weights, *op.weights)
    attributes = dict(norm.attributes) | dict(op.attributes)
    return make(_INTO[op.name], operands, op.result.name, op.note, **attributes)
