"""What a sample of weights notices, and what it reads for that."""

from pathlib import Path

import pytest
from ggufc.backends.bundles import fingerprint as module
from ggufc.backends.bundles.fingerprint import MOST_STRIDES, STRIDE, fingerprint

LENGTH = 5 * STRIDE + 1000
RANGES = [(100, LENGTH), (100 + LENGTH, 7)]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(100 + LENGTH + 7))
    return path


@pytest.mark.parametrize(
    ("begin", "length"),
    [
        *((begin, STRIDE) for begin in range(100, LENGTH, STRIDE // 3)),
        (100, 1),
        (99 + LENGTH, 1),
        (103 + LENGTH, 1),
    ],
)
def test_a_changed_part_is_noticed(begin: int, length: int, weights: Path) -> None:
    before = fingerprint(weights, RANGES)
    with weights.open("r+b") as file:
        file.seek(begin)
        file.write(b"x" * length)
    assert fingerprint(weights, RANGES[::-1]) != before


def test_however_large_a_file_is_its_samples_are_few() -> None:
    for tensors, nbytes in ((1, 1 << 40), (700, 1 << 26), (3, 0), (2, STRIDE)):
        samples = list(module._samples([(n * nbytes, nbytes) for n in range(tensors)]))
        assert len(samples) <= MOST_STRIDES + 2 * tensors
        assert all(at >= 0 and at + length <= tensors * nbytes for at, length in samples)
