"""ggufc's own folders: the cache of its user, and temporary ones that are known to be left over.

The owner of a temporary folder holds a lock on a file in it, which the system lets go of with the process, also across
the bounds of containers that share a volume. One whose lock can be taken is an orphan: its process was killed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".lock"


def cache_directory() -> Path:
    """Where models that are run without an export are compiled to, and kernels are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ggufc"


@contextmanager
def owned_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A folder of this process's own in `parent`, which vanishes at the end; orphans of the same kind vanish first.

    Raises:
        OSError: `parent` can't be written to.
    """
    for left in parent.iterdir():
        if left.name.startswith(prefix) and left.name.endswith(suffix) and not left.is_symlink():
            _remove_orphan(left)
    folder, lock = _make(parent, prefix, suffix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make(parent: Path, prefix: str, suffix: str) -> tuple[Path, int]:
    """A new folder and its lock, held. A sweep may come between the two and take the folder away: then once more."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix, suffix=suffix))
        lock = -1
        with suppress(FileNotFoundError, BlockingIOError):
            lock = _open_lock(folder)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:
                return folder, lock  # a file system without locks: no sweep can take one there either
            if os.path.samestat(os.fstat(lock), (folder / _LOCK).stat()):
                return folder, lock
        if lock >= 0:
            os.close(lock)


def _remove_orphan(folder: Path) -> None:
    """Removes a folder whose lock nobody holds; another user's, or one that goes at this moment, is left alone."""
    with suppress(OSError):
        lock = _open_lock(folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _open_lock(folder: Path) -> int:
    return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
