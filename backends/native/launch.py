"""The native home: kernels called from Python on numpy arrays, on as many threads as wished.

The machine code is that of `objects.object_code`, the very bytes that are linked elsewhere, loaded into this process;
it is kept on disk between processes.
"""

from __future__ import annotations

import functools
import hashlib
import math
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from ..host.folders import cache_directory
from .groups import add_entry
from .kernel import ELEMENTS, Kernel
from .objects import fingerprint, object_code
from .target import Target, host_target
from .team import Team, record

_DIGEST = 32
"""Bytes of the sha256 that stands behind a kept object, which is wrong code where a disk or a power cut damaged it."""


def launch(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, float],
    threads: int = 1,
    target: Target | None = None,
) -> None:
    """Runs the kernel's whole grid and returns when it is done.

    `arrays` are contiguous and named as the kernel's buffers, `scalars` as its scalars; an array's item size must be
    the buffer's (for "i8" any type will do: raw bytes). Nothing is copied.
    """
    given = [arrays[buffer.name] for buffer in kernel.buffers]
    for buffer, array in zip(kernel.buffers, given, strict=True):
        size = ELEMENTS[buffer.dtype][1]
        assert array.flags.c_contiguous, f"{kernel.name}: {buffer.name} is not contiguous"
        assert size in (1, array.itemsize), f"{kernel.name}: {buffer.name} is {array.dtype}, not {buffer.dtype}"
    groups = kernel.groups(scalars)
    values = [word(scalars[scalar.name], scalar.dtype) for scalar in kernel.scalars]
    words = np.array([*(array.ctypes.data for array in given), *values, *groups], np.int64)
    entry = loaded(kernel, target or host_target()).address
    _team(threads).run(np.array([record(entry, words.ctypes.data, math.prod(groups), threads)], np.int64))


def word(value: float, dtype: str) -> int:
    """A scalar argument as a 64-bit word."""
    return int(np.float32(value).view(np.int32)) if dtype == "f32" else int(value)


@functools.cache
def _team(threads: int) -> Team:
    return Team(threads)


@dataclass(frozen=True)
class Loaded:
    """A kernel in this process: the address of its entry (`groups.ENTRY`), and what keeps the code alive."""

    address: int
    engine: Any


@functools.cache
def loaded(kernel: Kernel, target: Target) -> Loaded:
    """The kernel's machine code with an entry, loaded once."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(opt=1, reloc="pic", codemodel="small")
    module = ir.Module("entry")
    module.triple = target.triple
    add_entry(module, kernel, target, "run")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(_object(kernel, target)))
    engine.finalize_object()
    return Loaded(engine.get_function_address("run"), engine)


def _object(kernel: Kernel, target: Target) -> bytes:
    """The kernel's object, from the disk if this very code was compiled before."""
    path = cache_directory() / "kernels" / f"{kernel.name}-{fingerprint(kernel, target)[:24]}.o"
    try:
        kept = path.read_bytes()
    except OSError:
        kept = b""
    code, digest = kept[:-_DIGEST], kept[-_DIGEST:]
    if not code or hashlib.sha256(code).digest() != digest:
        code = object_code(kernel, target)
        _keep(path, code + hashlib.sha256(code).digest())
    return code


def _keep(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all, whoever else writes it; where there is no place for it, the next process
    compiles again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, buffering=0, delete=False) as file:
            part = Path(file.name)
            try:
                file.write(content)
                part.replace(path)
            except BaseException:
                part.unlink()
                raise
