"""Checks that a graph is well formed; every pass leaves one that is."""

from .ir import Graph, Op, Value, Weight
from .ops import RuleError, infer


class VerifyError(Exception):
    """A graph breaks a rule of the IR: a fault of the builder or of a pass, not of the user's file."""


def verify(graph: Graph, before: Graph | None = None) -> Graph:
    """Returns the graph, or says what is wrong with it. Of an operation that stands in `before`, a verified graph, only
    its place is looked at.

    Raises:
        VerifyError: a name set twice or read before it is set, an operand of another type than its definition, a
            result whose type is not the one that its rule infers, one weight under two types.
    """
    known: dict[str, Value] = {}
    weights: dict[str, Weight] = {}
    for argument in graph.arguments:
        if argument.name in known:
            raise VerifyError(f"@{graph.name}: argument {argument} is there twice")
        known[argument.name] = argument
    sound = {id(op) for op in before.ops} if before else set()
    for op in graph.ops:
        where = f"@{graph.name}: {op.result} = {op.name}"
        for value in op.values:
            if known.get(value.name) != value:
                raise VerifyError(f"{where}: {value}: {value.type} is read, and {known.get(value.name)!r} is set")
        for weight in op.weights:
            if weights.setdefault(weight.name, weight) != weight:
                raise VerifyError(f"{where}: @{weight.name} is {weight.type} here, {weights[weight.name].type} before")
        if id(op) not in sound:
            _check_type(op, where)
        if op.result.name in known:
            raise VerifyError(f"{where}: the name is set twice")
        known[op.result.name] = op.result
    for result in graph.results:
        if known.get(result.name) != result:
            raise VerifyError(f"@{graph.name}: result {result}: {result.type} is never set")
    return graph


def _check_type(op: Op, where: str) -> None:
    try:
        inferred = infer(op.name, op.operands, dict(op.attributes))
    except RuleError as error:
        raise VerifyError(f"{where}: {error}") from None
    if inferred != op.result.type:
        raise VerifyError(f"{where}: the result is {op.result.type}, its operands give {inferred}")
