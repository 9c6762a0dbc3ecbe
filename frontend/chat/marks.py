"""Marks around what a user wrote, by which it is kept from becoming a control token."""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from ..errors import InputError
from .messages import REASONING

_CONTENT = frozenset(("content", "text", "query", "document", *REASONING))
"""Keys whose values are a user's or a model's own words, even where it is one word."""
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


def free_marks(text: str) -> tuple[str, str]:
    """Two characters that no text may interchange, and that this one doesn't hold either."""
    free = [mark for mark in _NONCHARACTERS if mark not in text][:2]
    if len(free) < 2:
        raise InputError("the conversation holds every noncharacter from U+FDD0 on; leave two of them out")
    return free[0], free[1]


class Marker:
    """Marks what a user wrote where it would make a control token, so that it is found in the rendered text.

    Whole control tokens are enclosed in two marks, so that a template that looks for one still finds it. A text that
    begins or ends with a part of one has a mark there. Roles, names and other single words outside a content are left
    as they are: templates compare them, and one that puts brackets around a role means to write a token.
    """

    def __init__(self, control: Iterable[str], everything: str, start: str, end: str) -> None:
        self._start, self._end = start, end
        self._control = [text for text in control if len(text) > 1]
        # in `everything`, which is JSON, quotes and backslashes are written otherwise; no such token escapes the mark
        inside = [text for text in self._control if json.dumps(text, ensure_ascii=False)[1:-1] in everything]
        pattern = "|".join(map(re.escape, sorted(inside, key=len, reverse=True))) or "(?!)"
        self._whole = re.compile(pattern)
        self._marked = re.compile(f"{start}({pattern}){end}|[{start}{end}]")

    @cached_property
    def _parts(self) -> tuple[frozenset[str], frozenset[str]]:
        """Proper beginnings and ends of control tokens."""
        cuts = [(text[:n], text[n:]) for text in self._control for n in range(1, len(text))]
        return frozenset(a for a, _ in cuts), frozenset(b for _, b in cuts)

    def mark(self, value: Any, key: object = None) -> Any:
        """A value, found under a key, with every text in it marked."""
        match value:
            case str():
                return self._marked_text(value, key in _CONTENT)
            case Mapping():
                return {
                    self._wrapped(inner) if isinstance(inner, str) else inner: self.mark(item, inner)
                    for inner, item in value.items()
                }
            case list() | tuple():
                return [self.mark(item) for item in value]
        return value

    def _wrapped(self, text: str) -> str:
        return self._whole.sub(rf"{self._start}\g<0>{self._end}", text)

    def _marked_text(self, text: str, is_content: bool) -> str:
        core = text.strip()
        marked = self._wrapped(core)
        if core and (is_content or not re.fullmatch(r"[\w-]+", core)):
            first, last = self._parts
            lengths = range(1, max(map(len, self._control), default=0))
            inner = any(core in token for token in self._control)
            if inner or any(core[:n] in last for n in lengths):
                marked = self._start + marked
            if any(core[-n:] in first for n in lengths):
                marked += self._start
        at = text.find(core)
        return text[:at] + marked + text[at + len(core) :]

    def barred(self, rendered: str) -> str:
        """The rendered text with one barrier within each control token that a user wrote, and at each lone mark."""
        return self._marked.sub(self._bar, rendered)

    def _bar(self, found: re.Match[str]) -> str:
        token = found[1]
        return token[0] + self._start + token[1:] if token else self._start
