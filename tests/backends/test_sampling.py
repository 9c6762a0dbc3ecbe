"""Drawing a token: by the chances that softmax gives, and never past the vocabulary."""

import numpy as np
import pytest
from ggufc.backends.sampling import sample


class Fixed(np.random.Generator):
    """A source of chance that always gives the same number."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.value = value

    def random(self, *_: object, **__: object) -> float:  # type: ignore[override]
        return self.value


@pytest.mark.parametrize("size", [3, 1000, 262_144])
def test_the_highest_draw_is_the_last_token_with_a_chance(size: int) -> None:
    """A running sum may end below the pairwise sum of the same weights."""
    random = np.random.default_rng(size)
    highest = np.nextafter(1.0, 0.0)
    for _ in range(5):
        logits = random.normal(size=size).astype(np.float32)
        assert sample(logits, 1.0, Fixed(highest)) < size
        logits[-1] = -np.inf
        assert sample(logits, 1.0, Fixed(highest)) < size - 1


def test_the_lowest_draw_is_the_first_token_with_a_chance() -> None:
    logits = np.array([-np.inf, -np.inf, 0.0, 1.0], np.float32)
    assert sample(logits, 1.0, Fixed(0.0)) == 2


def test_tokens_come_as_often_as_softmax_says() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    random = np.random.default_rng(1)
    counts = np.bincount([sample(logits, 1.0, random) for _ in range(4000)], minlength=3)
    np.testing.assert_allclose(counts / 4000, [0.5, 0.3, 0.2], atol=0.03)


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-300, 1e-30])
def test_a_tiny_temperature_takes_the_likeliest(temperature: float) -> None:
    for logits in ([-30.0, 4.0, 3.9, -np.inf], [-1e30, -2.0, -3.0, 0.0]):
        found = np.array(logits, np.float32)
        assert sample(found, temperature, np.random.default_rng(0)) == found.argmax()


def test_a_huge_temperature_takes_any() -> None:
    random = np.random.default_rng(3)
    assert {sample(np.array([0.0, 30.0], np.float32), 1e300, random) for _ in range(40)} == {0, 1}
