"""How a bundle is written: to a temporary place, from which it is moved into being whole."""

import contextlib
import ctypes
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ...frontend.errors import InputError
from ...frontend.models import MANIFEST
from ..host.folders import owned_folder
from .bundle import FORMAT, METADATA, read_bundle, sha256
from .manifest import sealed

UNFINISHED = ".ggufc-export-"
"""With what the names of folders begin in which a bundle is made; one that a killed process left goes at the next."""


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest, with size and sha256 of every other file in the folder but the weights, and its own."""
    files = {
        str(p.relative_to(folder)): {"size": p.stat().st_size, "sha256": sha256(p)}
        for p in sorted(folder.rglob("*"))
        if p.is_file() and (p.suffix not in (".gguf", ".irpa") or p.name == METADATA)
    }
    text = json.dumps(sealed({"format": FORMAT, **manifest, "files": files}), indent=1, ensure_ascii=True)
    (folder / MANIFEST).write_text(text + "\n", "utf-8")


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well, and vanishes when it doesn't.

    A bundle that stands at `path` is replaced in one step; it stays whole until then. Errors of the block are its own:
    what it writes into the folder, it writes under `writing`.

    Raises:
        InputError: `path` holds something else than a bundle, or can't be written.
    """
    path = Path(os.path.realpath(path))
    _check_replaceable(path)
    with ExitStack() as stack:
        with writing(path):
            stack.callback(_remove_empty, [parent for parent in path.parents if not parent.exists()])
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(owned_folder(path.parent, UNFINISHED))
            probe = folder / path.name  # a name that this file system can't hold is told before the work
            probe.mkdir()
            probe.rmdir()
            aside = folder / "bundle"
            aside.mkdir()
        yield aside
        with writing(path):
            _move_into_being(aside, path)


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _check_replaceable(path: Path) -> None:
    """Nothing is replaced but an empty folder, and a bundle with nothing of the user's own in it."""
    if not os.path.lexists(path):
        above = next(parent for parent in path.parents if os.path.lexists(parent))
        if not above.is_dir():
            raise InputError(f"{path}: {above} is no folder; choose another place")
        return
    if not path.is_dir():
        raise InputError(f"{path}: exists and is no folder; choose another place")
    if path == Path(os.path.realpath(Path.cwd())):
        raise InputError(f"{path}: is the current directory, which can't be replaced; choose another place")
    found = {entry.name for entry in path.iterdir()}
    if not found:
        return
    try:
        bundle = read_bundle(path)
        known = {MANIFEST, *bundle.weight_files, *bundle.manifest["files"]}
    except InputError as error:
        raise InputError(f"{path}: exists, and is no whole bundle ({error}); choose another place") from None
    if strangers := sorted(found - known):
        raise InputError(f"{path}: holds {strangers[0]!r}, which is none of the bundle's; ggufc would delete it")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the system's errors in the block into one that says that `path` can't be written.

    Raises:
        InputError: with the system's reason.
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from None


def check_room(folder: Path, path: Path, size: int) -> None:
    """That the disk of `folder`, which becomes `path`, has room for so many bytes, before any work is done for them.

    Raises:
        InputError: it hasn't.
    """
    with writing(path):
        total, _, free = shutil.disk_usage(folder)
    if total and free < size:  # some network file systems don't say how large they are
        raise InputError(f"{path}: can't be written: No space left on device: wants {size} bytes, and {free} are free")


def _move_into_being(temporary: Path, path: Path) -> None:
    """Puts a folder in the place of another, which is then in the temporary one's, or beside it."""
    for file in temporary.rglob("*"):
        if file.is_file() and not file.is_symlink():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
    if not path.exists():
        temporary.rename(path)
    elif not _exchange(temporary, path):
        # no atomic exchange on this system: the old one stands aside for the moment between two renames
        path.rename(temporary.with_suffix(".old"))
        temporary.rename(path)


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders in one step (Linux renameat2 with RENAME_EXCHANGE); False where that can't be done."""
    with contextlib.suppress(AttributeError, OSError):
        at_cwd, exchange = -100, 2
        libc = ctypes.CDLL(None, use_errno=True)
        return libc.renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0
    return False
