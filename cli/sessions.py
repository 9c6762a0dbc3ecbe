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
    model: Path, backend: str, threads: int | None, weights_file: Path | None, archdefs: Iterable[Path], **more: bool
) -> "Session":
    """A session of a model, as `session_options` ask for it, under a bar of progress; `more` is for `load`."""
    from ..backends.sessions.load import load

    with Progress() as progress:
        return load(model, backend, threads=threads, weights=weights_file, archdefs=archdefs, progress=progress, **more)


def tell_notes(tokenizer: "Tokenizer") -> None:
    """Tells what a tokenizer wants a user to know."""
    for note in tokenizer.notes:
        tell(note)
