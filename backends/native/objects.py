"""Kernels as relocatable ELF objects, ready to be linked: the same bytes on every building machine."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from ...frontend import ggml_grids
from .kernel import Kernel, build_module
from .target import Target

_SPEED_LEVEL = 3
_UNROLL = False
"""Kernels unroll their loops as they need it: more is no faster, and full unrolling loses the hardware's prefetcher."""


@functools.cache
def _machine(target: Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=",".join(target.features),
        opt=3,
        reloc="pic",
        codemodel="small"
        if target.is_x86
        else "default",  # llvmlite's own default is the JIT's, with 64-bit GOT relocations
        abiname=target.abi,
    )


def _optimised(kernel: Kernel, target: Target) -> llvm.ModuleRef:
    module = llvm.parse_assembly(str(build_module(kernel, target)))
    module.get_function(kernel.name).visibility = "hidden"  # else calls go through slots that loaders must fill
    module.verify()
    machine = _machine(target)
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=_SPEED_LEVEL)
    options.loop_unrolling = _UNROLL
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def llvm_ir(kernel: Kernel, target: Target, optimised: bool = False) -> str:
    """The kernel as LLVM assembly, to look at: as emitted, or after the optimiser."""
    return str(_optimised(kernel, target) if optimised else build_module(kernel, target))


def fingerprint(kernel: Kernel, target: Target) -> str:
    """A digest of all that the object depends on, in hexadecimal: what a name means is said by this package's sources,
    and emitting a kernel to look at it would take longer than loading its object."""
    parts = (kernel.name, repr(target), _sources(), llvmlite.__version__, version("gguf"))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """A digest of the sources that kernels are made by."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.rglob("*.py"), Path(ggml_grids.__file__)]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def assembly(kernel: Kernel, target: Target) -> str:
    """The kernel as the target's assembly, to look at."""
    return _machine(target).emit_assembly(_optimised(kernel, target))


def object_code(kernel: Kernel, target: Target) -> bytes:
    """The kernel as an ELF object that defines `kernel.name` and needs no other symbol."""
    return _machine(target).emit_object(_optimised(kernel, target))


def data_layout(target: Target) -> str:
    """LLVM's data layout of the target."""
    return str(_machine(target).target_data)
