"""A cheap hash of weights, by which others of the same shapes are noticed."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...frontend.errors import InputError

SAMPLE = 64
"""Bytes of a sample."""
STRIDE = 1 << 20
"""From one sample of a tensor to the next, in bytes; twice that, and again, in a file that would give too many."""
MOST_STRIDES = 4096
"""Of all tensors in a file: what is read is bounded, though a model isn't."""


def fingerprint(path: Path, ranges: Iterable[tuple[int, int]]) -> str:
    """The sha256, in hexadecimal, of samples of every tensor in a file: its first and last bytes, some of every MiB.

    Training changes nearly every weight of the tensors that it works on, and an edit of a part of one is noticed where
    it is longer than a stride; that a single weight was changed is not.

    Args:
        path: the file.
        ranges: offset and number of bytes of its tensors, in any order.

    Raises:
        InputError: the file can't be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):  # nothing but the samples is wanted from the disk
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for offset, length in _samples(sorted(ranges)):
                digest.update(os.pread(file.fileno(), length, offset))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    return digest.hexdigest()


def _samples(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Offset and number of bytes of each sample, in the order of the file."""
    stride, total = STRIDE, sum(length for _, length in ranges)
    while total > MOST_STRIDES * stride:
        stride *= 2
    for offset, length in ranges:
        last = max(0, length - SAMPLE)
        yield from ((offset + start, SAMPLE) for start in range(0, last, stride))
        yield offset + last, min(length, SAMPLE)
