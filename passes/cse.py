"""Common subexpressions: operations with the same operands and attributes are computed once."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Op, Operand, Value


@dataclass(frozen=True)
class EliminateCommonSubexpressions:
    """After: no two operations have the same name, operands and attributes. The first one stays."""

    def __call__(self, graph: Graph) -> Graph:
        kept: dict[tuple[object, ...], Value] = {}
        renamed: dict[Operand, Operand] = {}
        ops: list[Op] = []
        for op in graph.ops:
            op = op.with_operands(lambda o: renamed.get(o, o))
            key = (op.name, op.operands, op.attributes)
            if key in kept:
                renamed[op.result] = kept[key]
            else:
                kept[key] = op.result
                ops.append(op)
        results = tuple(renamed.get(r, r) for r in graph.results)
        return replace(graph, ops=tuple(ops), results=results)  # type: ignore[arg-type] # values rename to values
