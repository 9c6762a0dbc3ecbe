"""Reads a whole definition: its sections, what each line of them says, and whether all of it fits together."""

import hashlib
from pathlib import Path
from typing import Literal

from ..errors import InputError
from ..near import nearest
from . import entries
from .line import MAX_LINE, MAX_NAME, Line, Token
from .tree import ArchDef, Block, Call, Expression, LayerKind, Name, Parameter, Step, TensorRef, Text, names_in

MAX_BYTES = 256 * 1024
MAX_ENTRIES = 4096
SAID = ("arch", "kind")
"""What is said in a line of its own."""
SECTIONS = ("parameters", "prologue", "epilogue", "embedding", "ignore", "layers", "block")
_ONCE = (*SAID, *SECTIONS[:5])


def parse(text: str, source: str = "<text>") -> ArchDef:
    """Parses one definition; `source` names it in errors.

    Raises:
        InputError: with file, line and column, the offending word and the nearest valid one.
    """
    if text.startswith("\ufeff"):
        raise InputError(f"{source}:1:1: begins with a byte order mark (U+FEFF); save the file as UTF-8 without one")
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
        self.texts: dict[str, tuple[str, int]] = {}  # the defaults that are no numbers, and their lines
        self.entries = self.words = 0

    def parse(self) -> ArchDef:
        last = 0
        for last, raw in enumerate(self.text.split("\n"), 1):  # where the file ends is where things miss
            raw = raw.rstrip("\r")
            if len(raw) > MAX_LINE:
                raise InputError(f"{self.source}:{last}:{MAX_LINE}: a line longer than {MAX_LINE} characters")
            line = Line(self.source, last, raw)
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

    def _heading(self, line: Line) -> None:
        token = line.word("a section")
        if token.text in _ONCE and token.text in self.first_line:
            what = f"line '{token.text}'" if token.text in SAID else f"section '{token.text}'"
            raise line.error(f"a second {what}; the first is in line {self.first_line[token.text]}", token.column)
        self.first_line.setdefault(token.text, line.number)
        if token.text == "arch":
            self._arch(line)
        elif token.text == "kind":
            self._kind(line)
        elif token.text in SECTIONS:
            self._section(token, line)
        else:
            choices = (*SAID, *SECTIONS)
            message = f"no section {token.text!r}; lines of a section are indented{nearest(token.text, choices)}"
            raise line.error(message, token.column)
        line.end()

    def _arch(self, line: Line) -> None:
        column = line.peek.column
        name = line.word("the architecture's name").text
        while line.take("-"):  # names of architectures hold dashes: modern-bert
            name += "-" + line.word("the rest of the name").text
        if len(name) > MAX_NAME:
            raise line.error("the name is too long", column)
        self.name = name

    def _kind(self, line: Line) -> None:
        token = line.word("'decoder' or 'encoder'")
        if token.text not in ("decoder", "encoder"):
            raise line.error(f"kind is 'decoder' or 'encoder', found {token.text!r}", token.column)
        self.kind = "decoder" if token.text == "decoder" else "encoder"

    def _section(self, token: Token, line: Line) -> None:
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
                if beside := next((k for k in kinds if self._of_one_section(k, kind.text)), ""):
                    message = (
                        f"no layer is both {beside!r} and {kind.text!r}, which one section 'layers' chooses between"
                    )
                    raise line.error(message, kind.column)
                kinds.append(kind.text)
            self.blocks.append((tuple(kinds), []))

    def _of_one_section(self, *kinds: str) -> bool:
        return any(set(kinds) <= {kind.name for kind in choice} for choice in self.layer_kinds)

    # ------------------------------------------------------------------------------------------ entries

    def _entry(self, line: Line) -> None:
        if self.section is None:
            raise line.error("an indented line before any section")
        if self.section == "parameters":
            self._add_parameter(line)
        elif self.section == "layers":
            self._add_layer_kind(line)
        elif self.section == "ignore":
            self.ignore.append(entries.tensor(line))
            line.end("'| TENSOR'")
        else:
            steps = self.blocks[-1][1] if self.section == "block" else self.steps[self.section]
            in_block = self.section == "block"
            steps.append(entries.step(line, self.tensor_names if in_block else set()))

    def _add_parameter(self, line: Line) -> None:
        parameter = entries.parameter(line)
        earlier = self.parameter_line.setdefault(parameter.name, 0)
        if earlier and parameter.condition is None:
            raise line.error(f"a second {parameter.name!r}; the first is in line {earlier}", 1)
        if parameter.condition and not earlier:
            raise line.error(f"{parameter.name!r} has no value yet for 'when' to replace", 1)
        self.parameter_line[parameter.name] = earlier or line.number
        self.parameters.append(parameter)

    def _add_layer_kind(self, line: Line) -> None:
        kind = entries.layer_kind(line)
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
            for part in (parameter.default, *parameter.only):
                if isinstance(part, Name | Call | Text):
                    self._check(part, known, parameter.line)
            if isinstance(parameter.default, Text):
                self.texts.setdefault(parameter.name, (parameter.default.value, parameter.line))
            known.add(parameter.name)
        given = known | {"i"}
        for choice in self.layer_kinds:
            for kind in choice:
                for condition in kind.conditions:
                    if isinstance(condition.argument, Expression):
                        self._check(condition.argument, given, kind.line, number=True)
                for _, value in kind.values:
                    if isinstance(value, Expression):
                        self._check(value, given, kind.line)
            given |= {name for name, _ in choice[0].values}
        for steps in self.steps.values():
            self._check_steps(steps, known)
        for _, steps in self.blocks:
            self._check_steps(steps, given)

    def _check_steps(self, steps: list[Step], known: set[str]) -> None:
        for step in steps:
            for part in (*(value for _, value in step.attributes), *(step.shape or ())):
                if not isinstance(part, str):
                    self._check(part, known, step.line, number=True)

    def _check(self, expression: Expression, known: set[str], line: int, *, number: bool = False) -> None:
        """That its names have values, and where they are computed with, or a `number` is wanted, are no texts."""
        texts = {} if isinstance(expression, Name) and not number else self.texts
        for name in names_in(expression):
            if name.name not in known:
                message = f"no value {name.name!r}{nearest(name.name, known)}"
                raise InputError(f"{self.source}:{line}:{name.column}: {message}")
            if name.name in texts:
                text, given = texts[name.name]
                message = f"{name.name!r} has the text {text!r} by default (line {given}), and a number is wanted here"
                raise InputError(f"{self.source}:{line}:{name.column}: {message}")
        if number and isinstance(expression, Text):
            message = f"the text {expression.value!r} stands where a number is wanted"
            raise InputError(f"{self.source}:{line}:{expression.column}: {message}")
