"""A text cut at its special tokens, as llama.cpp cuts it: the longest token first, not the first one found."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

_WHITE_SPACE = " \t\n\v\f\r"  # C's isspace
_HEAD = 4
"""Characters by which tokens are grouped: a group whose head is not in a text costs one search."""
_CROWD = 64
"""Tokens of a group that are looked up where their head is found, and no longer searched for one by one."""
Search = Callable[[int], int]
"""The first place of a token from a position on, -1 where there is none."""


class Partition:
    """Cuts texts at the special tokens of a vocabulary, in time that grows with the text and not with their number.

    Arguments: `control` and `user_defined` map ids to texts; the former count only where special text is parsed.
    `lstrip` and `rstrip` are tokens that swallow the white space before or after them.
    """

    def __init__(
        self, control: Mapping[int, str], user_defined: Mapping[int, str], lstrip: Iterable[int], rstrip: Iterable[int]
    ) -> None:
        self._texts = {**control, **user_defined}
        self._control = frozenset(control)
        self._lstrip, self._rstrip = frozenset(lstrip), frozenset(rstrip)
        order = sorted(self._texts, key=lambda token: (-len(self._texts[token].encode()), token))
        self._rank = {token: rank for rank, token in enumerate(order)}
        self._groups: dict[str, dict[str, int]] = {}
        for token, text in self._texts.items():
            self._groups.setdefault(text[:_HEAD], {})[text] = token

    def cut(self, text: str, parse_special: bool) -> Iterator[str | int]:
        """The parts of a text in order: ids of special tokens, and what lies between them, nothing of it empty."""
        found = {
            token: search
            for head, group in self._groups.items()
            if head in text
            for token, search in _searches(text, head, group).items()
            if parse_special or token not in self._control
        }
        taken = bytearray(len(text))  # 1 for what belongs to a token or was swallowed by one
        cuts: list[tuple[int, int, int]] = []
        for token in sorted(found, key=self._rank.__getitem__):
            size, search = len(self._texts[token]), found[token]
            start = search(0)
            while start >= 0:
                blocked = taken.rfind(1, start, start + size)
                if blocked < 0:
                    begin, end = self._swallow(text, token, start, start + size, taken)
                    taken[begin:end] = b"\1" * (end - begin)
                    cuts.append((begin, end, token))
                else:
                    end = taken.find(0, blocked)
                start = search(end) if end >= 0 else -1
        position = 0
        for begin, end, token in sorted(cuts):
            if position < begin:
                yield text[position:begin]
            yield token
            position = end
        if position < len(text):
            yield text[position:]

    def _swallow(self, text: str, token: int, begin: int, end: int, taken: bytearray) -> tuple[int, int]:
        """The place of a token with the white space that it swallows, as far as no other token has it."""
        if token in self._lstrip:
            while begin and not taken[begin - 1] and text[begin - 1] in _WHITE_SPACE:
                begin -= 1
        if token in self._rstrip:
            while end < len(text) and not taken[end] and text[end] in _WHITE_SPACE:
                end += 1
        return begin, end


def _searches(text: str, head: str, group: Mapping[str, int]) -> dict[int, Search]:
    """For each token of a group that stands in a text, the search for its places."""
    if len(group) <= _CROWD:
        return {token: partial(text.find, special) for special, token in group.items() if special in text}
    places: dict[int, list[int]] = {}
    sizes = sorted({len(special) for special in group})
    start = text.find(head)
    while start >= 0:
        for size in sizes:
            token = group.get(text[start : start + size])
            if token is not None and start + size <= len(text):
                places.setdefault(token, []).append(start)
        start = text.find(head, start + 1)
    return {token: partial(_next, starts) for token, starts in places.items()}


def _next(places: list[int], position: int) -> int:
    """The first of the places from a position on, -1 where there is none."""
    at = bisect_left(places, position)
    return places[at] if at < len(places) else -1
