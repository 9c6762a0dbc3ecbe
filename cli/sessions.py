"""How commands open a model that they run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..frontend.models import stored_model
from .options import backend_option, common_options, options, threads_option, weights_option
from .output import tell
from .progress import Progress

if TYPE_CHECKING:
    from ..backends.sessions.session import Session
    from ..frontend.chat.templates import ChatTemplates
    from ..frontend.tokenizer import Tokenizer


@dataclass(frozen=True)
class Opener:
    """What a user said of how a model is to be run."""

    backend: str
    threads: int | None
    weights_file: Path | None
    archdefs: tuple[Path, ...]
    kv: str | None = None

    def open(self, model: Path, exact: bool = False) -> "Session":
        """A session of a model, loaded under a bar of progress."""
        from ..backends.sessions.load import load

        with Progress() as progress:
            return load(
                model,
                self.backend,
                threads=self.threads,
                kv=self.kv,
                exact=exact,
                weights=self.weights_file,
                archdefs=self.archdefs,
                progress=progress,
            )


def session_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of an `Opener`, which the command is given as `opener`, and those of all commands; `kv_option` beside
    it is the opener's too."""

    @wraps(command)
    def run(
        *,
        backend: str,
        threads: int | None,
        weights_file: Path | None,
        archdefs: tuple[Path, ...],
        kv: str | None = None,
        **given: Any,
    ) -> None:
        command(opener=Opener(backend, threads, weights_file, archdefs, kv), **given)

    return options(backend_option, threads_option, weights_option, common_options)(run)


def tell_notes(tokenizer: "Tokenizer") -> None:
    """Tells what a tokenizer wants a user to know."""
    for note in tokenizer.notes:
        tell(note)


def chat_templates(session: "Session", model: Path) -> "ChatTemplates":
    """The model's templates; Ollama's own, which is no jinja2, is named where there is no other."""
    templates = session.chat_templates
    stored = None if templates.sources else stored_model(model)
    if not stored or not stored.template:
        return templates
    return replace(templates, missing=f"{templates.missing}, and Ollama's ({stored.template}) is in Go's language")
