"""The values of a definition's parameters for one GGUF, and the kind of each of its layers."""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .archdef.tree import (
    PERIODS,
    ArchDef,
    Call,
    Condition,
    Expression,
    LayerKind,
    Name,
    Number,
    Parameter,
    TensorRef,
    Text,
    names_of,
)
from .errors import InputError, UnsupportedError
from .gguf.file import described
from .near import nearest

Scalar = int | float | str
Value = Scalar | tuple[int | float, ...]  # a tuple holds one value per layer

MAX_LAYERS = 4096
MAX_TEXT = 256
MAX_WORK = 2**20
"""Words of a definition times layers: the largest of today's models need a twentieth of it."""
ABSOLUTE = ("general.", "tokenizer.")  # keys that are not under the architecture's prefix


@dataclass(frozen=True)
class Layer:
    """One layer: its index, its kinds, and what its steps may name: parameters, `i`, and what the kinds give."""

    index: int
    kinds: tuple[str, ...]
    values: Mapping[str, Scalar]
    tensors: Mapping[str, TensorRef]


@dataclass(frozen=True)
class Hyperparameters:
    """`values` by parameter name; `layers` in order; `blocks` those of the file, which may be more than are run."""

    values: Mapping[str, Value]
    layers: tuple[Layer, ...]
    blocks: int


def evaluate(
    definition: ArchDef, metadata: Mapping[str, Any], has_tensor: Callable[[str], bool], path: str
) -> Hyperparameters:
    """Gives every parameter its value from the file's `metadata` and every layer its kind.

    Raises:
        InputError: a key is missing, of another type, or of another length than the number of layers; an expression
            has no value (division by zero); no kind fits.
    """
    values: dict[str, Value] = {}
    at = _Place(definition.source, path)
    count = 0
    for parameter in definition.parameters:
        where = at.line(parameter.line)
        if parameter.condition is not None:
            subject, literal = parameter.condition
            if subject not in values:
                raise where.error(f"'when' names {subject!r}, which has no value yet{nearest(subject, values)}")
            if not _equals(values[subject], subject, literal, where):
                continue
        value = values[parameter.name] = _parameter(parameter, definition.name, metadata, values, where)
        if parameter.name == "layers":
            count = values["layers"] = _layer_count(value, where)
        _check_work(definition, max(count, len(value) if isinstance(value, tuple) else 0), where)
    blocks = _block_count(definition.name, metadata, count, path)
    for parameter in definition.parameters:
        value = values[parameter.name]
        if isinstance(value, tuple) and len(value) != blocks:
            key = _full_key(parameter.key or "", definition.name)
            raise at.line(parameter.line).error(f"key {key!r} has {len(value)} values, wanted one per block, {blocks}")
        if isinstance(value, tuple) and count > blocks:
            message = f"{parameter.name!r} has a value for each of {blocks} blocks, and 'layers' is {count}"
            raise at.line(parameter.line).error(message)
    layers = tuple(_layer(i, count, definition, values, has_tensor, at) for i in range(count))
    return Hyperparameters(values, layers, blocks)


def evaluate_expression(expression: Expression, values: Mapping[str, Scalar], where: "Line") -> Scalar:
    """The value of an expression whose names are all scalars.

    Raises:
        InputError: an unknown name, a text in arithmetic, a division by zero, a result that is no finite number.
    """
    if isinstance(expression, (Number, Text)):
        return expression.value
    if isinstance(expression, Name):
        if expression.name not in values:
            message = f"no value {expression.name!r} here; one per layer is none{nearest(expression.name, values)}"
            raise where.error(message, expression.column)
        return values[expression.name]
    arguments = [evaluate_expression(a, values, where) for a in expression.arguments]
    return _apply(expression, arguments, where)


def _equals(value: Value, name: str, literal: float | str, where: "Line") -> bool:
    """Whether a parameter is what `when` asks for.

    Raises:
        InputError: it has a value for each block, or is a text where a number is asked for, or the other way round.
    """
    if isinstance(value, tuple):
        raise where.error(f"'when' asks for {name!r}, which has a value for each block")
    if isinstance(value, str) != isinstance(literal, str):
        raise where.error(f"{name!r} is {value!r}, and 'when' asks whether it is {literal!r}")
    return value == literal


@dataclass(frozen=True)
class Line:
    """A line of a definition, met while it is applied to the model at `path`."""

    source: str
    number: int
    path: str
    column: int = 1

    def error(self, message: str, column: int | None = None) -> InputError:
        return InputError(f"{self.source}:{self.number}:{column or self.column}: {message} (model {self.path})")


@dataclass(frozen=True)
class _Place:
    source: str
    path: str

    def line(self, number: int) -> Line:
        return Line(self.source, number, self.path)


def _full_key(key: str, architecture: str) -> str:
    return key if key.startswith(ABSOLUTE) else f"{architecture}.{key}"


def _parameter(
    parameter: Parameter, architecture: str, metadata: Mapping[str, Any], values: Mapping[str, Value], where: Line
) -> Value:
    if parameter.default is not None and not names_of(parameter.default):
        evaluate_expression(parameter.default, {}, where)  # a mistake in a constant is one in every model
    if parameter.key is not None:
        key = _full_key(parameter.key, architecture)
        if key in metadata:
            value = _from_file(metadata[key], key, where)
            allowed = [values[v.name] if isinstance(v, Name) else v for v in parameter.only]
            own = value if isinstance(value, tuple) else (value,)
            if allowed and value not in allowed and any(v not in allowed for v in own):
                for name in (v.name for v in parameter.only if isinstance(v, Name)):
                    _check_size(name, values[name], where)
                found, wanted = repr(metadata[key]), " or ".join(str(v)[:80] for v in allowed)
                place = f"{where.source} can do {wanted} alone (line {where.number})"
                raise UnsupportedError(f"{where.path}: key {key!r} is {found[:80]}; {place}")
            return value
        if parameter.default is None:
            message = f"the file has no key {key!r}, which {architecture} needs for {parameter.name!r}"
            raise where.error(f"{message}{nearest(key, metadata)}")
    assert parameter.default is not None
    return _map_layers(parameter.default, values, where)


def _check_size(name: str, value: Value, where: Line) -> None:
    """Whether what another key must be equal to is a size at all."""
    for one in value if isinstance(value, tuple) else (value,):
        size = whole(one) if isinstance(one, (int, float)) else one
        if not isinstance(size, int) or size < 1:
            raise where.error(f"{name!r} comes out as {size!r}, wanted a whole number from 1: keys don't fit together")


def _from_file(value: Any, key: str, where: Line) -> Value:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iufb":
        if len(value) > MAX_LAYERS:
            raise where.error(f"key {key!r} has {len(value)} values, wanted a number or one per layer")
        numbers = tuple(v.item() for v in value) if value.dtype.kind != "b" else tuple(int(v) for v in value)
    elif isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise where.error(f"key {key!r} holds a text of {len(value)} characters, wanted a number or a word")
        return value
    elif isinstance(value, (bool, np.bool_)):
        numbers = (int(value),)
    elif isinstance(value, (int, float)):
        numbers = (value,)
    elif isinstance(value, np.number):
        numbers = (value.item(),)
    else:
        raise where.error(f"key {key!r} holds {type(value).__name__}, wanted a number, a text, or numbers per layer")
    if not all(math.isfinite(n) for n in numbers):
        raise where.error(f"key {key!r} is not a finite number")
    return numbers if isinstance(value, np.ndarray) else numbers[0]


def whole(value: int | float) -> int | float:
    """A whole number as an int, whatever the file stores it as; another number as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _layer_count(value: Value, where: Line) -> int:
    count = whole(value) if isinstance(value, (int, float)) else value
    if not isinstance(count, int) or not 1 <= count <= MAX_LAYERS:
        found = f"{len(value)} values" if isinstance(value, tuple) else repr(value)
        raise where.error(f"'layers' is {found}, wanted a whole number from 1 to {MAX_LAYERS}")
    return count


def _check_work(definition: ArchDef, layers: int, where: Line) -> None:
    if definition.words * layers > MAX_WORK:
        message = f"{definition.words} words for each of {layers} layers are more than {MAX_WORK}, which no model needs"
        raise where.error(message)


def _block_count(architecture: str, metadata: Mapping[str, Any], layers: int, path: str) -> int:
    """Blocks of the file; of a file that doesn't say, the layers."""
    key = f"{architecture}.block_count"
    value = metadata.get(key, layers)
    count = value.item() if isinstance(value, np.number) else value
    count = whole(count) if isinstance(count, float) else count
    if not isinstance(count, int) or not 0 <= count <= MAX_LAYERS:
        raise InputError(f"{path}: key {key!r} is {described(count)}, wanted a whole number up to {MAX_LAYERS}")
    return count


def _map_layers(expression: Expression, values: Mapping[str, Value], where: Line) -> Value:
    """Evaluates once, or once per layer where a name in the expression has a value per layer."""
    columns = {n: v for n in names_of(expression) if isinstance(v := values.get(n), tuple)}
    if not columns:
        return evaluate_expression(expression, values, where)  # type: ignore[arg-type] # no tuples are named
    count = min(map(len, columns.values()))
    rows = (ChainMap({n: v[i] for n, v in columns.items()}, values) for i in range(count))  # type: ignore[dict-item]
    return tuple(_number(evaluate_expression(expression, row, where), where) for row in rows)  # type: ignore[arg-type]


def _number(value: Scalar, where: Line) -> int | float:
    if isinstance(value, str):
        raise where.error(f"the text {value!r} stands where a number is wanted")
    return value


def _divide(a: float, b: float) -> float | int:
    if isinstance(a, int) and isinstance(b, int) and a % b == 0:
        return a // b
    return a / b


_FUNCTIONS: dict[str, Callable[..., float | int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "neg": lambda a: -a,
    "sqrt": math.sqrt,
    "log": math.log,
    "floor": math.floor,
    "min": min,
    "max": max,
}


def _apply(call: Call, arguments: list[Scalar], where: Line) -> Scalar:
    numbers = [_number(a, where) for a in arguments]
    try:
        result = _FUNCTIONS[call.function](*numbers)
    except ZeroDivisionError:
        divisor = call.arguments[1]
        named = f": {divisor.name!r} is 0" if isinstance(divisor, Name) else ""
        raise where.error(f"division by zero{named}") from None
    except (ValueError, OverflowError):
        raise where.error(f"{call.function} has no value for {', '.join(map(str, numbers))}") from None
    if not math.isfinite(result) or abs(result) > 2**63:
        raise where.error(f"{call.function} of {', '.join(map(str, numbers))} is out of range")
    return result


def _layer(
    index: int,
    count: int,
    definition: ArchDef,
    values: Mapping[str, Value],
    has_tensor: Callable[[str], bool],
    at: _Place,
) -> Layer:
    own: dict[str, Scalar] = {n: v[index] if isinstance(v, tuple) else v for n, v in values.items()}
    own["i"] = index
    tensors: dict[str, TensorRef] = {}
    kinds: list[str] = []
    for choice in definition.layer_kinds:
        for kind in choice:
            where = at.line(kind.line)
            if all(_holds(c, index, count, own, values, has_tensor, where) for c in kind.conditions):
                kinds.append(kind.name)
                _give(kind, own, tensors, where)
                break
    return Layer(index, tuple(kinds), own, tensors)


def _give(kind: LayerKind, own: dict[str, Scalar], tensors: dict[str, TensorRef], where: Line) -> None:
    """Adds what a kind gives; its expressions see parameters and what earlier choices gave."""
    given: dict[str, Scalar] = {}
    for name, value in kind.values:
        if name in own or name in tensors:
            raise where.error(f"{name!r} has a value already, a kind can't give it another")
        if isinstance(value, TensorRef):
            tensors[name] = value
        else:
            given[name] = evaluate_expression(value, own, where)
    own.update(given)


_SELECT: dict[str, Callable[[int, int, float, bool], bool]] = {
    "every": lambda i, count, n, per_layer: (i + 1) % n == 0,
    "first_of_every": lambda i, count, n, per_layer: i % n == 0,
    "first": lambda i, count, n, per_layer: i < n,
    "last": lambda i, count, n, per_layer: i >= count - n,
    "where": lambda i, count, n, per_layer: n != 0,
    "without": lambda i, count, n, per_layer: n == 0,
    # llama.cpp's set_swa_pattern (src/llama-hparams.cpp); an array of flags is taken as it is
    "pattern": lambda i, count, n, per_layer: n != 0 if per_layer else n == 0 or i % n < n - 1,
    "pattern_first": lambda i, count, n, per_layer: n != 0 if per_layer else n == 0 or i % n != 0,
}


def _holds(
    condition: Condition,
    index: int,
    count: int,
    own: Mapping[str, Scalar],
    values: Mapping[str, Value],
    has_tensor: Callable[[str], bool],
    where: Line,
) -> bool:
    if isinstance(condition.argument, TensorRef):
        return any(has_tensor(n.replace("{i}", str(index))) for n in condition.argument.names)
    assert condition.argument is not None
    value = whole(_number(evaluate_expression(condition.argument, own, where), where))
    per_layer = any(isinstance(values.get(n), tuple) for n in names_of(condition.argument))
    least = int(condition.selector in PERIODS)
    counts = least or (condition.selector not in ("where", "without") and not per_layer)
    if counts and (not isinstance(value, int) or value < least):
        raise where.error(f"{condition.selector} takes a whole number from {least}, found {value!r}")
    return _SELECT[condition.selector](index, count, value, per_layer)
