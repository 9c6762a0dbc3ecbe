"""Fixes the number of tokens in a call, as in decode, where it is one."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Op, Operand, Value
from ..graph.types import TensorType


@dataclass(frozen=True)
class SetTokens:
    """After: the symbol `T` is `tokens` everywhere."""

    tokens: int = 1

    def __call__(self, graph: Graph) -> Graph:
        def value(v: Value) -> Value:
            shape = tuple(self.tokens if d == "T" else d for d in v.type.shape)
            return Value(v.name, TensorType(v.type.dtype, shape))

        def operand(o: Operand) -> Operand:
            return value(o) if isinstance(o, Value) else o

        def op(o: Op) -> Op:
            return replace(o.with_operands(operand), result=value(o.result))

        return Graph(
            graph.name,
            tuple(value(a) for a in graph.arguments),
            tuple(op(o) for o in graph.ops),
            tuple(value(r) for r in graph.results),
        )
