"""Lowers a definition over a model to a graph: the run without a cache, from which passes make the entry points."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..frontend.archdef.tree import ArchDef, Expression, Name, Reference, Step, TensorRef
from ..frontend.errors import InputError, UnsupportedError
from ..frontend.gguf.file import TensorInfo
from ..frontend.hyperparameters import Hyperparameters, Line, Scalar, evaluate_expression, whole
from ..frontend.near import nearest
from ..frontend.operations import OPERATIONS, WHOLE
from .ir import Attribute, Graph, Op, Operand, Origin, Value, Weight, tensor_behind
from .ops import MAX_WHOLE, OWN_TYPES, WEIGHT_TYPES, RuleError, infer
from .types import TensorType
from .verify import verify

MAX_OPS = 2**16
"""Operations of a graph, some ten times those of the largest models."""


@dataclass(frozen=True)
class Built:
    """A graph, and the tensors of the file that no step reads though they are neither ignored nor of further blocks."""

    graph: Graph
    unread: tuple[str, ...]


def build(
    definition: ArchDef,
    hyperparameters: Hyperparameters,
    tensors: Mapping[str, TensorInfo],
    path: str,
    embedding: bool = False,
) -> Built:
    """The graph `@forward(%tokens: i32[T]) -> f32[T, vocabulary]`, or of what else the definition ends with.

    Args:
        definition: the architecture.
        hyperparameters: its parameters for this model.
        tensors: the model's tensors by name.
        path: the model's file, for errors.
        embedding: end with the definition's section `embedding` instead of its epilogue.

    Raises:
        InputError: a step reads a name before it is set, a tensor is missing or has another shape than the step wants.
        UnsupportedError: a tensor has a type that this build can't compute with.
    """
    builder = _Builder(definition, tensors, path)
    scalars = {n: v for n, v in hyperparameters.values.items() if not isinstance(v, tuple)}
    builder.steps(definition.prologue, _Scope("prologue", scalars))
    carried, lost_before = dict(builder.names), set(builder.vanished)
    for layer in hyperparameters.layers:
        note = ", ".join([f"layer {layer.index}", *layer.kinds])
        builder.steps(definition.block(layer.kinds), _Scope(note, layer.values, layer.tensors, layer.index))
        builder.layers.append(builder.names)
        # a block's own names end with it; those of the prologue go on with their newest values
        builder.names = {name: builder.names[name] for name in carried}
        builder.vanished &= lost_before
    end = definition.embedding if embedding else definition.epilogue
    builder.steps(end, _Scope("embedding" if embedding else "epilogue", scalars))
    result = builder.result(end[-1])
    builder.check_parts()
    builder.check_experts()
    graph = verify(Graph("forward", (builder.tokens,), tuple(builder.ops), (result,)))
    return Built(graph, builder.untouched(len(hyperparameters.layers), hyperparameters.blocks))


@dataclass(frozen=True)
class _Scope:
    """Where a step stands: what its expressions and its tensors' names mean there."""

    note: str
    values: Mapping[str, Scalar]
    tensors: Mapping[str, TensorRef] = field(default_factory=dict)
    layer: int | None = None


_IDENTITY: dict[str, Callable[[Mapping[str, Attribute]], bool]] = {
    "copy": lambda attributes: True,
    "softcap": lambda attributes: attributes["cap"] == 0,
    "rope": lambda attributes: attributes["dims"] == 0,
    "pool": lambda attributes: attributes["kind"] == 0,
}
"""Operations that with these attributes do nothing: no operation is made of them."""


@dataclass
class _Builder:
    definition: ArchDef
    tensors: Mapping[str, TensorInfo]
    path: str
    ops: list[Op] = field(default_factory=list)
    names: dict[str, Value] = field(default_factory=dict)
    layers: list[dict[str, Value]] = field(default_factory=list)  # the names of each finished layer
    vanished: set[str] = field(default_factory=set)  # names whose steps all wanted a tensor that is absent
    touched: set[str] = field(default_factory=set)
    tokens: Value = field(default_factory=lambda: Value("tokens", TensorType("i32", ("T",))))

    def __post_init__(self) -> None:
        self.names["tokens"] = self.tokens

    def steps(self, steps: Iterable[Step], scope: _Scope) -> None:
        """Appends the operations of steps in order, binding their results."""
        for step in steps:
            self._step(step, scope, Line(self.definition.source, step.line, self.path, step.column))

    def _step(self, step: Step, scope: _Scope, where: Line) -> None:
        lost = any(r.layer is None and r.name in self.vanished and r.name not in self.names for r in step.values)
        weights = None if lost else self._weights(step, scope, where)
        if weights is None:
            self.vanished.add(step.result)
            return
        origin = Origin(self.definition.source, step.line, step.column, step.result, step.operation)
        operands = [self._value(reference, scope, where, origin) for reference in step.values]
        attributes = self._attributes(step, operands, weights, scope, where)
        if step.operation in _IDENTITY and _IDENTITY[step.operation](attributes):
            self.names[step.result] = operands[0]
            return
        bias = weights.pop() if step.operation == "linear" and len(weights) > 1 else None
        value = self._append(step.operation, (*operands, *weights), attributes, scope, where, origin)
        if bias:
            value = self._append("bias", (value, bias), {}, scope, where, origin)
        self.names[step.result] = value

    def _append(
        self,
        name: str,
        operands: tuple[Operand, ...],
        attributes: dict[str, Attribute],
        scope: _Scope,
        where: Line,
        origin: Origin,
    ) -> Value:
        if len(self.ops) == MAX_OPS:
            raise where.error(f"more than {MAX_OPS} operations in all layers, which no model needs")
        try:
            type_ = infer(name, operands, attributes)
        except RuleError as error:
            tensor = f"tensor {error.weight.stored_name!r} " if error.weight else ""
            layer = "" if scope.layer is None else f"; in {scope.note}"
            raise where.error(f"{name}: {tensor}{error}{self._made_by(operands)}{layer}") from None
        result = Value(str(len(self.ops)), type_)
        given = tuple(sorted(attributes.items()))
        self.ops.append(Op(name, operands, given, result, scope.note, origin, scope.layer))
        return result

    def _made_by(self, operands: Iterable[Operand]) -> str:
        """The tensors that gave an operation's values their shapes, of which one may be to blame."""
        made = {op.result: op for op in self.ops}
        found = [tensor_behind(operand, made) for operand in operands if isinstance(operand, Value)]
        named = dict.fromkeys(f"tensor {w.stored_name!r} {list(w.type.shape)}" for w in found if w)
        return f" (values of {' and '.join(named)})" if named else ""

    def _value(self, reference: Reference, scope: _Scope, where: Line, origin: Origin) -> Value:
        names = self.names
        if reference.layer is not None:
            layer = self._whole(Name(reference.layer, reference.column), scope, where)
            if not isinstance(layer, int) or not 0 <= layer < len(self.layers):
                message = f"{reference.layer} is {layer!r}, wanted the number of an earlier layer"
                raise where.error(message, reference.column)
            names = self.layers[layer]
        if reference.name == "positions" and "positions" not in names:
            names["positions"] = self._append("positions", (self.tokens,), {}, scope, where, origin)
        if reference.name not in names:
            message = f"{reference.name!r} is read before it is set{nearest(reference.name, names)}"
            raise where.error(message, reference.column)
        return names[reference.name]

    def _weights(self, step: Step, scope: _Scope, where: Line) -> list[Weight] | None:
        """The tensors of a step; None where an optional one is absent without which the step vanishes."""
        found: list[tuple[str, str]] = []
        signature = OPERATIONS[step.operation]
        for n, given in enumerate(step.tensors):
            reference = scope.tensors[given.name] if isinstance(given, Name) else given
            names = [self._in_layer(name, scope.layer, where, reference) for name in reference.names]
            present = [name for name in names if name in self.tensors]
            if present:
                found.append((names[0], present[0]))
            elif not reference.optional:
                missing = " or ".join(map(repr, names))
                raise where.error(f"the model has no tensor {missing}{self._similar(names[0])}", reference.column)
            elif n < len(signature.tensors) or (signature.vanishes and n == 0):
                return None
        return [self._weight(first, present) for first, present in found]

    def _similar(self, name: str) -> str:
        """A hint of the tensor that is meant: one of the same layer that nothing has read yet, else any of it, or of
        the model."""
        same = [tensor for tensor in self.tensors if _block(tensor) == _block(name)]
        unread = [tensor for tensor in same if tensor not in self.touched]
        return next(filter(None, (nearest(name, tensors) for tensors in (unread, same, self.tensors))), "")

    def _in_layer(self, name: str, layer: int | None, where: Line, reference: TensorRef) -> str:
        if "{i}" not in name:
            return name
        if layer is None:
            message = f"tensor {name!r} has '{{i}}' outside the block, where no layer is meant"
            raise where.error(message, reference.column)
        return name.replace("{i}", str(layer))

    def _weight(self, first: str, present: str) -> Weight:
        tensor = self.tensors[present]
        self.touched.add(present)
        if not tensor.shape:
            raise InputError(f"{self.path}: tensor {present!r} has no dimension, wanted a vector or a matrix")
        if tensor.type.name not in (*WEIGHT_TYPES, *OWN_TYPES):
            raise UnsupportedError(
                f"{self.path}: tensor {present!r} has type id {tensor.type.id} ({tensor.type.name}), "
                f"which this build can't compute with; it can {', '.join(WEIGHT_TYPES)}"
            )
        return Weight(first, TensorType(tensor.type.name, tensor.shape), present if first != present else None)

    def _attributes(
        self, step: Step, operands: list[Value], weights: list[Weight], scope: _Scope, where: Line
    ) -> dict[str, Attribute]:
        given = dict(step.attributes)
        attributes: dict[str, Attribute] = {}
        for attribute in OPERATIONS[step.operation].attributes:
            expression = given.get(attribute.name)
            if expression is None:
                assert attribute.default is not None
                default = operands[0].type.shape[-1] if attribute.default == WHOLE else attribute.default
                if isinstance(default, str):  # a symbol, as of the tokens
                    raise where.error(f"{step.operation}: takes rows of numbers, found {operands[0].type}")
                attributes[attribute.name] = default
            elif isinstance(expression, str):
                attributes[attribute.name] = expression
            else:
                value = self._scalar(expression, scope, where)
                if isinstance(value, str):
                    raise where.error(f"{attribute.name} is the text {value!r}, wanted a number")
                attributes[attribute.name] = float(value) if attribute.kind == "number" else whole(value)
        if OPERATIONS[step.operation].shaped:
            attributes["shape"] = self._shape(step, weights, scope, where)
        return attributes

    def _shape(self, step: Step, weights: list[Weight], scope: _Scope, where: Line) -> tuple[int, ...]:
        if step.shape is None:
            return (int(weights[0].type.shape[0]),)
        dims: list[int] = []
        for expression in step.shape:
            dim = self._whole(expression, scope, where)
            if not isinstance(dim, int) or not 0 < dim <= MAX_WHOLE:
                raise where.error(f"a dimension of the shape is {dim!r}, wanted a whole number from 1 to {MAX_WHOLE}")
            dims.append(dim)
        return tuple(dims)

    def _scalar(self, expression: Expression, scope: _Scope, where: Line) -> Scalar:
        return evaluate_expression(expression, scope.values, where)

    def _whole(self, expression: Expression, scope: _Scope, where: Line) -> Scalar:
        value = self._scalar(expression, scope, where)
        return value if isinstance(value, str) else whole(value)

    def result(self, last: Step) -> Value:
        """What the last step gives.

        Raises:
            InputError: nothing, for it vanished with an optional tensor; or no numbers, such as the tokens themselves.
        """
        where = Line(self.definition.source, last.line, self.path, last.column)
        if last.result not in self.names:
            raise where.error(
                f"{last.result!r} is the result, and isn't there: this step, or what it reads, vanishes without an "
                "optional tensor that the model hasn't"
            )
        value = self.names[last.result]
        if value.type.dtype != "f32":
            raise where.error(f"{last.result!r} is the result, and is {value.type}, wanted f32")
        return value

    def check_experts(self) -> None:
        """What chooses an expert chooses among as many as there are, or one could be read that the file hasn't.

        Raises:
            InputError: a tensor of another number of experts; it names both.
        """
        made = {op.result: op for op in self.ops}
        for op in self.ops:
            if op.name not in ("expert_linear", "expert_gain", "route"):
                continue
            choice = made[op.values[1]]  # a top_k, which alone gives numbers of experts
            wanted = choice.values[0].type.row_size
            found = int(op.weights[0].type.shape[0]) if op.weights else op.values[0].type.row_size
            if found != wanted:
                named = f"tensor {op.weights[0].stored_name!r} has" if op.weights else "the logits are of"
                among = f"that are chosen among{self._made_by([choice.result])}"
                raise self._fault(op, f"{named} {found} experts, wanted the {wanted} {among}")

    def check_parts(self) -> None:
        """What no step takes of a value that is taken in parts would be left out of the result in silence.

        Raises:
            InputError: there are such elements; it names the step and the tensor that gives them.
        """
        readers: defaultdict[Value, list[Op]] = defaultdict(list)
        for op in self.ops:
            for value in op.values:
                readers[value].append(op)
        for op in self.ops:
            found = readers[op.result]
            taken = {reader.name for reader in found}
            if taken == {"part"}:
                self._check_covered(op, found)
            elif taken == {"half"} and len(numbers := {reader.attribute("number") for reader in found}) == 1:
                message = f"no step takes half {0 if 1 in numbers else 1} of the last axis"
                raise self._fault(op, f"{message}{self._made_by([op.result])}")

    def _check_covered(self, whole: Op, parts: Iterable[Op]) -> None:
        size, end = whole.result.type.row_size, 0
        for start, count in sorted([*((p.attribute("start"), p.result.type.row_size) for p in parts), (size, 0)]):
            assert isinstance(start, int)
            if start > end:
                message = f"no step takes elements {end} to {start} of the {size} of each row"
                raise self._fault(whole, f"{message}{self._made_by([whole.result])}")
            end = max(end, start + count)

    def _fault(self, op: Op, message: str) -> InputError:
        """What is wrong with an operation, with its step and layer."""
        layer = "" if op.layer is None else f"; in {op.note}"
        return InputError(f"{op.origin}: {message}{layer} (model {self.path})")

    def untouched(self, layers: int, blocks: int) -> tuple[str, ...]:
        """The tensors that no step reads: those of the section `ignore`, and of blocks that the definition doesn't run,
        aside."""
        ignorable = {
            name.replace("{i}", str(i)) for ref in self.definition.ignore for name in ref.names for i in range(layers)
        }
        read = self.touched | ignorable
        return tuple(name for name in self.tensors if name not in read and not layers <= _block(name) < blocks)


def _block(tensor: str) -> int:
    """The number in `blk.N.`, -1 for a tensor of no block."""
    prefix, _, rest = tensor.partition(".")
    number = rest.partition(".")[0]
    return int(number) if prefix == "blk" and re.fullmatch("0|[1-9][0-9]{0,5}", number) else -1
