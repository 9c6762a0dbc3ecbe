"""What is given where a model is asked for: a bundle or a `.gguf`, the file with its weights, and its graph."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...frontend.archdef.parser import read as read_definition
from ...frontend.definitions import SUFFIX
from ...frontend.errors import InputError
from ...frontend.models import find_model
from ...frontend.paths import path_text
from .bundle import Bundle, read_bundle

if TYPE_CHECKING:
    from ...graph.model import Model


def located(model: Path | str, weights: Path | str | None = None) -> tuple[Bundle | None, Path]:
    """The bundle that is meant, None for a `.gguf`, and the file that holds the weights, of several the first.

    Args:
        model: a bundle, a `.gguf`, or a name that `find_model` knows.
        weights: the GGUF of a bundle whose link to it is broken.

    Raises:
        InputError: the bundle is damaged, its weights are gone or others, a `.gguf` was given other weights, or as
            `find_model`.
    """
    path = find_model(model)
    if path.is_dir():
        bundle = read_bundle(path)
        return bundle, bundle.weights(None if weights is None else Path(path_text(weights, "the weights' file")))[0]
    if weights is not None:
        raise InputError(f"{path}: is no bundle, so it takes no other weights")
    return None, path


def lowered(bundle: Bundle | None, file: Path, archdefs: Iterable[Path] = (), *, all_read: bool = True) -> "Model":
    """The model of a file, lowered by the definition that its bundle was compiled with and holds, if it has one.

    `all_read` is `open_model`'s.

    Raises:
        InputError: a bundle was given definitions, its own is damaged, or as `open_model`.
        UnsupportedError: as `open_model`.
    """
    from ...graph.model import lower_model, open_model
    from ...passes.first_layers import first_layers

    if not bundle:
        return open_model(file, archdefs, all_read=all_read)
    check_archdefs(bundle, archdefs)
    architecture = bundle.manifest["architecture"]
    definition = read_definition(bundle.file(f"{architecture['name']}{SUFFIX}"))
    if (definition.name, definition.sha256) != (architecture["name"], architecture["sha256"]):
        raise InputError(f"{definition.source}: not the definition that the manifest names; export the model again")
    if bundle.has_archive:
        from .archive import open_archive

        model = lower_model(open_archive(bundle, file), definition=definition)
    else:
        model = open_model(file, definition=definition)
    return first_layers(model, bundle.manifest.get("layers"))


def check_archdefs(bundle: Bundle | None, archdefs: Iterable[Path]) -> None:
    """Definitions are for what is compiled yet.

    Raises:
        InputError: there are some for a bundle.
    """
    if bundle and tuple(archdefs):
        raise InputError(
            f"{bundle.path}: compiled with a definition already, so it takes no --archdefs; export it with them"
        )


def activations_of(bundle: Bundle | None) -> int:
    """Bits that prompts round activations to: a bundle says it, a `.gguf` is run with 16."""
    return bundle.manifest["activations"] if bundle else 16


def check_own_kv(bundle: Bundle | None, kv: str | None) -> None:
    """A type of KV caches is for what is compiled yet, or a bundle's own.

    Raises:
        InputError: another is wanted of a bundle.
    """
    if bundle and kv is not None and kv != bundle.manifest["kv"]:
        raise InputError(
            f"{bundle.path}: compiled for KV caches of type {bundle.manifest['kv']}; export the model with --kv {kv}, "
            f"or as kv={kv!r} in Python"
        )
