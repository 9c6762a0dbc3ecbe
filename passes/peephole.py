"""What the passes that fuse operations have in common: a look at an operation and at what made its operands."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ..graph.ir import Graph, Op, Operand, Value


class Neighbours:
    """Who made and who reads the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._makers = {op.result: op for op in graph.ops}
        self._readers: dict[Value, list[Op]] = {}
        for op in graph.ops:
            for value in dict.fromkeys(op.values):
                self._readers.setdefault(value, []).append(op)
        self._reads = Counter(value for op in graph.ops for value in op.values)
        self._reads.update(graph.results)

    def maker(self, operand: Operand, *names: str) -> Op | None:
        """The operation that made a value, if it is one of these and the value is read once: it may be absorbed."""
        op = self._makers.get(operand) if isinstance(operand, Value) else None
        return op if op and op.name in names and self._reads[op.result] == 1 else None

    def maker_for_all(self, operand: Operand, name: str, readers: tuple[str, ...]) -> Op | None:
        """The operation `name` that made a value, if all that read it are of these names: each may absorb it."""
        op = self._makers.get(operand) if isinstance(operand, Value) else None
        if op is None or op.name != name or self._reads[op.result] != len(self._readers[op.result]):
            return None
        return op if all(reader.name in readers for reader in self._readers[op.result]) else None


def rewrite(graph: Graph, match: Callable[[Op, Neighbours], Op | None]) -> Graph:
    """The graph with every operation for which `match` gives another one replaced by it, in its place and under its
    result's name. What it absorbed is read by nobody any more, which is for dead code elimination to see."""
    neighbours = Neighbours(graph)
    return replace(graph, ops=tuple(match(op, neighbours) or op for op in graph.ops))
