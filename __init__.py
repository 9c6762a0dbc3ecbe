"""ggufc compiles a GGUF model into a small program that runs on the GGUF file's own bytes.

    bundle = ggufc.export("gemma.gguf", "gemma/")           # needs ggufc[export]
    session = ggufc.load("gemma/", backend="iree", threads=2)
    for piece in session.generate("The capital of France is"):
        print(piece, end="", flush=True)

Importing it needs what a device has; only `export` needs the compiler's packages.
"""

from typing import TYPE_CHECKING, Any

from .backends.load import load
from .backends.session import Session
from .frontend.errors import GgufcError, InputError, UnsupportedError

if TYPE_CHECKING:
    from .backends.export import export

__all__ = ["GgufcError", "InputError", "Session", "UnsupportedError", "export", "load"]


def __getattr__(name: str) -> Any:
    """`export` brings the compiler's packages, so it is imported when it is first asked for."""
    if name == "export":
        from .backends.export import export

        return export
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
