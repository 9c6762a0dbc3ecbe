"""The numba home: kernels called from Python on numpy arrays, on as many threads as wished.

The machine code is that of `objects.object_code`, the very bytes that are linked elsewhere, loaded into this process;
it is kept on disk between processes. A small entry of its own per kernel takes all arguments in one array of 64-bit
words and runs a range of work groups, so that one compiled numba loop serves every kernel.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .emit import Emitter
from .groups import add_entry
from .kernel import ELEMENTS, Kernel
from .objects import fingerprint, object_code
from .target import Target, host_target

# Workers that spin between launches use up their share of a core that others want too, and are then made to wait for
# milliseconds when they are needed. Read by the OpenMP library when numba first starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def launch(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, float],
    threads: int = 1,
    target: Target | None = None,
) -> None:
    """Runs the kernel's whole grid and returns when it is done.

    `arrays` are contiguous and named as the kernel's buffers, `scalars` as its scalars; an array's item size must be
    the buffer's (for "i8" any type will do: raw bytes). Nothing is copied. One thread runs in the caller's own.
    """
    prepare(kernel, arrays, scalars, threads, target)()


@dataclass(frozen=True)
class _Function:
    """A loaded kernel's entry: run(words, first group, end group)."""

    address: int
    run: Any
    engine: Any


@dataclass(frozen=True)
class Launch:
    """A kernel bound to its arguments; a call runs its whole grid. The arrays live as long as this does."""

    function: _Function
    arrays: tuple[np.ndarray, ...]
    words: np.ndarray
    address: int
    groups: int
    threads: int

    def __call__(self) -> None:
        if self.threads <= 1:
            self.function.run(self.address, 0, self.groups)
            return
        before = numba.get_num_threads()
        numba.set_num_threads(self.threads)
        _run_parallel(self.function.address, self.address, self.groups, self.threads)
        numba.set_num_threads(before)


def prepare(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, float],
    threads: int = 1,
    target: Target | None = None,
) -> Launch:
    """The launch of a kernel on these very arrays, for calls that are made again and again."""
    function = loaded(kernel, target or host_target())
    given = tuple(arrays[buffer.name] for buffer in kernel.buffers)
    for buffer, array in zip(kernel.buffers, given, strict=True):
        size = ELEMENTS[buffer.dtype][1]
        assert array.flags.c_contiguous, f"{kernel.name}: {buffer.name} is not contiguous"
        assert size in (1, array.itemsize), f"{kernel.name}: {buffer.name} is {array.dtype}, not {buffer.dtype}"
    groups = kernel.groups(scalars)
    values = [_word(scalars[scalar.name], scalar.dtype) for scalar in kernel.scalars]
    words = np.array([*(array.ctypes.data for array in given), *values, *groups], np.int64)
    total = math.prod(groups)
    return Launch(function, given, words, words.ctypes.data, total, min(threads, total, numba.get_num_threads()))


def _word(value: float, dtype: str) -> int:
    """A scalar argument as a 64-bit word."""
    return int(np.float32(value).view(np.int32)) if dtype == "f32" else int(value)


@functools.cache
def loaded(kernel: Kernel, target: Target) -> _Function:
    """The kernel in this process. Its entry takes the address of one array of 64-bit words (buffer addresses, scalars,
    work groups on each axis of the grid) and the range of work groups to run, numbered in row-major order.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    entry = llvm.parse_assembly(str(_entry_module(kernel, target)))
    engine = llvm.create_mcjit_compiler(entry, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(_object(kernel, target)))
    engine.finalize_object()
    address = engine.get_function_address("run")
    return _Function(address, ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address), engine)


def _entry_module(kernel: Kernel, target: Target) -> ir.Module:
    """run(words, first, end): calls the kernel for the work groups [first, end) of the grid in row-major order."""
    module = ir.Module("entry")
    module.triple = target.triple
    add_entry(module, kernel, lambda block: Emitter(block, target), "run")
    return module


def _object(kernel: Kernel, target: Target) -> bytes:
    """The kernel's object, from the disk if this very code was compiled before."""
    path = _cache_directory() / f"{kernel.name}-{fingerprint(kernel, target)[:24]}.o"
    try:
        return path.read_bytes()
    except OSError:
        code = object_code(kernel, target)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        Path(file.name).replace(path)  # whole or not at all, whoever else writes it
    except OSError:
        pass  # no place to keep it: the next process compiles again
    return code


def _cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ggufc" / "kernels"


@intrinsic
def _call(context, address, words, first, end):
    """Calls a loaded entry by its address."""

    def codegen(context, builder, signature, arguments):
        address, *rest = arguments
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 3)
        builder.call(builder.inttoptr(address, kind.as_pointer()), rest)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen


@numba.njit("void(int64, int64, int64, int64)", parallel=True, cache=True, error_model="numpy", nogil=True)
def _run_parallel(address, words, total, parts):
    for part in numba.prange(parts):
        first, end = part * total // parts, (part + 1) * total // parts
        _call(address, words, first, end)  # pyright: ignore[reportCallIssue]
