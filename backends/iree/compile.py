# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""From the portable module to a `.vmfb`: legalised, kernels linked, compiled for one target."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from iree.compiler import ir
from iree.compiler.tools.binaries import find_tool

from ...frontend.errors import GgufcError, InputError, UnsupportedError
from ..host.folders import owned_folder
from ..native.kernel import Kernel
from ..native.objects import object_code
from ..native.target import Target
from .executables import object_name
from .legalise import legalise
from .parameters import Place

FLAGS = (
    "--iree-input-type=stablehlo",
    "--iree-opt-level=O3",
    "--iree-opt-const-eval=false",  # what is constant may need a kernel, which the compiler can't run
    "--iree-vm-bytecode-module-strip-source-map=true",
    "--iree-vm-emit-polyglot-zip=false",
    "--iree-llvmcpu-debug-symbols=false",
)


OURS = ("--iree-hal-target-device", "--iree-hal-target-backends")
"""Flags without effect, since the module says what it is compiled for."""
_PREFIX = "ggufc-compile-"


class CompileError(GgufcError):
    """IREE refused a module that this program made: a fault of ours, with the compiler's words."""

    exit_code = 70


@dataclass(frozen=True)
class Compiled:
    """`mlir` is the legalised module as text, for looking; `vmfb` the compiled one; `parameters` what it maps."""

    mlir: str
    vmfb: bytes
    parameters: dict[str, Place]


@dataclass(frozen=True)
class StaticLibrary:
    """A module whose code is linked into the program that loads it.

    `vmfb` finds the code by its name among the libraries that the program registers; `code` is an ELF object that
    needs no other, `header` declares in C the one function that it exports.
    """

    vmfb: bytes
    parameters: dict[str, Place]
    code: bytes
    header: str


def check_flags(flags: Sequence[str]) -> None:
    """Flags are the compiler's own: of others one could name an output or ask for help.

    Raises:
        InputError: one isn't, or has no effect.
    """
    for flag in flags:
        if flag.partition("=")[0] in OURS:
            raise InputError(f"flag {flag!r}: has no effect, as the target says what is compiled for; give --target")
        if not flag.startswith("--iree-"):
            raise InputError(f"flag {flag!r}: wanted one of iree-compile's that begin with --iree-")


def compile_module(
    text: str, places: Mapping[str, Place], target: Target, flags: Sequence[str] = (), activations: int = 16
) -> Compiled:
    """Compiles the portable module for one target.

    Args:
        text: the portable module.
        places: where each of its weights lies in the files that will be mapped.
        target: the machine that will run it.
        flags: more flags for `iree-compile`.
        activations: as for `legalise`.

    Raises:
        CompileError: with the compiler's own words.
        InputError: the compiler refuses one of `flags` or fails with them, or the temporary folder can't be written to.
        UnsupportedError: the compiler isn't there, or the target lacks instructions that the code can't do without.
    """
    with ir.Context(), ir.Location.unknown():
        legal = legalise(text, places, target, activations=activations)
        mlir = legal.module.operation.get_asm(enable_debug_info=False)
    with _workplace() as folder:
        _write_objects(legal.kernels, target, folder)
        return Compiled(mlir, _compile(mlir, target, flags, folder), legal.parameters)


def compile_library(
    text: str, places: Mapping[str, Place], target: Target, flags: Sequence[str] = (), activations: int = 16
) -> StaticLibrary:
    """Compiles the portable module to be linked into a program; arguments and errors are `compile_module`'s."""
    with _workplace() as folder:
        compiled, code = folder / "library.o", folder / "linked.o"
        with ir.Context(), ir.Location.unknown():  # the name alone: it comes to stand in the module
            legal = legalise(text, places, target, compiled.name, activations)
            mlir = legal.module.operation.get_asm(enable_debug_info=False)
        objects = _write_objects(legal.kernels, target, folder)
        vmfb = _compile(mlir, target, flags, folder, cwd=folder)
        link = [_tool("iree-lld"), "-flavor", "gnu", "-r", str(compiled), *map(str, objects), "-o", str(code)]
        run = subprocess.run(link, capture_output=True, check=False)
        if run.returncode:
            raise _refusal(run.stderr.decode(errors="replace"), target, ())
        header = compiled.with_suffix(".h").read_text("utf-8")
        return StaticLibrary(vmfb, legal.parameters, code.read_bytes(), header)


def _write_objects(kernels: Sequence[Kernel], target: Target, folder: Path) -> list[Path]:
    """The kernels' objects, where the compiler looks for them."""
    paths = [folder / object_name(kernel) for kernel in kernels]
    for kernel, path in zip(kernels, paths, strict=True):
        path.write_bytes(object_code(kernel, target))
    return paths


def _compile(mlir: str, target: Target, flags: Sequence[str], folder: Path, cwd: Path | None = None) -> bytes:
    """What the compiler makes of a legal module whose objects are in a folder."""
    check_flags(flags)
    vmfb = folder / "module.vmfb"
    search = f"--iree-hal-executable-object-search-path={folder}"
    command = [_tool("iree-compile"), "-", *FLAGS, search, *flags, "-o", str(vmfb)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    run = subprocess.run(command, input=mlir.encode(), capture_output=True, env=environment, cwd=cwd, check=False)
    if run.returncode:
        raise _refusal(run.stderr.decode(errors="replace"), target, flags)
    if not vmfb.exists():
        raise InputError(f"iree-compile made no module with the flags {' '.join(flags)}")
    return vmfb.read_bytes()


def _tool(name: str) -> str:
    """The path of one of the compiler's programs."""
    try:
        return find_tool(name)
    except ValueError as error:
        why = str(error).splitlines()[0]
        raise UnsupportedError(f"{name} can't be run: {why}; pip install 'ggufc[export]'") from None


@contextmanager
def _workplace() -> Iterator[Path]:
    """A temporary folder for one compilation."""
    place = _plain_folder()
    try:
        with owned_folder(place, _PREFIX) as folder:
            yield folder
    except OSError as error:
        where = os.fsdecode(error.filename or place)
        raise InputError(f"{where}: {error.strerror or error}; compiling needs a TMPDIR with room in it") from None


def _refusal(report: str, target: Target, flags: Sequence[str]) -> GgufcError:
    """The error of a compilation that failed: of whoever gave flags, or chose a target with too little, else ours."""
    words = _first_words(report)
    if any(flag.split("=")[0].lstrip("-") in words for flag in flags):
        return InputError(f"iree-compile refuses a flag: {words}")
    if "No space left" in report:
        return InputError(f"{_plain_folder()}: No space left on device; compiling needs a TMPDIR with room in it")
    if flags:
        return InputError(f"iree-compile fails with {' '.join(flags)}: {words}; leave flags out until it doesn't")
    if "undefined symbol" in words and any(feature.startswith("-") for feature in target.features):
        symbol = words.rpartition(":")[2].strip()
        return UnsupportedError(
            f"target {target.name}: its code would call {symbol}, which no module has, for want of an instruction; "
            "leave out fewer features"
        )
    return CompileError(
        f"a fault of ggufc: IREE refused the module for {target.name}: {words}; please report it with the model's name"
    )


def _plain_folder() -> Path:
    """Where temporary files go: the compiler's linker takes no path with a blank or a quote in it."""
    usual = tempfile.gettempdir()
    if re.fullmatch(r"[\w./+-]+", usual, re.ASCII):
        return Path(usual)
    plain = [folder for folder in ("/tmp", "/var/tmp") if os.access(folder, os.W_OK)]
    if not plain:
        raise InputError(f"{usual!r}: IREE's linker can't work in a path like this; set TMPDIR to a plain one")
    return Path(plain[0])


def _first_words(report: str) -> str:
    """The line of the compiler's report that says what is wrong."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line] or [
        line for line in lines if line.startswith("iree-compile:")
    ]
    return (telling or lines or ["it gave no reason"])[0]
