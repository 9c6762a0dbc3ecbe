"""What a definition says for nothing: parameters that nothing reads, steps whose results nobody reads."""

from collections.abc import Iterator

from ..frontend.archdef import ArchDef, Expression, Name, Parameter, Step, TensorRef, names_of
from .model import Model


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
    first: dict[str, Parameter] = {}
    for parameter in definition.parameters:
        first.setdefault(parameter.name, parameter)
        read |= _read_by_parameter(parameter) - {parameter.name}
        if parameter.only:  # it has served when the file was let through
            read.add(parameter.name)
    for name, parameter in first.items():
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
    steps = {step.line: step for step in _steps(definition)}
    made: set[int] = set()
    read: set[int] = set()
    for graph in filter(None, (model.graph, model.embedding)):
        used = {value for op in graph.ops for value in op.values} | set(graph.results)
        made |= {op.line for op in graph.ops}
        read |= {op.line for op in graph.ops if op.result in used}
    for line in made - read:
        step = steps[line]
        yield line, f"{step.result!r} = {step.operation} is never read"


def _steps(definition: ArchDef) -> Iterator[Step]:
    yield from definition.prologue
    for block in definition.blocks:
        yield from block.steps
    yield from definition.epilogue
    yield from definition.embedding


def _read_by_parameter(parameter: Parameter) -> set[str]:
    return _names(parameter.default) | ({parameter.condition[0]} if parameter.condition else set())


def _read_by_kinds(definition: ArchDef) -> set[str]:
    read: set[str] = set()
    for kind in (kind for choice in definition.layer_kinds for kind in choice):
        for given in (*(c.argument for c in kind.conditions), *(value for _, value in kind.values)):
            read |= _names(given)
    return read


def _read_by_steps(definition: ArchDef) -> set[str]:
    read: set[str] = set()
    for step in _steps(definition):
        read |= {tensor.name for tensor in step.tensors if isinstance(tensor, Name)}
        read |= {value.layer for value in step.values if value.layer}
        for expression in (*(value for _, value in step.attributes), *(step.shape or ())):
            read |= _names(expression)
    return read


def _names(given: Expression | TensorRef | str | None) -> set[str]:
    return set() if given is None or isinstance(given, (TensorRef, str)) else names_of(given)
