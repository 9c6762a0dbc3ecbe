# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""From the portable module to a `.vmfb`: legalised, kernels linked, compiled for one target."""

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from iree.compiler import ir
from iree.compiler.tools.binaries import find_tool

from ...frontend.errors import GgufcError
from ..bundle import remove_if_orphaned
from ..native.objects import object_code
from ..native.target import Target
from .executables import object_name
from .legalise import Place, legalise

FLAGS = (
    "--iree-input-type=stablehlo",
    "--iree-opt-level=O3",
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-vm-emit-polyglot-zip=false",
    "--iree-llvmcpu-debug-symbols=false",
)


_PREFIX = "ggufc-compile-"


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
    place = _plain_folder()
    for left in place.glob(f"{_PREFIX}*"):
        remove_if_orphaned(left, left.name.removeprefix(_PREFIX).split("-")[0])
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=place) as folder:
        for kernel in legal.kernels:
            (Path(folder) / object_name(kernel)).write_bytes(object_code(kernel, target))
        vmfb = Path(folder) / "module.vmfb"
        search = f"--iree-hal-executable-object-search-path={folder}"
        command = [find_tool("iree-compile"), "-", *FLAGS, search, *flags, "-o", str(vmfb)]
        run = subprocess.run(
            command, input=mlir.encode(), stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": folder}, check=False
        )
        if run.returncode:
            words = _first_words(run.stderr.decode(errors="replace"))
            raise CompileError(f"IREE refused the module for {target.name}: {words}")
        return Compiled(mlir, vmfb.read_bytes(), legal.parameters)


def _plain_folder() -> Path:
    """Where temporary files go: the compiler's linker takes no path with a blank or a quote in it."""
    usual = tempfile.gettempdir()
    if re.fullmatch(r"[\w./+-]+", usual, re.ASCII):
        return Path(usual)
    plain = [folder for folder in ("/tmp", "/var/tmp") if os.access(folder, os.W_OK)]
    if not plain:
        raise CompileError(f"{usual!r}: IREE's linker can't work in a path like this; set TMPDIR to a plain one")
    return Path(plain[0])


def _first_words(report: str) -> str:
    """The line of the compiler's report that says what is wrong."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line] or [
        line for line in lines if line.startswith("iree-compile:")
    ]
    return (telling or lines or ["it gave no reason"])[0]
