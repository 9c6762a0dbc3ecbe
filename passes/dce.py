"""Dead code: operations whose result nobody reads are left out."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Op, Value


@dataclass(frozen=True)
class EliminateDeadCode:
    """After: every operation's result is read by a later operation or is a result of the graph."""

    def __call__(self, graph: Graph) -> Graph:
        live: set[Value] = set(graph.results)
        ops: list[Op] = []
        for op in reversed(graph.ops):
            if op.result in live:
                ops.append(op)
                live.update(op.values)
        return replace(graph, ops=tuple(reversed(ops)))
