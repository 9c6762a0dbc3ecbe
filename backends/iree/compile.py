# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""From the portable module to a `.vmfb`: legalised, kernels linked, compiled for one target."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iree.compiler import ir, tools

from ...frontend.errors import GgufcError
from ..native.objects import object_code
from ..native.target import Target
from .executables import object_name
from .legalise import Place, legalise

FLAGS = (
    "--iree-opt-level=O3",
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-vm-emit-polyglot-zip=false",
    "--iree-llvmcpu-debug-symbols=false",
)


class CompileError(GgufcError):
    """IREE refused the module: a fault of this program, reported with the compiler's first line."""

    exit_code = 3


@dataclass(frozen=True)
class Compiled:
    """`mlir` is the legalised module as text, for looking; `vmfb` the compiled one; `parameters` what it maps."""

    mlir: str
    vmfb: bytes
    parameters: dict[str, Place]


def compile_module(text: str, places: Mapping[str, Place], target: Target, flags: Sequence[str] = ()) -> Compiled:
    """Compiles the portable module for one target.

    Args:
        text: the portable module.
        places: where each of its weights lies in the file that will be mapped.
        target: the machine that will run it.
        flags: more flags for `iree-compile`.

    Raises:
        CompileError: with the compiler's own words.
    """
    with ir.Context(), ir.Location.unknown():
        legal = legalise(text, places, target)
        mlir = legal.module.operation.get_asm(enable_debug_info=False)
    with tempfile.TemporaryDirectory(prefix="ggufc-") as folder:
        for kernel in legal.kernels:
            (Path(folder) / object_name(kernel)).write_bytes(object_code(kernel, target))
        search = f"--iree-hal-executable-object-search-path={folder}"
        try:
            vmfb = tools.compile_str(mlir, input_type="stablehlo", extra_args=[*FLAGS, search, *flags])
        except tools.CompilerToolError as error:
            raise CompileError(f"IREE refused the module for {target.name}: {_first_words(str(error))}") from error
    assert vmfb is not None
    return Compiled(mlir, vmfb, legal.parameters)


def _first_words(report: str) -> str:
    """The line of the compiler's report that says what is wrong."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line] or [line for line in lines if line.startswith("iree-compile:")]
    return (telling or lines or ["it gave no reason"])[0]
