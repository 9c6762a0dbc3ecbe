"""Maps a file, and says what it is where it is no GGUF."""

import mmap
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from ..errors import InputError, shown_path
from ..near import near_names


def mapped(path: Path) -> mmap.mmap:
    """The file, mapped read-only, once it is known to be a regular file that is not empty.

    Raises:
        InputError: it isn't, or can't be read; it says what is there instead, or near.
    """
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            inside = near_names(".gguf", (p.name for p in _listing(path) if p.suffix == ".gguf"), cutoff=0.0)
            raise InputError(f"{shown_path(path)}: is a directory, not a GGUF file{inside}")
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{shown_path(path)}: is a device or pipe, not a GGUF file")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise InputError(f"{shown_path(path)}: is empty (0 bytes), not a GGUF file; download it again")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        folder = path.parent
        if path.is_symlink():
            raise InputError(
                f"{shown_path(path)}: is a link to {shown_path(path.readlink())}, which does not exist"
            ) from None
        if folder.is_dir():
            raise InputError(
                f"{shown_path(path)}: no such file{near_names(path.name, (p.name for p in _listing(folder)))}"
            ) from None
        raise InputError(f"{shown_path(path)}: no such file, nor the directory {shown_path(folder)}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{shown_path(path)}: can't be read: {reason}") from None


def _listing(folder: Path) -> list[Path]:
    """Some of the folder's entries; enough to find what was meant."""
    with suppress(OSError):
        return list(islice(folder.iterdir(), 2000))
    return []


# What people point a GGUF reader at instead, and how its first bytes tell.
_LOOKS: tuple[tuple[Callable[[bytes], object], str], ...] = (
    (lambda b: b.startswith(b"version https://git-lfs"), "a git-lfs pointer; fetch the file itself with git lfs pull"),
    (lambda b: re.match(rb"\s*<(!doctype|html|head|\?xml)", b, re.I), "an HTML page; the download gave a web page"),
    (lambda b: re.match(rb"(lmgg|fmgg|tjgg|algg)", b), "an old GGML file (before GGUF); convert the model to GGUF"),
    (lambda b: b.startswith(b"FUGG"), "a GGUF file with its bytes in reversed order"),
    (lambda b: len(b) > 8 and b[8:9] == b"{" and not any(b[6:8]), "a safetensors file; convert the model to GGUF"),
    (lambda b: b.startswith(b"PK\3\4"), "a zip archive or PyTorch checkpoint; unpack or convert it to GGUF"),
    (lambda b: re.match(rb"\x80[\x02-\x05]", b), "a Python pickle (PyTorch checkpoint); convert the model to GGUF"),
    (lambda b: b.startswith(b"\x1f\x8b"), "a gzip archive; unpack it"),
    (lambda b: b.startswith(b"\x28\xb5\x2f\xfd"), "a zstd archive; unpack it"),
    (lambda b: re.match(rb"\s*[{\[]", b), "a JSON text"),
    (lambda b: not any(b), "an unfinished download (nothing but zero bytes at the start)"),
)


def looks_like(head: bytes) -> str:
    """What a file seems to be that begins with these bytes, as the end of a message."""
    look = next((text for test, text in _LOOKS if test(head)), f"nothing known: it begins with {head[:4]!r}")
    return f"; it looks like {look}"
