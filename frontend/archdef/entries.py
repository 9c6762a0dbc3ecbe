"""The lines of the sections: parameters, kinds of layers, steps and names of tensors."""

from ..errors import InputError
from ..near import nearest
from ..operations import OPERATIONS, Signature
from .expressions import expression, number
from .line import Line, Token
from .tree import (
    PERIODS,
    SELECTORS,
    Condition,
    Expression,
    LayerKind,
    Name,
    Number,
    Parameter,
    Reference,
    Step,
    TensorRef,
)


def parameter(line: Line) -> Parameter:
    """A line of the section 'parameters'."""
    token = line.word("the name of a parameter")
    if (name := token.text) == "i":
        raise line.error("'i' is the number of the layer, and can't be a parameter", token.column)
    if line.take("="):
        value, condition = expression(line), None
        if line.take("when"):
            subject = line.word("a parameter after 'when'").text
            line.expect("is", "after the parameter of 'when'")
            condition = (subject, _literal(line, "'is'"))
        line.end("" if condition else "when PARAMETER is VALUE")
        return Parameter(name, None, value, condition, line.number)
    key = line.word("a key of the GGUF or '='", dotted=True).text
    default = expression(line) if line.take("=") else None
    only: list[int | float | str | Name] = []
    if line.take("only"):
        only.append(_allowed(line, "'only'"))
        while line.take(","):
            only.append(_allowed(line, "','"))
    what = "further values, after commas" if only else "only VALUES" if default else "= DEFAULT, only VALUES"
    line.end(f"{what}; 'when' stands in a line of its own: {name} = VALUE when PARAMETER is VALUE")
    return Parameter(name, key, default, None, line.number, tuple(only))


def _allowed(line: Line, after: str) -> int | float | str | Name:
    if line.peek.kind == "word":
        token = line.word(f"a number, a quoted word or a parameter after {after}")
        return Name(token.text, token.column)
    return _literal(line, after, "a number, a quoted word or a parameter")


def _literal(line: Line, after: str, wanted: str = "a number or a quoted word") -> int | float | str:
    token = line.next()
    if token.kind not in ("number", "text"):
        raise line.error(f"expected {wanted} after {after}, found {token.text!r}", token.column)
    return number(line, token) if token.kind == "number" else token.text


def layer_kind(line: Line) -> LayerKind:
    """A line of a section 'layers'."""
    name = line.word("the name of a layer kind").text
    conditions: list[Condition] = []
    if not line.take("otherwise"):
        conditions.append(_condition(line))
        while line.take("and"):
            conditions.append(_condition(line))
    values: list[tuple[str, Expression | TensorRef]] = []
    if line.take(":"):
        while True:
            given = line.word("the name of a value that this kind gives")
            if given.text in dict(values):
                raise line.error(f"{given.text!r} is given twice", given.column)
            line.expect("=", f"after {given.text!r}")
            values.append((given.text, tensor(line) if _is_tensor(line.peek) else expression(line)))
            if not line.take(","):
                break
    line.end(", NAME = VALUE" if values else "'and' with a selector, ': NAME = VALUE, ...'")
    return LayerKind(name, tuple(conditions), tuple(values), line.number)


def _condition(line: Line) -> Condition:
    token = line.word("a selector")
    if token.text not in SELECTORS:
        choices = [*SELECTORS, "otherwise"]
        message = f"no selector {token.text!r}; there are {', '.join(choices)}{nearest(token.text, choices)}"
        raise line.error(message, token.column)
    column = line.peek.column
    argument = tensor(line) if SELECTORS[token.text] == "tensor" else expression(line)
    if token.text in PERIODS and isinstance(argument, Number) and argument.value == 0:
        raise line.error(f"{token.text} takes a whole number from 1, found 0", column)
    return Condition(token.text, argument)


def tensor(line: Line) -> TensorRef:
    """The name of a tensor, with others that may stand for it."""
    column = line.peek.column
    names = [_tensor_name(line)]
    while line.take("|"):
        names.append(_tensor_name(line))
    mark, optional = line.peek.column, line.take("?")
    if optional and line.peek.text == "|":
        raise line.error("'?' stands behind the last of several tensors, and is for all of them", mark)
    return TensorRef(tuple(names), optional, column)


def _tensor_name(line: Line) -> str:
    token = line.word("the name of a tensor", dotted=True)
    if "." not in token.text:
        raise line.error(f"{token.text!r} is no tensor: a GGUF tensor's name has a dot in it", token.column)
    return token.text


def _is_tensor(token: Token) -> bool:
    return token.kind == "word" and "." in token.text


def step(line: Line, tensor_names: set[str]) -> Step:
    """A line of a block or of what stands around them; `tensor_names` are those under which kinds give tensors."""
    result = line.word("the name of a result").text
    line.expect("=", f"after {result!r}")
    operation = line.word("an operation")
    signature = OPERATIONS.get(operation.text)
    if signature is None:
        raise line.error(f"no operation {operation.text!r}{nearest(operation.text, OPERATIONS)}", operation.column)
    values: list[Reference] = []
    tensors: list[TensorRef | Name] = []
    attributes: dict[str, Expression | str] = {}
    shape: tuple[Expression, ...] | None = None
    while line.peek.kind != "end":
        if values or tensors or attributes or shape:
            line.expect(",", "between arguments")
        if line.take("["):
            if not signature.shaped or shape:
                raise line.error(f"{signature.name} takes no {'second ' if shape else ''}shape")
            dims = [expression(line)]
            while line.take(","):
                dims.append(expression(line))
            line.expect("]", "to close the shape")
            shape = tuple(dims)
        elif len(values) < len(signature.values) and not (attributes or _is_named(line)):
            values.append(_reference(line, f"a value for {signature.values[len(values)]!r} of {signature.name}"))
        elif _is_tensor(line.peek) or line.peek.text in tensor_names:
            if len(tensors) == len(signature.all_tensors):
                raise line.error(f"{signature.name} takes no further tensor, found {line.peek.text!r}")
            named = line.peek.text in tensor_names
            tensors.append(Name(line.peek.text, line.next().column) if named else tensor(line))
        elif len(tensors) < len(signature.tensors) and not _is_named(line):
            wanted = signature.tensors[len(tensors)]
            raise _no_tensor(line, f"{signature.name} needs a tensor as {wanted!r}", tensor_names)
        else:
            further = tensor_names if len(tensors) < len(signature.all_tensors) else None
            name, value = _attribute(line, signature, attributes, further)
            attributes[name] = value
    _check_complete(line, signature, operation, values, tensors, attributes, shape)
    given = tuple(sorted(attributes.items()))
    return Step(result, signature.name, tuple(values), tuple(tensors), given, shape, line.number, operation.column)


def _is_named(line: Line) -> bool:
    """Whether an attribute by name comes next."""
    return line.peek.kind == "word" and line.tokens[min(line.at + 1, len(line.tokens) - 1)].text == "="


def _no_tensor(line: Line, message: str, tensor_names: set[str]) -> InputError:
    """What to raise where a tensor could stand, and another word does."""
    word = line.peek.text
    rule = "a tensor's name has a dot in it, as blk.{i}.attn_q.weight"
    return line.error(f"{message}, found {word!r}; {rule}{nearest(word, tensor_names)}")


def _reference(line: Line, what: str) -> Reference:
    token = line.word(what)
    layer = line.word("the parameter that gives the number of the layer").text if line.take("@") else None
    return Reference(token.text, layer, token.column)


def _attribute(
    line: Line, signature: Signature, given: dict[str, Expression | str], tensor_names: set[str] | None
) -> tuple[str, Expression | str]:
    """An attribute and its value; `tensor_names` as those of `step`, None where no tensor could stand in its place."""
    names = [a.name for a in signature.attributes]
    first = line.peek
    if _is_named(line):
        if first.text not in names:
            choices = ", ".join(names) or "none"
            raise line.error(
                f"{signature.name} has no attribute {first.text!r}; it has {choices}{nearest(first.text, names)}"
            )
        line.next()
        line.next()
        name = first.text
    else:
        free = [n for n in names if n not in given]
        if not free and tensor_names is not None and first.kind == "word":
            raise _no_tensor(line, f"{signature.name} takes nothing further but a tensor", tensor_names)
        if not free:
            raise line.error(f"{signature.name} takes no further argument, found {first.text!r}")
        name = free[0]
        if list(given) != names[: len(given)]:  # a name has left the order, so a place says nothing any more
            raise line.error(f"behind attributes by name the others have theirs too: {' or '.join(free)} = ...")
    if name in given:
        raise line.error(f"{name!r} is given twice", first.column)
    attribute = signature.attributes[names.index(name)]
    if attribute.kind != "word":
        return name, expression(line)
    word = line.word(f"a word for {name!r}")
    if word.text not in attribute.words:
        hint = nearest(word.text, (*attribute.words, *(tensor_names or ())))
        raise line.error(f"{name} is one of {', '.join(attribute.words)}; found {word.text!r}{hint}", word.column)
    return name, word.text


def _check_complete(
    line: Line,
    signature: Signature,
    operation: Token,
    values: list[Reference],
    tensors: list[TensorRef | Name],
    attributes: dict[str, Expression | str],
    shape: tuple[Expression, ...] | None,
) -> None:
    missing = list(signature.values[len(values) :]) + list(signature.tensors[len(tensors) :])
    missing += [name for name in signature.required if name not in attributes]
    if signature.shaped and not (shape or signature.tensors):  # without a tensor nothing else says it
        missing.append("a [shape]")
    if missing:
        raise line.error(f"{signature.name} still needs {', '.join(missing)}", operation.column)
