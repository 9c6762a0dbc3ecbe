"""The valid names that come near a word which is none of them, for messages."""

import heapq
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from itertools import islice

from .errors import quoted

LONGEST = 200
"""Characters of a word or name: a longer one is nobody's typing error."""
_CONSIDERED, _COMPARED = 5000, 32
"""Of the names, how many are looked at, and how many of those in full."""


def near(word: str, names: Iterable[str], most: int = 3, cutoff: float = 0.6) -> list[str]:
    """The names nearest to a word, case aside, the nearest first; it takes no long time for any words.

    Args:
        word: what was given.
        names: what would have been valid.
        most: how many are wanted.
        cutoff: how alike a name must be, from 0 (anything) to 1 (the word itself).
    """
    if len(word) > LONGEST:
        return []
    word = word.casefold()
    matcher = SequenceMatcher(b=word)

    def letters_shared(name: str) -> float:
        matcher.set_seq1(name)
        return matcher.quick_ratio()

    # the full comparison is quadratic in the words' length, so only the likeliest come to it
    short = sorted(name for name in islice(names, _CONSIDERED) if len(name) <= LONGEST)
    folded: dict[str, str] = {}
    for name in short:
        folded.setdefault(name.casefold(), name)
    found = get_close_matches(word, heapq.nlargest(_COMPARED, folded, letters_shared), most, cutoff)
    return [folded[name] for name in found]


def nearest(word: str, names: Iterable[str]) -> str:
    """A hint ` (did you mean 'name'?)` with the name nearest to a word, or the empty string."""
    found = near(word, names, 1, 0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def near_names(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint `; near: 'a', 'b'` with the names of a file or folder that come near a word, or the empty string."""
    found = near(word, names, cutoff=cutoff)
    return f"; near: {', '.join(map(quoted, found))}" if found else ""
