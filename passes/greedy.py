"""Greedy decoding wants the likeliest token, not the logits."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Op, Value, fresh_names
from ..graph.ops import make


@dataclass(frozen=True)
class Greedy:
    """Before: the first result are logits. After: it is the number of the largest in each row, the first of equals.
    What keeps the order of the logits (`softcap`, `scale` by more than 0) is not done before.
    """

    def __call__(self, graph: Graph) -> Graph:
        makers = {op.result: op for op in graph.ops}
        logits = graph.results[0]
        while logits in makers and _keeps_order(makers[logits]):
            logits = makers[logits].values[0]
        op = make("argmax", (logits,), next(fresh_names(graph)))
        return replace(graph, ops=(*graph.ops, op), results=(op.result, *graph.results[1:]))


def _keeps_order(op: Op) -> bool:
    by: Value | object = dict(op.attributes).get("by")
    return op.name == "softcap" or (op.name == "scale" and isinstance(by, (int, float)) and by > 0)
