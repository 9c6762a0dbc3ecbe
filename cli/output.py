"""What commands print: results on standard output, notes on standard error."""

import json
import logging
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import click

from ..frontend.errors import InputError

line_drawn = Event()
"""Set while a line of progress stands on the terminal, which a note takes the place of."""


class Notes(logging.Handler):
    """What the library wants a user to know, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


def tell(text: str) -> None:
    """A note on standard error."""
    clear = "\r\x1b[K" if line_drawn.is_set() else ""
    click.echo(f"{clear}ggufc: note: {printable(text)}", err=True, color=bool(clear) or None)


def printable(text: str) -> str:
    """The text in one line, without what could move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def stream_text(text: str) -> None:
    """Prints at once; what the encoding of the output hasn't becomes its number, as `\\u65e5`."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)


def print_json(value: Any) -> None:
    """Prints a value as JSON, which has no NaN and no infinity: null stands for them."""
    click.echo(json.dumps(_in_json(value), indent=1, allow_nan=False))


def _in_json(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _in_json(item) for key, item in value.items()}
        case list() | tuple():
            return [_in_json(item) for item in value]
    return value


def write_file(path: Path, text: str) -> None:
    """Writes a file whole or not at all: it stands aside until it is.

    Raises:
        InputError: it can't be written.
    """
    place = Path(os.path.realpath(path))
    is_stream = place.exists() and not place.is_file()  # a pipe or a device, which nothing can take the place of
    aside = place if is_stream else place.with_name(f".ggufc-{os.getpid()}")
    try:
        aside.write_text(text, "utf-8", "replace")
        if not is_stream:
            aside.replace(place)
    except OSError as error:
        if not is_stream:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        raise InputError(f"{path}: can't be written: {error.strerror}") from None


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and values, aligned."""
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        stream_text(f"{printable(label):{width}}  {printable(value)}".rstrip() + "\n")


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a head, the first column to the left and the figures to the right."""
    widths = [max(len(row[n]) for row in (head, *rows)) for n in range(len(head))]
    for row in (head, *rows):
        cells = [
            f"{cell:<{w}}" if n == 0 else f"{cell:>{w}}" for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        stream_text("  ".join(cells).rstrip() + "\n")


def size_text(count: int) -> str:
    """Bytes for people."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def parameter_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) if len(set(value)) > 1 else f"{value[0]} in every layer"
    return f"{value:g}" if isinstance(value, float) else str(value)


def print_rows(rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Cells one below the other, to the left; a row may end early, and what it ends with may be of any width."""
    inner = [row[:-1] for row in rows]
    widths = [max(len(row[n]) for row in inner if n < len(row)) for n in range(max(map(len, inner), default=0))]
    for row in rows:
        cells = [printable(cell) for cell in row]
        padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)][: len(cells) - 1]
        stream_text(" " * indent + "  ".join([*padded, cells[-1]]).rstrip() + "\n")
