"""Lowers a definition over a model to a graph: the run without a cache, from which passes make the entry points."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..frontend.archdef import ArchDef, Name, Step, TensorRef, nearest
from ..frontend.errors import InputError, UnsupportedError
from ..frontend.gguf import TensorInfo
from ..frontend.hyperparameters import Hyperparameters, Line, Scalar, evaluate_expression
from ..frontend.operations import OPERATIONS
from .ir import Attribute, Graph, Op, Operand, Value, Weight
from .ops import WEIGHT_TYPES, RuleError, infer
from .types import TensorType
from .verify import verify


def build(definition: ArchDef, hyperparameters: Hyperparameters, tensors: Mapping[str, TensorInfo], path: str) -> Graph:
    """The graph `@forward(%tokens: i32[T]) -> f32[T, vocabulary]`.

    Args:
        definition: the architecture.
        hyperparameters: its parameters for this model.
        tensors: the model's tensors by name.
        path: the model's file, for errors.

    Raises:
        InputError: a step reads a name before it is set, a tensor is missing or has another shape than the step wants,
            the file has tensors that the definition never touches.
        UnsupportedError: a tensor has a type that this build can't compute with.
    """
    builder = _Builder(definition, tensors, path)
    scalars = {n: v for n, v in hyperparameters.values.items() if not isinstance(v, tuple)}
    for step in definition.prologue:
        builder.step(step, scalars, None, "prologue")
    for layer in hyperparameters.layers:
        for step in definition.block(layer.kind):
            builder.step(step, layer.values, layer.index, f"layer {layer.index}, {layer.kind}")
    for step in definition.epilogue:
        builder.step(step, scalars, None, "epilogue")
    builder.check_untouched(len(hyperparameters.layers))
    result = builder.names[definition.epilogue[-1].result]
    return verify(Graph("forward", (builder.tokens,), tuple(builder.ops), (result,)))


@dataclass
class _Builder:
    definition: ArchDef
    tensors: Mapping[str, TensorInfo]
    path: str
    ops: list[Op] = field(default_factory=list)
    names: dict[str, Value] = field(default_factory=dict)
    touched: set[str] = field(default_factory=set)
    tokens: Value = field(default_factory=lambda: Value("tokens", TensorType("i32", ("T",))))

    def __post_init__(self) -> None:
        self.names["tokens"] = self.tokens

    def step(self, step: Step, values: Mapping[str, Scalar], layer: int | None, note: str) -> None:
        """Appends the operations of one step and binds its result."""
        where = Line(self.definition.source, step.line, self.path)
        operands = [self._value(name, where) for name in step.values]
        weights, skip = self._weights(step, layer, where)
        if skip:
            # a step whose optional tensor is absent vanishes: its result is its first value
            self.names[step.result] = operands[0]
            return
        attributes = self._attributes(step, operands, weights, values, where)
        if step.operation == "softcap" and attributes["cap"] == 0:
            self.names[step.result] = operands[0]
            return
        bias = weights.pop() if step.operation == "linear" and len(weights) > 1 else None
        value = self._append(step.operation, (*operands, *weights), attributes, note, where)
        if bias:
            value = self._append("bias", (value, bias), {}, note, where)
        self.names[step.result] = value

    def _append(
        self, name: str, operands: tuple[Operand, ...], attributes: dict[str, Attribute], note: str, where: Line
    ) -> Value:
        try:
            type_ = infer(name, operands, attributes)
        except RuleError as error:
            tensor = next((f"tensor {o.name!r} " for o in operands if isinstance(o, Weight)), "")
            raise where.error(f"{name}: {tensor}{error}") from None
        result = Value(str(len(self.ops)), type_)
        self.ops.append(Op(name, operands, tuple(sorted(attributes.items())), result, note))
        return result

    def _value(self, name: Name, where: Line) -> Value:
        if name.name not in self.names:
            raise where.error(f"{name.name!r} is read before it is set{nearest(name.name, self.names)}", name.column)
        return self.names[name.name]

    def _weights(self, step: Step, layer: int | None, where: Line) -> tuple[list[Weight], bool]:
        """The tensors of a step, and whether the step vanishes since an optional first tensor is absent."""
        weights: list[Weight] = []
        signature = OPERATIONS[step.operation]
        for n, reference in enumerate(step.tensors):
            names = [self._in_layer(name, layer, where, reference) for name in reference.names]
            present = [name for name in names if name in self.tensors]
            if present:
                weights.append(self._weight(names[0], present[0], where, reference))
            elif not reference.optional:
                missing = " or ".join(map(repr, names))
                hint = nearest(names[0], self.tensors)
                raise where.error(f"the model has no tensor {missing}{hint}", reference.column)
            elif n < len(signature.tensors) or signature.vanishes:
                return [], True
        return weights, False

    def _in_layer(self, name: str, layer: int | None, where: Line, reference: TensorRef) -> str:
        if "{i}" not in name:
            return name
        if layer is None:
            message = f"tensor {name!r} has '{{i}}' outside the block, where no layer is meant"
            raise where.error(message, reference.column)
        return name.replace("{i}", str(layer))

    def _weight(self, first: str, present: str, where: Line, reference: TensorRef) -> Weight:
        tensor = self.tensors[present]
        self.touched.add(present)
        if tensor.type.name not in WEIGHT_TYPES:
            raise UnsupportedError(
                f"{self.path}: tensor {present!r} has type {tensor.type.name}, which this build can't compute with; "
                f"it can {', '.join(WEIGHT_TYPES)}"
            )
        return Weight(first, TensorType(tensor.type.name, tensor.shape), present if first != present else None)

    def _attributes(
        self,
        step: Step,
        operands: list[Value],
        weights: list[Weight],
        values: Mapping[str, Scalar],
        where: Line,
    ) -> dict[str, Attribute]:
        given = dict(step.attributes)
        attributes: dict[str, Attribute] = {}
        for attribute in OPERATIONS[step.operation].attributes:
            expression = given.get(attribute.name)
            if expression is None:
                assert attribute.default is not None
                attributes[attribute.name] = attribute.default
            elif isinstance(expression, str):
                attributes[attribute.name] = expression
            else:
                attributes[attribute.name] = self._number(evaluate_expression(expression, values, where), where)
        if step.operation == "linear":
            attributes["shape"] = self._shape(step, weights, values, where)
        if step.operation == "rope":
            attributes["dims"] = self._head_dim(operands[0])
        return {k: float(v) if k in _FLOATS and isinstance(v, int) else v for k, v in attributes.items()}

    def _shape(self, step: Step, weights: list[Weight], values: Mapping[str, Scalar], where: Line) -> tuple[int, ...]:
        if step.shape is None:
            return (int(weights[0].type.shape[0]),)
        dims = [evaluate_expression(e, values, where) for e in step.shape]
        for dim in dims:
            if not isinstance(dim, int) or not 0 < dim < 2**31:
                raise where.error(f"a dimension of the shape is {dim!r}, wanted a whole number above 0")
        return tuple(dims)  # type: ignore[arg-type] # all are int

    def _head_dim(self, value: Value) -> int:
        dim = value.type.shape[-1]
        assert isinstance(dim, int)
        return dim

    def _number(self, value: Scalar, where: Line) -> float | int:
        if isinstance(value, str):
            raise where.error(f"the text {value!r} stands where a number is wanted")
        return value

    def check_untouched(self, layers: int) -> None:
        """A tensor that no step reads would be left out of the result in silence, so it is refused."""
        ignorable = {
            name.replace("{i}", str(i)) for ref in self.definition.ignore for name in ref.names for i in range(layers)
        }
        rest = [name for name in self.tensors if name not in self.touched and name not in ignorable]
        if rest:
            more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
            raise InputError(
                f"{self.path}: tensor {rest[0]!r}{more} is in the file, but {self.definition.source} never reads it: "
                "the definition is for another model, or the tensor belongs in its section 'ignore'"
            )


_FLOATS = frozenset(("eps", "base", "scale", "cap", "by"))
