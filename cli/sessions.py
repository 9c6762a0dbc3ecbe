"""How commands open a model that they run."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .output import tell
from .progress import Progress

if TYPE_CHECKING:
    from ..backends.sessions.session import Session
    from ..frontend.tokenizer import Tokenizer


def opened(
    model: Path,
    backend: str,
    threads: int | None,
    weights_file: Path | None,
    archdefs: Iterable[Path],
    exact: bool = False,
) -> "Session":
    """A session of a model, as `session_options` ask for it, loaded under a bar of progress."""
    from ..backends.sessions.load import load

    with Progress() as progress:
        return load(
            model, backend, threads=threads, weights=weights_file, archdefs=archdefs, progress=progress, exact=exact
        )


def tell_notes(tokenizer: "Tokenizer") -> None:
    """Tells what a tokenizer wants a user to know."""
    for note in tokenizer.notes:
        tell(note)
