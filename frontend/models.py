"""Finding the model that somebody means: a path, or a name in the stores of other programs. Nothing is downloaded.

gemma.gguf, gemma/            a file (of a split model the first), or a bundle
gemma3:270m                   NAME[:TAG] in the Ollama store, with its host and namespace where they aren't usual
org/repo, org/repo:Q8_0       in the Hugging Face cache; the quantization or file, where the repository has several
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from .errors import InputError
from .near import near
from .paths import path_text
from .splits import is_first_part
from .stores.folders import reason, unreadable
from .stores.hugging_face import (
    HUGGING_FACE,
    Repository,
    choices,
    hugging_face_folder,
    hugging_face_repositories,
    hugging_face_unreadable,
)
from .stores.ollama import OLLAMA, ollama_folders, ollama_models, ollama_unreadable
from .stores.stored import StoredModel

MANIFEST = "manifest.json"
"""What makes a folder a bundle."""
_HUGGING_FACE_HOSTS = ("hf.co/", "huggingface.co/")
_OLLAMA_DEFAULTS = ("registry.ollama.ai/", "library/")
_SHOWN = 8
"""Names that a message lists at most."""


@dataclass(frozen=True)
class _Places:
    """What the stores hold, looked at once for one question."""

    ollama: list[StoredModel]
    hugging_face: list[Repository]

    def names(self) -> list[str]:
        """What can be read, by name."""
        return [m.name for m in (*self.ollama, *(m for r in self.hugging_face for m in r.models)) if not m.fault]


def find_model(name: Path | str | bytes) -> Path:
    """Where the model is that a path or a name means: a `.gguf`, of a split model the first, or a bundle's folder.

    What is at a path goes before a name; a name that two stores know is refused.

    Raises:
        InputError: nothing has that name (the message says where it was looked for, and what comes near), several
            have, the store's copy is damaged or unfinished, or what was given is no name at all.
    """
    text = path_text(name, "the model")
    if not text:
        raise InputError("the model's name is empty; give a file, a bundle or a name that `ggufc status` lists")
    path = Path(text)
    if _stands_for_itself(path, text):
        return path
    places = _Places(ollama_models(), hugging_face_repositories())
    found = _in_ollama(text, places.ollama) + _in_hugging_face(text, places.hugging_face)
    if len(found) > 1:
        origins = " and ".join(f"{model.origin} ({model.path})" for model in found)
        raise InputError(f"{text}: is in two stores, {origins}; give the path of the one that is meant")
    if found and found[0].fault:
        raise InputError(f"{found[0].name}: {found[0].fault}")
    if found:
        return found[0].path
    if path.is_dir():
        held = _listed([p.name for p in local_models(path)])
        raise InputError(f"{path}: is a directory without {MANIFEST}, so no bundle; it holds {held or 'no model'}")
    if os.path.lexists(path) or path.name.endswith(".gguf") or path.is_absolute() or text.startswith((".", "~")):
        return path  # whoever reads it says what is wrong with it
    raise InputError(_miss(text, path, places))


def stored_model(name: Path | str | bytes) -> StoredModel | None:
    """What a store tells of the model of a name, such as Ollama's template; None for a path and for what isn't there.

    Raises:
        InputError: as `find_model`, where a name could mean several models.
    """
    text = path_text(name, "the model")
    if _stands_for_itself(Path(text), text):
        return None
    found = _in_ollama(text, ollama_models()) + _in_hugging_face(text, hugging_face_repositories())
    return found[0] if len(found) == 1 else None


def unreadable_folders() -> list[str]:
    """This folder and those of the stores, where they are there and can't be listed, with the reason."""
    return [*unreadable(Path.cwd(), 0), *ollama_unreadable(), *hugging_face_unreadable()]


def local_models(folder: Path) -> list[Path]:
    """The bundles and the models (of a split one the first file) in a folder."""
    with suppress(OSError):
        entries = sorted(islice(folder.iterdir(), 2000))
        return [p for p in entries if is_bundle(p) or (p.suffix == ".gguf" and is_first_part(p.name))]
    return []


def known_names() -> list[str]:
    """What could be typed here for a model."""
    places = _Places(ollama_models(), hugging_face_repositories())
    return [f"{p.name}/" if p.is_dir() else p.name for p in local_models(Path())] + places.names()


def _stands_for_itself(path: Path, text: str) -> bool:
    """Whether a path is there; a folder without a manifest may share its name with a stored model."""
    try:
        return "\0" in text or is_bundle(path) or (os.path.lexists(path) and not path.is_dir())
    except OSError:
        return True


def is_bundle(path: Path) -> bool:
    """Whether a folder has a manifest."""
    with suppress(OSError):
        return (path / MANIFEST).is_file()
    return False


def _in_ollama(text: str, models: Iterable[StoredModel]) -> list[StoredModel]:
    wanted = text.casefold()
    for default in _OLLAMA_DEFAULTS:
        wanted = wanted.removeprefix(default)
    wanted = wanted if ":" in wanted.rpartition("/")[2] else f"{wanted}:latest"
    return [model for model in models if model.name.casefold() == wanted][:1]


def _in_hugging_face(text: str, repositories: Iterable[Repository]) -> list[StoredModel]:
    for host in _HUGGING_FACE_HOSTS:
        text = text.removeprefix(host)
    for repository in repositories:
        name = repository.name.casefold()
        rest = text[len(name) :]
        if not text.casefold().startswith(name) or rest[:1] not in ("", ":", "/"):
            continue
        wanted = rest[1:]
        found = choices(repository, wanted) if wanted else list(repository.models)
        if len(found) == 1:
            return found
        if not repository.models:
            raise InputError(f"{text}: {repository.fault}")
        if rest[:1] == "/" and not wanted.endswith(".gguf"):
            continue
        listed = _listed([model.name for model in found or repository.models])
        said = f"has {len(found)} models, give one of" if found else f"has no {wanted!r}; it has"
        raise InputError(f"{text}: {repository.name} in the Hugging Face cache {said} {listed}")
    return []


def _miss(text: str, path: Path, places: _Places) -> str:
    """Where a name was looked for, and what is there that comes near."""
    beside = [f"{path.with_name(p.name)}{'/' if p.is_dir() else ''}" for p in local_models(path.parent)]
    names = [*beside, *places.names()]
    short = {name.removesuffix(":latest"): name for name in names}
    word = text.casefold()
    inside = [name for key, name in short.items() if word in key.casefold() or key.casefold() in word]
    close = [short[key] for key in near(text, short, _SHOWN, 0.55)]
    meant = list(dict.fromkeys([*close, *inside]))
    looked = [
        f"{path.absolute().parent}",
        *(_told(OLLAMA, folder, len(places.ollama), "models") for folder in ollama_folders()),
        _told(HUGGING_FACE, hugging_face_folder(), len(places.hugging_face), "repositories"),
    ]
    hint = (
        f"did you mean {_listed(meant)}?" if meant else f"there is {_listed(names)}" if names else "no model is there"
    )
    told = "; ".join([f"looked in {', '.join(looked)}", *unreadable_folders()[:_SHOWN]])
    return f"{text}: no such file, bundle or model: {hint}; {told}; ggufc downloads nothing"


def _told(origin: str, folder: Path, count: int, unit: str) -> str:
    """A store's place and what is there."""
    try:
        with os.scandir(folder):
            return f"{folder} ({origin}: {count} {unit})"
    except FileNotFoundError:
        return f"{folder} ({origin}: not there)"
    except (OSError, ValueError) as error:
        return f"{folder} ({origin}: {reason(error)})"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
