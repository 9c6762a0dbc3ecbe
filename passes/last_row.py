"""Only the last position's logits are read in prefill: computes the rest of the network for that row alone."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Op, Operand, Value, fresh_names
from ..graph.ops import OPS, make


@dataclass(frozen=True)
class LastRow:
    """Before: the first result has a row for every token. After: it has one, the last, and every row-wise operation
    that serves only it is done for that row alone; `last_row` stands where the two meet.
    """

    def __call__(self, graph: Graph) -> Graph:
        narrow = _needed_for_last_row_only(graph)
        names = fresh_names(graph)
        last: dict[Value, Value] = {}
        ops: list[Op] = []

        def of_last(operand: Operand) -> Operand:
            if not isinstance(operand, Value):
                return operand
            if operand not in last:
                op = make("last_row", (operand,), next(names))
                ops.append(op)
                last[operand] = op.result
            return last[operand]

        for op in graph.ops:
            if op.result in narrow:
                operands = tuple(of_last(o) for o in op.operands)
                new = make(op.name, operands, op.result.name, op.note, **dict(op.attributes))
                last[op.result] = new.result
                ops.append(new)
            else:
                ops.append(op)
        logits = of_last(graph.results[0])
        assert isinstance(logits, Value)
        return replace(graph, ops=tuple(ops), results=(logits, *graph.results[1:]))


def _needed_for_last_row_only(graph: Graph) -> set[Value]:
    """Results of row-wise operations of which only the last row is read."""
    all_rows: set[Value] = set(graph.results[1:])
    narrow: set[Value] = set()
    for op in reversed(graph.ops):
        # what reads token ids or chosen experts stays whole: only rows of floats are cut
        row_wise = OPS[op.name].row_wise and all(v.type.dtype == "f32" for v in (op.result, *op.values))
        if op.result in all_rows or not row_wise:
            all_rows.update(op.values)
        else:
            narrow.add(op.result)
    return narrow
