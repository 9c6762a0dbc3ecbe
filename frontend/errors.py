"""The errors a user sees: one line that says what, where and what to do."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class GgufcError(Exception):
    """Base of every error meant for a user; `exit_code` is the command line's."""

    exit_code = 2


class InputError(GgufcError):
    """The input or the words are wrong: a damaged file, a missing key, a wrong shape, an unknown name."""


class DamagedModelError(InputError):
    """The file was readable, but what its weights compute isn't: no finite numbers."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} are no finite numbers: its weights or its file are damaged; get the model again")


class UnsupportedError(GgufcError):
    """The input is sound, but this build can't do it: an architecture or a tensor type it doesn't have."""

    exit_code = 3


def shown(value: object) -> str:
    """A value as part of a line: no break in it, and not long."""
    return " ".join(repr(value).split())[:80]


def quoted(name: str, limit: int = 80) -> str:
    """A name from a file, made safe to print: quoted, control characters escaped, a very long one shortened."""
    return repr(name) if len(name) <= limit else f"{name[:limit]!r}... ({len(name)} characters)"


def shown_path(path: "Path") -> str:
    """The path for a message: as it is when every character can be seen, else quoted."""
    return str(path) if str(path).isprintable() else repr(str(path))
