"""What a definition says, as a tree of frozen values."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Number:
    """A literal."""

    value: float | int


@dataclass(frozen=True)
class Text:
    """A quoted word, to be compared with a text of the file by `when ... is`."""

    value: str
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Name:
    """A parameter, or a name that the layer's kind gives."""

    name: str
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Call:
    """An operator (`+ - * /`, unary `-` as `neg`) or one of `FUNCTIONS` over expressions."""

    function: str
    arguments: tuple["Expression", ...]


Expression = Number | Text | Name | Call


def names_of(expression: Expression) -> set[str]:
    """The names that an expression reads."""
    return {name.name for name in names_in(expression)}


def names_in(expression: Expression) -> Iterator[Name]:
    """The same names where they stand, from left to right."""
    pending = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, Name):
            yield part
        elif isinstance(part, Call):
            pending += reversed(part.arguments)


@dataclass(frozen=True)
class Parameter:
    """`name key = default [only values]` (from the file), or `name = expression [when other is literal]` (derived).

    `only` are the values that the definition can do, a name being the parameter's; a file with another one is refused.
    Empty: any.
    """

    name: str
    key: str | None
    default: Expression | None
    condition: tuple[str, int | float | str] | None
    line: int
    only: tuple[int | float | str | Name, ...] = ()


@dataclass(frozen=True)
class Condition:
    """One selector over layers: `function` of SELECTORS with its argument (an expression or a tensor name)."""

    selector: str
    argument: "Expression | TensorRef | None"


@dataclass(frozen=True)
class TensorRef:
    """Tensor names of the GGUF, the first that is present being meant; `{i}` stands for the layer."""

    names: tuple[str, ...]
    optional: bool = False
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class LayerKind:
    """A kind of layer: chosen where all conditions hold, giving `values` to the steps of its blocks."""

    name: str
    conditions: tuple[Condition, ...]  # empty: otherwise
    values: tuple[tuple[str, Expression | TensorRef], ...]
    line: int


@dataclass(frozen=True)
class Reference:
    """The newest result of this name; with `layer`, that of an earlier layer whose number the parameter gives."""

    name: str
    layer: str | None = None
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Step:
    """`result = operation values, tensors, attributes, [shape]`. A tensor may be a name that the layer's kind gives."""

    result: str
    operation: str
    values: tuple[Reference, ...]
    tensors: tuple[TensorRef | Name, ...]
    attributes: tuple[tuple[str, Expression | str], ...]
    shape: tuple[Expression, ...] | None
    line: int
    column: int = field(default=1, compare=False)  # of the operation


@dataclass(frozen=True)
class Block:
    """Steps of the layers that are of all these kinds; of every layer, if there are none."""

    kinds: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class ArchDef:
    """One parsed definition. `sha256` is that of its text: provenance, shown and written to the manifest."""

    name: str
    kind: Literal["decoder", "encoder"]
    parameters: tuple[Parameter, ...]
    layer_kinds: tuple[tuple[LayerKind, ...], ...]  # a layer is of one kind of each tuple
    prologue: tuple[Step, ...]
    blocks: tuple[Block, ...]
    epilogue: tuple[Step, ...]
    embedding: tuple[Step, ...]  # in the epilogue's place where an embedding is wanted; none: the model gives none
    ignore: tuple[TensorRef, ...]
    words: int  # of the text, comments left out: what bounds the work of a layer
    text: str = field(repr=False)
    sha256: str
    source: str

    def block(self, kinds: tuple[str, ...]) -> tuple[Step, ...]:
        """The steps of a layer of these kinds: those of all blocks that mean it, in the order of the file."""
        return tuple(step for block in self.blocks if set(block.kinds) <= set(kinds) for step in block.steps)

    def tensors(self) -> Iterator[TensorRef]:
        """Whatever its kinds of layers give, and its steps read."""
        kinds = (kind for choice in self.layer_kinds for kind in choice)
        yield from (value for kind in kinds for _, value in kind.values if isinstance(value, TensorRef))
        sections = (self.prologue, *(block.steps for block in self.blocks), self.epilogue, self.embedding)
        steps = (step for section in sections for step in section)
        yield from (tensor for step in steps for tensor in step.tensors if isinstance(tensor, TensorRef))


SELECTORS: dict[str, Literal["number", "tensor"]] = {
    "every": "number",  # the last of each N layers: (i + 1) % N == 0
    "first_of_every": "number",  # the first of each N layers: i % N == 0
    "first": "number",  # the first N layers
    "last": "number",  # the last N layers
    "where": "number",  # the (per-layer) value is not zero
    "without": "number",  # the (per-layer) value is zero
    "pattern": "number",  # an array of flags as it is; a period N means every layer but the last of each N
    "pattern_first": "number",  # the same, the period's full layer being its first
    "with": "tensor",  # the layer has this tensor
}
"""Selectors over layers and what each takes. A line may join several by `and`."""
PERIODS = ("every", "first_of_every")
"""Those whose number is of layers in turn, and so isn't 0."""
