"""The graph: single assignment values, weights of the file, operations in order.

Everything is frozen. A pass builds a new graph; values are compared by name and type.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from .types import TensorType

Attribute = int | float | str | tuple[int, ...]


@dataclass(frozen=True)
class Value:
    """The result of an operation or an argument of the graph; `name` is unique in its graph."""

    name: str
    type: TensorType

    def __str__(self) -> str:
        return f"%{self.name}"


@dataclass(frozen=True)
class Weight:
    """A tensor of the GGUF. `tied_to` names the tensor that stands in for one that the file doesn't have."""

    name: str
    type: TensorType
    tied_to: str | None = None

    @property
    def stored_name(self) -> str:
        """The name that it has in the file."""
        return self.tied_to or self.name


Operand = Value | Weight


@dataclass(frozen=True)
class Origin:
    """The step of a definition that an operation was made of: its file, line, column, and what it is to set."""

    source: str
    line: int
    column: int
    result: str
    operation: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}: {self.result} = {self.operation}"


@dataclass(frozen=True)
class Op:
    """One operation. `note` (layer and kind, for people), `origin` and `layer` say where it came from; the latter are
    None where a pass made it, and a layer is None outside of the blocks."""

    name: str
    operands: tuple[Operand, ...]
    attributes: tuple[tuple[str, Attribute], ...]  # sorted by name
    result: Value
    note: str = ""
    origin: Origin | None = field(default=None, compare=False)
    layer: int | None = field(default=None, compare=False)

    def attribute(self, name: str) -> Attribute:
        """The value of an attribute that the operation's rule guarantees."""
        return dict(self.attributes)[name]

    @property
    def line(self) -> int:
        """That of the definition, 0 where a pass made it."""
        return self.origin.line if self.origin else 0

    @property
    def values(self) -> tuple[Value, ...]:
        """The operands that are values of the graph."""
        return tuple(o for o in self.operands if isinstance(o, Value))

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The operands that are tensors of the file."""
        return tuple(o for o in self.operands if isinstance(o, Weight))

    def with_operands(self, change: Callable[[Operand], Operand]) -> "Op":
        """The same operation with every operand put through `change`."""
        operands = tuple(change(o) for o in self.operands)
        return self if operands == self.operands else replace(self, operands=operands)


@dataclass(frozen=True)
class Graph:
    """One entry point: arguments, operations in an order in which each value is set before it is read, results."""

    name: str
    arguments: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]

    def weights(self) -> dict[str, Weight]:
        """Every tensor of the file that the graph reads, once, in order of first use."""
        found: dict[str, Weight] = {}
        for op in self.ops:
            for weight in op.weights:
                found.setdefault(weight.name, weight)
        return found

    def argument(self, name: str) -> Value:
        """The argument of this name."""
        return next(a for a in self.arguments if a.name == name)

    def caches(self) -> tuple[Value, ...]:
        """The arguments that carry state from call to call, in order; results 1.. are their new values."""
        return tuple(a for a in self.arguments if a.name not in ("tokens", "position"))


def tensor_behind(value: Value, made: Mapping[Value, Op]) -> Weight | None:
    """The last matrix on the way to a value, along first operands, which gives its shape; vectors leave it as it is.

    `made` has the operation that gives each value.
    """
    while value in made:
        op = made[value]
        matrices = [weight for weight in op.weights if len(weight.type.shape) > 1]
        if matrices:
            return matrices[0]
        value = op.values[0]
    return None


def fresh_names(graph: Graph) -> Iterator[str]:
    """Names of values that the graph doesn't use yet."""
    taken = {a.name for a in graph.arguments} | {op.result.name for op in graph.ops}
    n = len(graph.ops)
    while True:
        if str(n) not in taken:
            yield str(n)
        n += 1


def renumber(graph: Graph) -> Graph:
    """The same graph with results named %0, %1, ... in order, so that equal graphs print alike."""
    names: dict[Value, Value] = {a: a for a in graph.arguments}
    for n, op in enumerate(graph.ops):
        names[op.result] = Value(str(n), op.result.type)

    def new(operand: Operand) -> Operand:
        return names[operand] if isinstance(operand, Value) else operand

    ops = tuple(replace(op.with_operands(new), result=names[op.result]) for op in graph.ops)
    return replace(graph, ops=ops, results=tuple(names[r] for r in graph.results))
