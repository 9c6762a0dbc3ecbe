"""A line of a definition, cut into tokens."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import InputError

MAX_LINE = 500
MAX_NAME = 96
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
class Token:
    """A word of a line, and where it begins, counted from 1."""

    kind: str  # number, word, text, mark, end
    text: str
    column: int


class Line:
    """The tokens of one line, read from left to right."""

    def __init__(self, path: str, number: int, text: str) -> None:
        self.path, self.number = path, number
        self.tokens = list(self._scan(text))
        self.at = 0

    def _scan(self, text: str) -> Iterator[Token]:
        if hidden := _INVISIBLE.search(text):
            raise self.error(f"a control character, {hidden.group()!r}", hidden.start() + 1)
        at = 0
        while True:
            space = _SPACE.match(text, at)
            at = space.end() if space else at
            if at >= len(text) or text[at] == "#":
                yield Token("end", "end of line", at + 1)
                return
            match = _TOKEN.match(text, at)
            if not match and (braces := _PLACEHOLDER.match(text, at)):
                message = (
                    f"{braces[1]!r} is unknown: the layer is {{i}}, a part between dots, as in blk.{{i}}.attn_q.weight"
                )
                raise self.error(message, braces.start(1) + 1)
            if not match and text[at] == '"':
                raise self.error(
                    "a quoted word holds letters, digits, '_', '.', '-' and spaces, and ends with '\"'", at + 1
                )
            if not match:
                raise self.error(f"character {text[at]!r} has no meaning here", at + 1)
            if len(match.group()) > MAX_NAME:
                raise self.error(f"a word of {len(match.group())} characters; at most {MAX_NAME} are allowed", at + 1)
            kind = match.lastgroup or ""
            yield Token(kind, match.group(kind), at + 1)
            at = match.end()

    def error(self, message: str, column: int | None = None) -> InputError:
        """What to raise, with file, line and column; by default the column of the next token."""
        where = self.peek.column if column is None else column
        return InputError(f"{self.path}:{self.number}:{where}: {message}")

    @property
    def peek(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def next(self) -> Token:
        """Consumes the next token, which at the end stays."""
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
        """Consumes the next token, which must be `text`."""
        if not self.take(text):
            raise self.error(f"expected {text!r} {why}, found {self.peek.text!r}")

    def word(self, what: str, *, dotted: bool = False) -> Token:
        """Consumes a word, one with dots in it where that is allowed."""
        token = self.peek
        if token.kind != "word" or ("." in token.text and not dotted):
            raise self.error(f"expected {what}, found {token.text!r}")
        return self.next()

    def end(self, may_follow: str = "") -> None:
        """Refuses whatever else the line says; `may_follow` says what it could have gone on with."""
        if self.peek.kind != "end":
            hint = f"; here may follow {may_follow}" if may_follow else ""
            raise self.error(f"{self.peek.text!r} is more than this line can hold{hint}")
