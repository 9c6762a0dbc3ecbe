"""Prompts as commands take them: from words, files and standard input, as text or as token ids."""

import re
import sys
from pathlib import Path
from typing import BinaryIO

from ..frontend.errors import InputError

MOST_BYTES = 64 << 20
"""Of a text: some hundred times what the longest of today's contexts hold."""


def parse_ids(text: str) -> list[int]:
    """Token ids with commas or spaces between."""
    parts = text.replace(",", " ").split()
    if not all(re.fullmatch(r"[+-]?[0-9]{1,18}", part) for part in parts):
        raise InputError(f"--prompt-ids {text[:80]!r}: wanted numbers with commas between, such as 2,818")
    return [int(part) for part in parts]


def read_text(path: Path) -> str:
    """The text of a file, which may be a pipe.

    Raises:
        InputError: it is longer than `MOST_BYTES`, or no UTF-8.
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return _read(file, str(path))


def read_standard_input() -> str:
    """The text of standard input; errors are those of `read_text`."""
    return _read(sys.stdin.buffer, "standard input")


def _read(file: BinaryIO, source: str) -> str:
    raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise InputError(f"{source}: longer than {MOST_BYTES} bytes; give a shorter text")
    return decoded(raw, source)


def without_advice(message: str) -> str:
    """Why a model has no tokenizer, without what to do, for who gives ids already."""
    return message.partition("; give token ids instead")[0]


def decoded(raw: bytes, source: str) -> str:
    """UTF-8, without the line's end that an editor or `echo` leaves."""
    try:
        return raw.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: byte {error.start} is not UTF-8") from None
