"""Finding the definition of an architecture: the shipped ones, and those of a user's directories before them."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from .archdef.parser import read
from .archdef.tree import ArchDef
from .errors import InputError, UnsupportedError
from .near import nearest
from .paths import path_text

SUFFIX = ".archdef"
VARIABLE = "GGUFC_ARCHDEFS"


def as_paths(given: Iterable[Path | str] | Path | str) -> tuple[Path, ...]:
    """One directory or several, given as paths or as texts.

    Raises:
        InputError: what is given is neither.
    """
    if isinstance(given, (str, bytes, Path)) or not isinstance(given, Iterable):
        given = (given,)
    return tuple(Path(path_text(path, "a directory of definitions")) for path in given)


def directories(extra: Iterable[Path] = ()) -> list[Path]:
    """Where definitions are looked for, the first place winning: `extra`, $GGUFC_ARCHDEFS, the shipped ones."""
    named = [Path(p) for p in os.environ.get(VARIABLE, "").split(os.pathsep) if p]
    return [*extra, *named, Path(str(files("ggufc.archdefs")))]


@dataclass(frozen=True)
class Surveyed:
    """A file that defines an architecture: what it says, or why it can't be used."""

    name: str
    path: Path
    shipped: bool
    definition: ArchDef | None
    fault: str = ""


def survey(extra: Iterable[Path] = ()) -> list[Surveyed]:
    """For every architecture the file that `find` would take, by name, and whatever is broken."""
    found: dict[str, Surveyed] = {}
    *own, shipped = directories(extra)
    for directory in (*own, shipped):
        try:
            paths = _files(directory)
        except InputError as error:
            found[str(directory)] = Surveyed(str(directory), directory, False, None, str(error))
            continue
        for path in paths:
            if path.stem not in found:
                found[path.stem] = _surveyed(path, directory == shipped)
    return [found[name] for name in sorted(found)]


def _surveyed(path: Path, shipped: bool) -> Surveyed:
    try:
        return Surveyed(path.stem, path, shipped, _read_named(path))
    except (InputError, UnsupportedError) as error:
        return Surveyed(path.stem, path, shipped, None, str(error))


def _files(directory: Path) -> list[Path]:
    """The definitions in a directory.

    Raises:
        InputError: it isn't there.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory of definitions")
    return sorted(directory.glob(f"*{SUFFIX}"))


def _read_named(path: Path) -> ArchDef:
    """The definition in a file, which must be of the architecture that the file is named after."""
    definition = read(path)
    if definition.name != path.stem:
        raise InputError(f"{path}: defines {definition.name!r}, the file's name says {path.stem!r}")
    return definition


def find(architecture: str, extra: Iterable[Path] = ()) -> ArchDef:
    """The definition of an architecture. A broken file is an error, never a reason to take another in silence.

    Raises:
        InputError: the file that defines it doesn't parse, or a directory isn't there.
        UnsupportedError: no file defines it.
    """
    known: set[str] = set()
    for directory in directories(extra):
        for path in _files(directory):
            known.add(path.stem)
            if path.stem == architecture:
                return _read_named(path)
    raise UnsupportedError(
        f"no definition of architecture {architecture[:80]!r}{nearest(architecture, known)}; "
        f"there are {', '.join(sorted(known))}; add one with --archdefs DIR or ${VARIABLE}"
    )
