"""What somebody gives as a file or as JSON, read with bounds: neither may take for ever, or all memory."""

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

MOST_DEPTH = 100
"""Lists and objects within one another; a tool's schema has a dozen."""


@contextmanager
def open_file(path: Path) -> Iterator[BufferedReader]:
    """A regular file, opened to be read. A pipe, which might never be written to, and a device, which might never end,
    are none.

    Raises:
        OSError: it can't be opened, or is something else.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "is a pipe or a device, wanted a file", str(path))
        yield file


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file of no more than `most`.

    Raises:
        OSError: it can't be read, is something else, or is longer.
    """
    with open_file(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"is longer than {most} bytes", str(path))
    return found


def parse_json(text: str | bytes) -> Any:
    """The value that a text is in JSON, nested no deeper than what walks through it can.

    Raises:
        ValueError: the text is none, or nested deeper.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    level, depth = _containers([value]), 0
    while level:
        level, depth = [inner for outer in level for inner in _containers(outer)], depth + 1
        if depth > MOST_DEPTH:
            raise ValueError(f"nested deeper than {MOST_DEPTH}")
    return value


def _containers(value: dict[str, Any] | list[Any]) -> list[Any]:
    """The lists and objects right in one."""
    items = value.values() if isinstance(value, dict) else value
    return [item for item in items if isinstance(item, dict | list)]
