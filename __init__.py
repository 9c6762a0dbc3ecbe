"""ggufc compiles a GGUF model into a small program that runs on the GGUF file's own bytes.

    bundle = ggufc.export("gemma.gguf", "gemma/")           # needs ggufc[export]
    session = ggufc.load("gemma/", backend="iree", threads=2)
    for piece in session.generate("The capital of France is"):
        print(piece, end="", flush=True)

Importing it takes no time and no package; what a name needs is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .frontend.errors import GgufcError, InputError, UnsupportedError

if TYPE_CHECKING:
    from .backends.bundles.export import export
    from .backends.sessions.load import load
    from .backends.sessions.session import Session

__all__ = ["GgufcError", "InputError", "Session", "UnsupportedError", "export", "load"]

_HOMES = {"Session": "sessions.session", "export": "bundles.export", "load": "sessions.load"}


def __getattr__(name: str) -> Any:
    """`export` needs the compiler's packages, and `load` and `Session` what a device has."""
    if name in _HOMES:
        from .backends.host.extras import exporting

        with exporting():
            return getattr(import_module(f".backends.{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
