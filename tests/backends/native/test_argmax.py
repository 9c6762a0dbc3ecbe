"""The likeliest token, against numpy."""

import numpy as np
import pytest
from ggufc.backends.native.kernels.argmax import PARTS, argmax_merge, argmax_parts
from ggufc.backends.native.launch import launch
from ggufc.backends.native.target import Target
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_attention import each_target


def argmax(x: np.ndarray, target: Target) -> np.ndarray:
    rows, count = x.shape
    part, y = np.full((rows, PARTS, 2), np.nan, np.float32), np.full(rows, -1, np.int32)
    numbers = {"tokens": rows, "count": count, "parts": PARTS}
    launch(argmax_parts(), {"x": x, "part": part}, numbers, 2, target)
    launch(argmax_merge(), {"part": part, "y": y}, numbers, 1, target)
    return y


@each_target
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3000), st.integers(2, 1000), st.integers(0, 99))
def test_of_equals_the_first(target: Target, rows: int, count: int, values: int, seed: int) -> None:
    """Of few different values, so that there are many equals, within a part and among parts."""
    x = np.random.default_rng(seed).integers(-values, values, (rows, count)).astype(np.float32)
    np.testing.assert_array_equal(argmax(x, target), x.argmax(1))


@each_target
@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ([-np.inf] * 40, -1),
        ([np.nan, 1.0, 2.0], -1),
        ([np.nan] * 700, -1),
        ([*range(600), np.nan, *range(2000)], -1),
        ([-1.0, -np.inf], 0),
        ([0.0, np.inf, 5.0], -1),
        ([1.0, -np.inf] * 400 + [2.0], 800),
    ],
)
def test_infinities_and_no_numbers(target: Target, row: list[float], wanted: int) -> None:
    """What no choice can be made from has the number -1, wherever it stands; -inf is a token that is ruled out."""
    assert argmax(np.array([row], np.float32), target)[0] == wanted
