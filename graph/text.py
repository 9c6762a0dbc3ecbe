"""The text form of a graph: it prints, and parses back to an equal graph.

    graph @decode(%tokens: i32[1], %position: i32[], %k.0: f32[S, 1, 256]) {
      %0: f32[1, 640] = embed(%tokens, @token_embd.weight: q8_0[262144, 640])
      %1: f32[1, 640] = scale(%0) {by = 25.298221281347036}  # layer 0, local
      return %1
    }

What follows `#` is the operation's note.
"""

import json
import math
import re
from collections.abc import Iterator

from .ir import Attribute, Graph, Op, Operand, Value, Weight
from .types import Dim, TensorType


class TextError(ValueError):
    """The text is no graph, and the message names the line; or the graph has an attribute without a text form."""


def print_graph(graph: Graph) -> str:
    """The text form, one operation a line.

    Raises:
        TextError: an attribute is a number that is not finite, or a text that is no word.
    """
    arguments = ", ".join(f"{a}: {a.type}" for a in graph.arguments)
    lines = [f"graph {_print_name(graph.name)}({arguments}) {{"]
    lines += [f"  {_print_op(op)}" for op in graph.ops]
    lines += [f"  return {', '.join(map(str, graph.results))}", "}"]
    return "\n".join(lines) + "\n"


def _print_op(op: Op) -> str:
    operands = ", ".join(_print_operand(o) for o in op.operands)
    attributes = ", ".join(f"{k} = {_print_attribute(v)}" for k, v in op.attributes)
    text = f"{op.result}: {op.result.type} = {op.name}({operands})"
    if attributes:
        text += f" {{{attributes}}}"
    return f"{text}  # {op.note}" if op.note else text


def _print_operand(operand: Operand) -> str:
    if isinstance(operand, Value):
        return str(operand)
    tied = f" or {_print_name(operand.tied_to)}" if operand.tied_to else ""
    return f"{_print_name(operand.name)}{tied}: {operand.type}"


def _print_name(name: str) -> str:
    return f"@{name}" if re.fullmatch(r"[A-Za-z0-9_.]+", name) else f"@{json.dumps(name)}"


def _print_attribute(value: Attribute) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if not (_WORD.fullmatch(value) if isinstance(value, str) else math.isfinite(value)):
        raise TextError(f"an attribute is {value!r}, which has no text form")
    return str(value)


_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)
_TOKEN = re.compile(
    r'\s+|#[^\n]*|(?P<token>[%@][A-Za-z0-9_.]+|@"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|[A-Za-z_]\w*|[(){}\[\],:=])',
    re.ASCII,
)


class _Reader:
    """Tokens of the text, with the note at the end of the line just read."""

    def __init__(self, text: str) -> None:
        self.items: list[tuple[str, int]] = []
        self.notes: dict[int, str] = {}
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                raise TextError(f"line {line}: {text[at]!r} has no meaning here")
            if match["token"]:
                self.items.append((match["token"], line))
            elif match.group().startswith("#"):
                self.notes[line] = match.group()[1:].strip()
            line += match.group().count("\n")
            at = match.end()
        self.at = 0
        self.last = line

    @property
    def peek(self) -> str:
        return self.items[self.at][0] if self.at < len(self.items) else ""

    @property
    def line(self) -> int:
        return self.items[self.at][1] if self.at < len(self.items) else self.last

    def next(self) -> str:
        token = self.peek
        if not token:
            raise TextError(f"line {self.last}: the text ends too early")
        self.at += 1
        return token

    def take(self, token: str) -> bool:
        found = self.peek == token
        self.at += found
        return found

    def expect(self, token: str) -> None:
        line, found = self.line, self.next()
        if found != token:
            raise TextError(f"line {line}: expected {token!r}, found {found!r}")

    def listed(self, end: str) -> Iterator[None]:
        """Once for each item of a list with commas between, which the caller reads; takes the mark that ends it."""
        if self.take(end):
            return
        yield
        while not self.take(end):
            self.expect(",")
            yield

    def sigil(self, mark: str) -> str:
        line, token = self.line, self.next()
        if not token.startswith(mark):
            raise TextError(f"line {line}: expected a name that starts with {mark}, found {token!r}")
        if token[1] != '"':
            return token[1:]
        try:
            return json.loads(token[1:])
        except ValueError:
            raise TextError(f"line {line}: {token!r} is no quoted name") from None

    def word(self, what: str) -> str:
        line, token = self.line, self.next()
        if not _WORD.fullmatch(token):
            raise TextError(f"line {line}: expected {what}, found {token!r}")
        return token

    def whole(self) -> int:
        line, token = self.line, self.next()
        if not _WHOLE.fullmatch(token):
            raise TextError(f"line {line}: expected a whole number, found {token!r}")
        return int(token)

    def type(self) -> TensorType:
        dtype = self.word("a type")
        self.expect("[")
        dims: list[Dim] = [self.whole() if self.peek[:1].isdigit() else self.word("a size") for _ in self.listed("]")]
        return TensorType(dtype, tuple(dims))


def parse_graph(text: str) -> Graph:
    """Parses the text form; the caller verifies what it gets.

    Raises:
        TextError: with the line.
    """
    reader = _Reader(text)
    reader.expect("graph")
    name = reader.sigil("@")
    reader.expect("(")
    arguments = [_typed_value(reader) for _ in reader.listed(")")]
    known = {value.name: value for value in arguments}
    reader.expect("{")
    ops: list[Op] = []
    while reader.peek != "return":
        op = _parse_op(reader, known)
        ops.append(op)
        known[op.result.name] = op.result
    reader.expect("return")
    results = [_known(reader, known)]
    while reader.take(","):
        results.append(_known(reader, known))
    reader.expect("}")
    if reader.peek:
        raise TextError(f"line {reader.line}: {reader.peek!r} after the end of the graph")
    return Graph(name, tuple(arguments), tuple(ops), tuple(results))


def _typed_value(reader: _Reader) -> Value:
    name = reader.sigil("%")
    reader.expect(":")
    return Value(name, reader.type())


def _known(reader: _Reader, known: dict[str, Value]) -> Value:
    line, name = reader.line, reader.sigil("%")
    if name not in known:
        raise TextError(f"line {line}: %{name} is read before it is set")
    return known[name]


def _parse_op(reader: _Reader, known: dict[str, Value]) -> Op:
    line = reader.line
    result = _typed_value(reader)
    reader.expect("=")
    name = reader.word("an operation")
    reader.expect("(")
    operands: list[Operand] = [
        _weight(reader) if reader.peek.startswith("@") else _known(reader, known) for _ in reader.listed(")")
    ]
    attributes: dict[str, Attribute] = {}
    if reader.take("{"):
        for _ in reader.listed("}"):
            line_of_key, key = reader.line, reader.word("an attribute")
            if key in attributes:
                raise TextError(f"line {line_of_key}: {key!r} is given twice")
            reader.expect("=")
            attributes[key] = _attribute(reader)
    return Op(name, tuple(operands), tuple(sorted(attributes.items())), result, reader.notes.get(line, ""))


def _weight(reader: _Reader) -> Weight:
    name = reader.sigil("@")
    tied = reader.sigil("@") if reader.take("or") else None
    reader.expect(":")
    return Weight(name, reader.type(), tied)


def _attribute(reader: _Reader) -> Attribute:
    if reader.take("["):
        return tuple(reader.whole() for _ in reader.listed("]"))
    if _WHOLE.fullmatch(reader.peek):
        return reader.whole()
    if re.match(r"-?\d", reader.peek):
        line, number = reader.line, float(reader.next())
        if not math.isfinite(number):
            raise TextError(f"line {line}: a number that is out of range")
        return number
    return reader.word("a number or a word")
