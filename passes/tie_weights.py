"""One weight, one global: a reference to an absent tensor becomes one to the tensor that stands in for it."""

from dataclasses import dataclass, replace

from ..graph.ir import Graph, Operand, Weight


@dataclass(frozen=True)
class TieWeights:
    """Before: `@output.weight or @token_embd.weight`. After: `@token_embd.weight`, like every other use of it."""

    def __call__(self, graph: Graph) -> Graph:
        def tie(operand: Operand) -> Operand:
            if isinstance(operand, Weight) and operand.tied_to:
                return Weight(operand.tied_to, operand.type)
            return operand

        return replace(graph, ops=tuple(op.with_operands(tie) for op in graph.ops))
