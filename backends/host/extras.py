"""What to install where a package is missing that only machines which make or serve bundles have."""

from collections.abc import Iterator
from contextlib import contextmanager

from ...frontend.errors import UnsupportedError

EXTRAS: dict[str, str] = {
    **dict.fromkeys(("iree", "jax", "jaxlib", "llvmlite"), "export"),
    **dict.fromkeys(("starlette", "uvicorn"), "serve"),
}
"""Which extra brings a package; a device that only runs bundles has none of them."""


def remedy(error: BaseException) -> str | None:
    """What to say of a package that can't be imported; None where the error is about something else."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    extra = EXTRAS.get((error.name or "").split(".")[0])
    return extra and f"this needs the package {error.name}, which is not installed; pip install 'ggufc[{extra}]'"


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
