"""Finding the definition of an architecture: the shipped ones, and those of a user's directories before them."""

import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from .archdef import ArchDef, nearest, read
from .errors import InputError, UnsupportedError

SUFFIX = ".archdef"
VARIABLE = "GGUFC_ARCHDEFS"


def as_paths(given: Iterable[Path | str] | Path | str) -> tuple[Path, ...]:
    """One directory or several, given as paths or as texts."""
    return (Path(given),) if isinstance(given, (str, Path)) else tuple(Path(p) for p in given)


def directories(extra: Iterable[Path] = ()) -> list[Path]:
    """Where definitions are looked for, the first place winning: `extra`, $GGUFC_ARCHDEFS, the shipped ones."""
    named = [Path(p) for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    return [*extra, *named, Path(str(files("ggufc.archdefs")))]


def find(architecture: str, extra: Iterable[Path] = ()) -> ArchDef:
    """The definition of an architecture. A broken file is an error, never a reason to take another in silence.

    Raises:
        InputError: the file that defines it doesn't parse, or a directory isn't there.
        UnsupportedError: no file defines it.
    """
    known: set[str] = set()
    for directory in directories(extra):
        if not directory.is_dir():
            raise InputError(f"{directory}: no such directory of definitions")
        for path in sorted(directory.glob(f"*{SUFFIX}")):
            known.add(path.stem)
            if path.stem == architecture:
                definition = read(path)
                if definition.name != architecture:
                    raise InputError(f"{path}: defines {definition.name!r}, the file's name says {architecture!r}")
                return definition
    raise UnsupportedError(
        f"no definition of architecture {architecture[:80]!r}{nearest(architecture, known)}; "
        f"there are {', '.join(sorted(known))}; add one with --archdefs DIR or ${VARIABLE}"
    )
