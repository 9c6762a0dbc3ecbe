"""What a definition makes of a model, line by line, and what it says for nothing."""

from collections.abc import Iterator
from typing import Any

from ..frontend.archdef.tree import ArchDef, Expression, Name, Parameter, Step, TensorRef, names_of
from .ir import Op
from .model import Model


def outline(definition: ArchDef, model: Model) -> dict[str, Any]:
    """Where each parameter, kind and step stands in the definition and what it came to, ready for JSON.

    Returns:
        `source`, `sha256`, `architecture` and `kind`; `parameters` with their values (a list: one for each layer);
        `layer_kinds` with the numbers of the layers that are of each; `steps` with their tensors, the number of
        operations that were made of each and the type of the first one's result (null: the step vanished, or is only
        another name); `ignored`, the tensors of the file that the definition leaves out, and `unread_tensors`, those
        that it doesn't know; `unread_keys`, the architecture's keys in the file that no parameter asks for; `unread`,
        the lines of `report`.
    """
    return {
        "source": definition.source,
        "sha256": definition.sha256,
        "architecture": definition.name,
        "kind": definition.kind,
        "parameters": [_parameter(parameter, model) for parameter in _first_lines(definition).values()],
        "layer_kinds": [
            {
                "line": kind.line,
                "kind": kind.name,
                "layers": [layer.index for layer in model.hyperparameters.layers if kind.name in layer.kinds],
            }
            for choice in definition.layer_kinds
            for kind in choice
        ],
        "steps": list(_outlined_steps(definition, model)),
        "ignored": sorted(model.file.tensors.keys() - tensors_read(model) - set(model.unread)),
        "unread_tensors": list(model.unread),
        "unread_keys": _unread_keys(definition, model),
        "unread": report(definition, model),
    }


def _parameter(parameter: Parameter, model: Model) -> dict[str, Any]:
    value = model.hyperparameters.values[parameter.name]
    given = {"line": parameter.line, "name": parameter.name, "key": parameter.key}
    return given | {"value": list(value) if isinstance(value, tuple) else value}


def _first_lines(definition: ArchDef) -> dict[str, Parameter]:
    """Each parameter's first line; `when` may replace its value in later ones."""
    first: dict[str, Parameter] = {}
    for parameter in definition.parameters:
        first.setdefault(parameter.name, parameter)
    return first


def _outlined_steps(definition: ArchDef, model: Model) -> Iterator[dict[str, Any]]:
    made: dict[int, list[Op]] = {}
    for op in _operations(model):
        made.setdefault(op.line, []).append(op)
    for section, step in _steps(definition):
        ops = [op for op in made.get(step.line, ()) if op.name == step.operation]
        yield {
            "line": step.line,
            "section": section,
            "result": step.result,
            "operation": step.operation,
            "tensors": [t.name if isinstance(t, Name) else " | ".join(t.names) for t in step.tensors],
            "operations": len(ops),
            "type": str(ops[0].result.type) if ops else None,
        }


def _unread_keys(definition: ArchDef, model: Model) -> list[str]:
    """Those without a tensor show in nothing else when they are forgotten: a scale, a cap on the logits."""
    own = f"{definition.name}."
    read = {own + parameter.key for parameter in definition.parameters if parameter.key}
    return sorted(key for key in model.file.metadata if key.startswith(own) and key not in read)


def _operations(model: Model) -> Iterator[Op]:
    """Those of the run to the logits, and of the run to an embedding where it goes another way at the end."""
    yield from model.graph.ops
    if model.embedding and model.embedding is not model.graph:
        shared = {op.line for op in model.graph.ops}
        yield from (op for op in model.embedding.ops if op.line not in shared)


def tensors_read(model: Model) -> set[str]:
    """The names in the file of the tensors that some operation reads."""
    return {weight.stored_name for op in _operations(model) for weight in op.weights}


def report(definition: ArchDef, model: Model) -> list[str]:
    """One line for each parameter, value of a kind, and step that has no effect, in the order of the file.

    Args:
        definition: the architecture.
        model: a model of it. A step is reported if no layer of this model reads what it gives; one that makes no
            operation (`copy`, a `softcap` of 0) is a name and costs nothing, so it isn't.
    """
    unread = [*_unread_parameters(definition), *_unread_values(definition), *_unread_steps(definition, model)]
    return [f"{definition.source}:{line}:1: {message}" for line, message in sorted(unread)]


def _unread_parameters(definition: ArchDef) -> Iterator[tuple[int, str]]:
    """A parameter that only its own later lines read (`factor = 1 when factor is 0`) is unread."""
    read = {"layers"} | _read_by_kinds(definition) | _read_by_steps(definition)
    for parameter in definition.parameters:
        read |= _read_by_parameter(parameter) - {parameter.name}
        if parameter.only:  # it has served when the file was let through
            read.add(parameter.name)
    for name, parameter in _first_lines(definition).items():
        if name not in read:
            key = f" (key {parameter.key!r})" if parameter.key else ""
            yield parameter.line, f"parameter {name!r}{key} is never read"


def _unread_values(definition: ArchDef) -> Iterator[tuple[int, str]]:
    read = _read_by_kinds(definition) | _read_by_steps(definition)
    for choice in definition.layer_kinds:
        for name, _ in choice[0].values:
            if name not in read:
                yield choice[0].line, f"value {name!r} of these kinds is never read"


def _unread_steps(definition: ArchDef, model: Model) -> Iterator[tuple[int, str]]:
    steps = {step.line: step for _, step in _steps(definition)}
    made: set[int] = set()
    read: set[int] = set()
    for graph in filter(None, (model.graph, model.embedding)):
        used = {value for op in graph.ops for value in op.values} | set(graph.results)
        made |= {op.line for op in graph.ops}
        read |= {op.line for op in graph.ops if op.result in used}
    for line in made - read:
        step = steps[line]
        yield line, f"{step.result!r} = {step.operation} is never read"


def _steps(definition: ArchDef) -> Iterator[tuple[str, Step]]:
    """Every step with its section's heading, in the order in which sections run."""
    sections = [("prologue", definition.prologue)]
    sections += [(" ".join(("block", *block.kinds)), block.steps) for block in definition.blocks]
    sections += [("epilogue", definition.epilogue), ("embedding", definition.embedding)]
    for heading, steps in sections:
        for step in steps:
            yield heading, step


def _read_by_parameter(parameter: Parameter) -> set[str]:
    asked = {parameter.condition[0]} if parameter.condition else set()
    return _names(parameter.default) | asked | {value.name for value in parameter.only if isinstance(value, Name)}


def _read_by_kinds(definition: ArchDef) -> set[str]:
    read: set[str] = set()
    for kind in (kind for choice in definition.layer_kinds for kind in choice):
        for given in (*(c.argument for c in kind.conditions), *(value for _, value in kind.values)):
            read |= _names(given)
    return read


def _read_by_steps(definition: ArchDef) -> set[str]:
    read: set[str] = set()
    for _, step in _steps(definition):
        read |= {tensor.name for tensor in step.tensors if isinstance(tensor, Name)}
        read |= {value.layer for value in step.values if value.layer}
        for expression in (*(value for _, value in step.attributes), *(step.shape or ())):
            read |= _names(expression)
    return read


def _names(given: Expression | TensorRef | str | None) -> set[str]:
    return set() if given is None or isinstance(given, (TensorRef, str)) else names_of(given)
