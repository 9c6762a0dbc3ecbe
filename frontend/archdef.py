"""The archdef language: an architecture as a flat text file, parsed into `ArchDef`.

The grammar is in `archdefs/README.md`. A definition names steps over the tensors of a GGUF; it has no conditionals,
loops, calls or input and output, so parsing and using a stranger's file runs none of their code.
"""

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .errors import InputError
from .near import nearest
from .operations import FUNCTIONS, OPERATIONS, Signature

MAX_BYTES = 256 * 1024
MAX_LINE = 500
MAX_NAME = 96
MAX_DEPTH = 24
MAX_ENTRIES = 4096
MAX_NUMBER = 2**63

# ---------------------------------------------------------------------------------------------- syntax tree


@dataclass(frozen=True)
class Number:
    """A literal."""

    value: float | int


@dataclass(frozen=True)
class Text:
    """A quoted word, to be compared with a text of the file by `when ... is`."""

    value: str


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
    return {name.name for name in _names(expression)}


def _names(expression: Expression) -> Iterator[Name]:
    """The same where they stand, from left to right."""
    pending = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, Name):
            yield part
        elif isinstance(part, Call):
            pending += reversed(part.arguments)


@dataclass(frozen=True)
class Parameter:
    """`name key = default [only literals]` (from the file), or `name = expression [when other is literal]` (derived).

    `only` are the values that the definition can do; a file with another one is refused. Empty: any.
    """

    name: str
    key: str | None
    default: Expression | None
    condition: tuple[str, int | float | str] | None
    line: int
    only: tuple[int | float | str, ...] = ()


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

# ---------------------------------------------------------------------------------------------- lexer

_TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*(?:\.(?:[A-Za-z0-9_]+|\{i\}))*)"
    r'|"(?P<text>[A-Za-z0-9_. -]*)"'
    r"|(?P<mark>[=,+\-*/()\[\]|?:@])",
    re.ASCII,
)
_SPACE = re.compile(r"[ \t]*")
_PLACEHOLDER = re.compile(r"\.?(\{[^\s{},]*\}?)")
_INVISIBLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Controls, line ends that are none here, and what turns the direction of writing: a text is to be what it looks."""


@dataclass(frozen=True)
class _Token:
    kind: str  # number, word, text, mark, end
    text: str
    column: int


class _Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, path: str, number: int, text: str) -> None:
        self.path, self.number = path, number
        self.tokens = list(self._scan(text))
        self.at = 0

    def _scan(self, text: str) -> Iterator[_Token]:
        if hidden := _INVISIBLE.search(text):
            raise self.error(f"a control character, {hidden.group()!r}", hidden.start() + 1)
        at = 0
        while True:
            space = _SPACE.match(text, at)
            at = space.end() if space else at
            if at >= len(text) or text[at] == "#":
                yield _Token("end", "end of line", at + 1)
                return
            match = _TOKEN.match(text, at)
            if not match and (braces := _PLACEHOLDER.match(text, at)):
                message = (
                    f"{braces[1]!r} is unknown: the layer is {{i}}, a part between dots, as in blk.{{i}}.attn_q.weight"
                )
                raise self.error(message, braces.start(1) + 1)
            if not match:
                raise self.error(f"character {text[at]!r} has no meaning here", at + 1)
            if len(match.group()) > MAX_NAME:
                raise self.error(f"a word of {len(match.group())} characters; at most {MAX_NAME} are allowed", at + 1)
            kind = match.lastgroup or ""
            yield _Token(kind, match.group(kind), at + 1)
            at = match.end()

    def error(self, message: str, column: int | None = None) -> InputError:
        where = self.peek.column if column is None else column
        return InputError(f"{self.path}:{self.number}:{where}: {message}")

    @property
    def peek(self) -> _Token:
        return self.tokens[self.at]

    def next(self) -> _Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def take(self, text: str) -> bool:
        """Consumes the next token where it is `text`."""
        if self.peek.kind in ("mark", "word") and self.peek.text == text:
            self.next()
            return True
        return False

    def expect(self, text: str, why: str) -> None:
        if not self.take(text):
            raise self.error(f"expected {text!r} {why}, found {self.peek.text!r}")

    def word(self, what: str, *, dotted: bool = False) -> _Token:
        token = self.peek
        if token.kind != "word" or ("." in token.text and not dotted):
            raise self.error(f"expected {what}, found {token.text!r}")
        return self.next()

    def end(self) -> None:
        if self.peek.kind != "end":
            raise self.error(f"{self.peek.text!r} is more than this line can hold")


# ---------------------------------------------------------------------------------------------- expressions


def _expression(line: _Line, depth: int = 0) -> Expression:
    left = _term(line, depth)
    while line.peek.text in ("+", "-") and line.peek.kind == "mark":
        operator = line.next().text
        left = Call(operator, (left, _term(line, depth)))
    return left


def _term(line: _Line, depth: int) -> Expression:
    left = _factor(line, depth)
    while line.peek.text in ("*", "/") and line.peek.kind == "mark":
        operator = line.next().text
        left = Call(operator, (left, _factor(line, depth)))
    return left


def _factor(line: _Line, depth: int) -> Expression:
    if depth > MAX_DEPTH:
        raise line.error(f"an expression nested more than {MAX_DEPTH} deep")
    if line.take("-"):
        return Call("neg", (_factor(line, depth + 1),))
    if line.take("("):
        inner = _expression(line, depth + 1)
        line.expect(")", "to close the bracket")
        return inner
    token = line.next()
    if token.kind == "number":
        return Number(_number(line, token))
    if token.kind == "text":
        return Text(token.text)
    if token.kind != "word":
        raise line.error(f"expected a number or a name, found {token.text!r}", token.column)
    if not line.take("("):
        if "." in token.text:
            message = f"{token.text!r} can't stand in an expression: give the key a name in 'parameters' first"
            raise line.error(message, token.column)
        return Name(token.text, token.column)
    if token.text not in FUNCTIONS:
        hint = nearest(token.text, FUNCTIONS)
        raise line.error(f"no function {token.text!r}; there are {', '.join(FUNCTIONS)}{hint}", token.column)
    arguments = [_expression(line, depth + 1)]
    while line.take(","):
        arguments.append(_expression(line, depth + 1))
    line.expect(")", f"to close {token.text}(")
    if len(arguments) != FUNCTIONS[token.text]:
        message = f"{token.text} takes {FUNCTIONS[token.text]} argument(s), found {len(arguments)}"
        raise line.error(message, token.column)
    return Call(token.text, tuple(arguments))


def _number(line: _Line, token: _Token) -> int | float:
    value = float(token.text) if any(c in token.text for c in ".eE") else int(token.text)
    vanished = value == 0 and any(c in "123456789" for c in re.split("[eE]", token.text)[0])
    if not math.isfinite(value) or value > MAX_NUMBER or vanished:
        raise line.error(f"the number {token.text} is out of range: up to {MAX_NUMBER}, from 5e-324", token.column)
    return value


# ---------------------------------------------------------------------------------------------- lines of the sections


def _parameter(line: _Line) -> Parameter:
    name = line.word("the name of a parameter").text
    if line.take("="):
        value, condition = _expression(line), None
        if line.take("when"):
            subject = line.word("a parameter after 'when'").text
            line.expect("is", "after the parameter of 'when'")
            condition = (subject, _literal(line, "'is'"))
        line.end()
        return Parameter(name, None, value, condition, line.number)
    key = line.word("a key of the GGUF or '='", dotted=True).text
    default = _expression(line) if line.take("=") else None
    only: list[int | float | str] = []
    if line.take("only"):
        only.append(_literal(line, "'only'"))
        while line.take(","):
            only.append(_literal(line, "','"))
    line.end()
    return Parameter(name, key, default, None, line.number, tuple(only))


def _literal(line: _Line, after: str) -> int | float | str:
    token = line.next()
    if token.kind not in ("number", "text"):
        raise line.error(f"expected a number or a quoted word after {after}, found {token.text!r}", token.column)
    return _number(line, token) if token.kind == "number" else token.text


def _layer_kind(line: _Line) -> LayerKind:
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
            values.append((given.text, _tensor(line) if _is_tensor(line.peek) else _expression(line)))
            if not line.take(","):
                break
    line.end()
    return LayerKind(name, tuple(conditions), tuple(values), line.number)


def _condition(line: _Line) -> Condition:
    token = line.word("a selector")
    if token.text not in SELECTORS:
        choices = [*SELECTORS, "otherwise"]
        message = f"no selector {token.text!r}; there are {', '.join(choices)}{nearest(token.text, choices)}"
        raise line.error(message, token.column)
    argument = _tensor(line) if SELECTORS[token.text] == "tensor" else _expression(line)
    return Condition(token.text, argument)


def _tensor(line: _Line) -> TensorRef:
    column = line.peek.column
    names = [_tensor_name(line)]
    optional = line.take("?")
    while line.take("|"):
        names.append(_tensor_name(line))
    return TensorRef(tuple(names), optional, column)


def _tensor_name(line: _Line) -> str:
    token = line.word("the name of a tensor", dotted=True)
    if "." not in token.text:
        raise line.error(f"{token.text!r} is no tensor: a GGUF tensor's name has a dot in it", token.column)
    return token.text


def _is_tensor(token: _Token) -> bool:
    return token.kind == "word" and "." in token.text


def _step(line: _Line, tensor_names: set[str]) -> Step:
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
            dims = [_expression(line)]
            while line.take(","):
                dims.append(_expression(line))
            line.expect("]", "to close the shape")
            shape = tuple(dims)
        elif len(values) < len(signature.values):
            values.append(_reference(line, f"a value for {signature.values[len(values)]!r} of {signature.name}"))
        elif _is_tensor(line.peek) or line.peek.text in tensor_names:
            if len(tensors) == len(signature.tensors) + len(signature.optional_tensors):
                raise line.error(f"{signature.name} takes no further tensor, found {line.peek.text!r}")
            named = line.peek.text in tensor_names
            tensors.append(Name(line.peek.text, line.next().column) if named else _tensor(line))
        else:
            name, value = _attribute(line, signature, attributes)
            attributes[name] = value
    _check_complete(line, signature, operation, values, tensors, attributes)
    return Step(
        result, signature.name, tuple(values), tuple(tensors), tuple(sorted(attributes.items())), shape, line.number
    )


def _reference(line: _Line, what: str) -> Reference:
    token = line.word(what)
    layer = line.word("the parameter that gives the number of the layer").text if line.take("@") else None
    return Reference(token.text, layer, token.column)


def _attribute(line: _Line, signature: Signature, given: dict[str, Expression | str]) -> tuple[str, Expression | str]:
    names = [a.name for a in signature.attributes]
    first, second = line.peek, line.tokens[min(line.at + 1, len(line.tokens) - 1)]
    if first.kind == "word" and second.text == "=":
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
        if not free:
            raise line.error(f"{signature.name} takes no further argument, found {first.text!r}")
        name = free[0]
    if name in given:
        raise line.error(f"{name!r} is given twice", first.column)
    attribute = signature.attributes[names.index(name)]
    if attribute.kind != "word":
        return name, _expression(line)
    word = line.word(f"a word for {name!r}")
    if word.text not in attribute.words:
        hint = nearest(word.text, attribute.words)
        raise line.error(f"{name} is one of {', '.join(attribute.words)}; found {word.text!r}{hint}", word.column)
    return name, word.text


def _check_complete(
    line: _Line,
    signature: Signature,
    operation: _Token,
    values: list[Reference],
    tensors: list[TensorRef | Name],
    attributes: dict[str, Expression | str],
) -> None:
    missing = list(signature.values[len(values) :]) + list(signature.tensors[len(tensors) :])
    missing += [name for name in signature.required if name not in attributes]
    if missing:
        raise line.error(f"{signature.name} still needs {', '.join(missing)}", operation.column)


# ---------------------------------------------------------------------------------------------- the whole file


def parse(text: str, source: str = "<text>") -> ArchDef:
    """Parses one definition; `source` names it in errors.

    Raises:
        InputError: with file, line and column, the offending word and the nearest valid one.
    """
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise InputError(f"{source}: larger than {MAX_BYTES} bytes, which no definition needs")
    return _Parser(text, source).parse()


def read(path: Path) -> ArchDef:
    """Reads and parses one `.archdef` file.

    Raises:
        InputError: the file can't be read, is no UTF-8, or is no definition.
    """
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: no regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        return parse(data.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


class _Parser:
    """Takes a definition apart into sections and keeps what each line gave."""

    SAID = ("arch", "kind")
    SECTIONS = ("parameters", "prologue", "epilogue", "embedding", "ignore", "layers", "block")
    ONCE = (*SAID, *SECTIONS[:5])

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.name: str | None = None
        self.kind: Literal["decoder", "encoder"] | None = None
        self.parameters: list[Parameter] = []
        self.layer_kinds: list[list[LayerKind]] = []
        self.steps: dict[str, list[Step]] = {"prologue": [], "epilogue": [], "embedding": []}
        self.blocks: list[tuple[tuple[str, ...], list[Step]]] = []
        self.ignore: list[TensorRef] = []
        self.section: str | None = None
        self.first_line: dict[str, int] = {}
        self.parameter_line: dict[str, int] = {}
        self.kind_line: dict[str, int] = {}
        self.tensor_names: set[str] = set()  # under which layer kinds give tensors
        self.entries = self.words = 0

    def parse(self) -> ArchDef:
        last = 0
        for last, raw in enumerate(self.text.split("\n"), 1):  # where the file ends is where things miss
            raw = raw.rstrip("\r")
            if len(raw) > MAX_LINE:
                raise InputError(f"{self.source}:{last}:{MAX_LINE}: a line longer than {MAX_LINE} characters")
            line = _Line(self.source, last, raw)
            if line.peek.kind == "end":
                continue
            self.entries += 1
            self.words += len(line.tokens) - 1
            if self.entries > MAX_ENTRIES:
                raise line.error(f"more than {MAX_ENTRIES} lines that say something, which no definition needs")
            if raw[0] in " \t":
                self._entry(line)
            else:
                self._heading(line)
        return self._finish(last)

    # ------------------------------------------------------------------------------------------ headings

    def _heading(self, line: _Line) -> None:
        token = line.word("a section")
        if token.text in self.ONCE and token.text in self.first_line:
            what = f"line '{token.text}'" if token.text in self.SAID else f"section '{token.text}'"
            raise line.error(f"a second {what}; the first is in line {self.first_line[token.text]}", token.column)
        self.first_line.setdefault(token.text, line.number)
        if token.text == "arch":
            self._arch(line)
        elif token.text == "kind":
            self._kind(line)
        elif token.text in self.SECTIONS:
            self._section(token, line)
        else:
            choices = (*self.SAID, *self.SECTIONS)
            message = f"no section {token.text!r}; lines of a section are indented{nearest(token.text, choices)}"
            raise line.error(message, token.column)
        line.end()

    def _arch(self, line: _Line) -> None:
        column = line.peek.column
        name = line.word("the architecture's name").text
        while line.take("-"):  # names of architectures hold dashes: modern-bert
            name += "-" + line.word("the rest of the name").text
        if len(name) > MAX_NAME:
            raise line.error("the name is too long", column)
        self.name = name

    def _kind(self, line: _Line) -> None:
        token = line.word("'decoder' or 'encoder'")
        if token.text not in ("decoder", "encoder"):
            raise line.error(f"kind is 'decoder' or 'encoder', found {token.text!r}", token.column)
        self.kind = "decoder" if token.text == "decoder" else "encoder"

    def _section(self, token: _Token, line: _Line) -> None:
        self.section = token.text
        if token.text == "layers":
            self.layer_kinds.append([])
        elif token.text == "block":
            kinds: list[str] = []
            while line.peek.kind == "word":
                kind = line.next()
                if kind.text not in self.kind_line:
                    hint = nearest(kind.text, self.kind_line)
                    raise line.error(f"no layer kind {kind.text!r}{hint}", kind.column)
                if kind.text in kinds:
                    raise line.error(f"{kind.text!r} is named twice", kind.column)
                kinds.append(kind.text)
            self.blocks.append((tuple(kinds), []))

    # ------------------------------------------------------------------------------------------ entries

    def _entry(self, line: _Line) -> None:
        if self.section is None:
            raise line.error("an indented line before any section")
        if self.section == "parameters":
            self._add_parameter(line)
        elif self.section == "layers":
            self._add_layer_kind(line)
        elif self.section == "ignore":
            self.ignore.append(_tensor(line))
            line.end()
        else:
            steps = self.blocks[-1][1] if self.section == "block" else self.steps[self.section]
            in_block = self.section == "block"
            steps.append(_step(line, self.tensor_names if in_block else set()))

    def _add_parameter(self, line: _Line) -> None:
        parameter = _parameter(line)
        earlier = self.parameter_line.setdefault(parameter.name, 0)
        if earlier and parameter.condition is None:
            raise line.error(f"a second {parameter.name!r}; the first is in line {earlier}", 1)
        if parameter.condition and not earlier:
            raise line.error(f"{parameter.name!r} has no value yet for 'when' to replace", 1)
        self.parameter_line[parameter.name] = earlier or line.number
        self.parameters.append(parameter)

    def _add_layer_kind(self, line: _Line) -> None:
        kind = _layer_kind(line)
        if kind.name in self.kind_line:
            raise line.error(f"a second kind {kind.name!r}; the first is in line {self.kind_line[kind.name]}", 1)
        choice = self.layer_kinds[-1]
        if choice and not choice[-1].conditions:
            raise line.error("no kind can follow 'otherwise', which takes every layer that is left", 1)
        choice.append(kind)
        self.kind_line[kind.name] = kind.line
        self.tensor_names.update(name for name, value in kind.values if isinstance(value, TensorRef))

    # ------------------------------------------------------------------------------------------ the end

    def _finish(self, last: int) -> ArchDef:
        def missing(what: str, line: int = last) -> InputError:
            return InputError(f"{self.source}:{line}:1: {what}")

        if self.name is None:
            raise missing("no line 'arch NAME'")
        if self.kind is None:
            raise missing("no line 'kind decoder' or 'kind encoder'")
        if "layers" not in self.parameter_line:
            raise missing("no parameter 'layers', which gives the number of blocks (usually: layers block_count)")
        for choice in self.layer_kinds:
            if not choice or choice[-1].conditions:
                line = choice[-1].line if choice else last
                raise missing("the last line of 'layers' must be for the layers that are left: NAME otherwise", line)
            wanted = {name for kind in choice for name, _ in kind.values}
            sorts: dict[str, bool] = {}
            for kind in choice:
                for name, value in kind.values:
                    is_tensor = isinstance(value, TensorRef)
                    if sorts.setdefault(name, is_tensor) != is_tensor:
                        what = "a tensor" if is_tensor else "a number"
                        raise missing(f"kind {kind.name!r} gives {what} as {name!r}, unlike those before", kind.line)
                if len(kind.values) < len(wanted) and (lacking := wanted - dict(kind.values).keys()):
                    raise missing(f"kind {kind.name!r} gives no value for {', '.join(sorted(lacking))}", kind.line)
        for section in ("prologue", "epilogue"):
            if not self.steps[section]:
                raise missing(f"no steps in section '{section}'")
        if not any(steps for _, steps in self.blocks):
            raise missing("no steps in any section 'block'")
        self._check_names()
        return ArchDef(
            self.name,
            self.kind,
            tuple(self.parameters),
            tuple(tuple(choice) for choice in self.layer_kinds),
            tuple(self.steps["prologue"]),
            tuple(Block(kinds, tuple(steps)) for kinds, steps in self.blocks),
            tuple(self.steps["epilogue"]),
            tuple(self.steps["embedding"]),
            tuple(self.ignore),
            self.words,
            self.text,
            hashlib.sha256(self.text.encode()).hexdigest(),
            self.source,
        )

    def _check_names(self) -> None:
        """Every name in an expression has a value, in the lines that this or that model has no use for too."""
        known: set[str] = set()
        for parameter in self.parameters:
            if parameter.default is not None:
                self._check(parameter.default, known, parameter.line)
            known.add(parameter.name)
        given = known | {"i"}
        for choice in self.layer_kinds:
            for kind in choice:
                for part in (*(c.argument for c in kind.conditions), *(value for _, value in kind.values)):
                    if part is not None and not isinstance(part, TensorRef):
                        self._check(part, given, kind.line)
            given |= {name for name, _ in choice[0].values}
        for steps in self.steps.values():
            self._check_steps(steps, known)
        for _, steps in self.blocks:
            self._check_steps(steps, given)

    def _check_steps(self, steps: list[Step], known: set[str]) -> None:
        for step in steps:
            for part in (*(value for _, value in step.attributes), *(step.shape or ())):
                if not isinstance(part, str):
                    self._check(part, known, step.line)

    def _check(self, expression: Expression, known: set[str], line: int) -> None:
        for name in _names(expression):
            if name.name not in known:
                message = f"no value {name.name!r}{nearest(name.name, known)}"
                raise InputError(f"{self.source}:{line}:{name.column}: {message}")
