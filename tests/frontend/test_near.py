"""Hints of valid names, whatever the words."""

from random import Random
from time import process_time

import pytest
from ggufc.frontend.near import LONGEST, near, nearest


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("prefil", " (did you mean 'prefill'?)"),
        ("PREFILL", " (did you mean 'prefill'?)"),
        ("q4_k_m", " (did you mean 'Q4_K_M'?)"),
        ("xyz", ""),
        ("p" * (LONGEST + 1), ""),
    ],
)
def test_a_hint_is_of_what_comes_near(word: str, hint: str) -> None:
    assert nearest(word, ("prefill", "decode", "Q4_K_M", "p" * LONGEST)) == hint


def test_several_are_in_the_order_of_nearness() -> None:
    assert near("q4_k", ("q8_0", "q4_0", "q4_k_m")) == ["q4_k_m", "q4_0"]


def test_the_nearest_of_many_alike_words_is_found_in_a_moment() -> None:
    """Words of two letters are the worst case of a comparison."""
    draw = Random(0)
    words = ["".join(draw.choices("ab", k=96)) for _ in range(4096)]
    start = process_time()
    assert nearest(words[7][:-1] + "c", words) == f" (did you mean {words[7]!r}?)"
    assert process_time() - start < 3
