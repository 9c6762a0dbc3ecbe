"""What to install where a package is missing that only machines which make bundles have."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..frontend.errors import UnsupportedError

EXPORT_PACKAGES = ("iree", "jax", "jaxlib", "llvmlite")
"""Imported for exporting alone; a device that only runs bundles hasn't them."""


def remedy(error: BaseException) -> str | None:
    """What to say of a package that can't be imported; None where the error is about something else."""
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").split(".")[0] not in EXPORT_PACKAGES:
        return None
    return f"this needs the package {error.name}, which is not installed; pip install 'ggufc[export]'"


@contextmanager
def exporting() -> Iterator[None]:
    """Around what may need the exporter's packages, as a block or as a decorator.

    Raises:
        UnsupportedError: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if said := remedy(error):
            raise UnsupportedError(said) from None
        raise
