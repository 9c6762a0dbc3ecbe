"""A cheap hash of weights, by which others of the same shapes are noticed."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from ...frontend.errors import InputError

SAMPLE = 64
"""Bytes read from the middle of each tensor."""


def fingerprint(path: Path, ranges: Iterable[tuple[int, int]]) -> str:
    """The sha256, in hexadecimal, of a few bytes from the middle of every tensor in a file.

    It takes the same time for tensors of any size. Training changes nearly every weight of the tensors that it works
    on, so each of them is noticed; that a single weight was changed is not.

    Args:
        path: the file.
        ranges: offset and number of bytes of its tensors, in any order.

    Raises:
        InputError: the file can't be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            for offset, length in sorted(ranges):
                file.seek(offset + max(0, length - SAMPLE) // 2)
                digest.update(file.read(min(length, SAMPLE)))
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}") from None
    return digest.hexdigest()
