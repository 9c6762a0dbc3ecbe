"""Folders of other programs, listed as far as they can be read."""

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 20_000
"""Of one listing: more than any store has, few enough to be read in a moment."""


def walk(folder: Path, depth: int | None) -> Iterator[Path]:
    """Files below a folder, at just that depth or at any; what can't be read is left out.

    Links to folders are followed to a depth alone, for they may lead round in a circle.
    """
    for path in listed(folder):
        if is_dir(path) and (depth is not None or not path.is_symlink()):
            if depth != 1:
                yield from walk(path, None if depth is None else depth - 1)
        elif depth in (None, 1) and not path.name.startswith("."):
            yield path


def listed(folder: Path) -> list[Path]:
    """A folder's entries, sorted; none where it can't be read."""
    with suppress(OSError, ValueError):
        return _entries(folder)
    return []


def unreadable(folder: Path, depth: int) -> Iterator[str]:
    """Of a folder and those that lie so deep below it, the ones that are there and can't be listed, with the reason."""
    try:
        entries = _entries(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        yield f"{folder}: {reason(error)}"
        return
    for path in entries if depth else ():
        if is_dir(path):
            yield from unreadable(path, depth - 1)


def _entries(folder: Path) -> list[Path]:
    return sorted(islice(folder.iterdir(), MOST_ENTRIES))


def reason(error: OSError | ValueError) -> str:
    """Why something can't be read, in the system's words where it says so."""
    return str(error.strerror if isinstance(error, OSError) else error)


def is_dir(path: Path) -> bool:
    """Whether a folder is there that can be looked at."""
    with suppress(OSError, ValueError):
        return path.is_dir()
    return False


def home() -> Path:
    """The user's folder; `/` for a user without one."""
    with suppress(RuntimeError):
        return Path.home()
    return Path("/")


def expanded(text: str) -> Path:
    """A path from a variable of the environment, which may hold others and begin with `~`."""
    path = Path(os.path.expandvars(text))
    with suppress(RuntimeError):
        return path.expanduser()
    return path
