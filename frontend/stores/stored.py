"""A model as a store has it."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .folders import listed, reason


@dataclass(frozen=True)
class StoredModel:
    """A model in a store. `fault` says why it can't be read, where it can't."""

    origin: str
    name: str
    """What to type, in full where a shorter name would do too."""
    path: Path
    """The file with the model, of several the first."""
    sha256: str | None = None
    """Of the file's bytes, where the store tells it."""
    fault: str = ""
    template: Path | None = None
    """Ollama's chat template, in Go's language, where the model has one beside its file."""


def unread(path: Path, error: OSError | ValueError, remedy: str) -> str:
    """What is said of a file that can't be read; the remedy is none where it is there, for others."""
    said = f"{path}: {reason(error)}"
    return f"{said}; {remedy}" if remedy and not isinstance(error, PermissionError) else said


def blob_fault(blob: Path, size: Any, remedy: str) -> str:
    """What is wrong with a file that a store names, of `size` bytes where the store tells; empty for a sound one."""
    try:
        status = blob.stat()
    except OSError as error:
        begun = any(p.name.startswith(f"{blob.name}") for p in listed(blob.parent) if p != blob)
        return f"{blob}: an unfinished download; {remedy}" if begun else unread(blob, error, remedy)
    if not stat.S_ISREG(status.st_mode):
        return f"{blob}: is no file"
    if isinstance(size, int) and status.st_size != size:
        return f"{blob}: {status.st_size} bytes, the store says {size}; {remedy}"
    try:
        with blob.open("rb"):
            return ""
    except OSError as error:
        return unread(blob, error, "")
