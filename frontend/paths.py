"""Paths that a program gives."""

import os

from .errors import InputError, shown


def path_text(given: object, what: str) -> str:
    """A path as text, which was given as such, in bytes or as a `Path`.

    Args:
        given: the path.
        what: what it is of, for a message.

    Raises:
        InputError: it is none of these.
    """
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise InputError(f"{what} is {shown(given)}, wanted a path: a text or a pathlib.Path")
    return os.fsdecode(given)
