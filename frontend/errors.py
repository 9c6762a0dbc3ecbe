"""The errors a user sees: one line that says what, where and what to do."""


class GgufcError(Exception):
    """Base of every error meant for a user; `exit_code` is the command line's."""

    exit_code = 2


class InputError(GgufcError):
    """The input or the words are wrong: a damaged file, a missing key, a wrong shape, an unknown name."""


class UnsupportedError(GgufcError):
    """The input is sound, but this build can't do it: an architecture or a tensor type it doesn't have."""

    exit_code = 3


def shown(value: object) -> str:
    """A value as part of a line: no break in it, and not long."""
    return " ".join(repr(value).split())[:80]
