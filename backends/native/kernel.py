"""What a kernel is: a symbol, a calling convention, a grid of work groups and the function that emits its body.

The C function of every kernel, in both homes, returns nothing and takes, in this order:
for each buffer its pointer and an i64 offset in elements of its type, then the scalars, then one i64 work-group id per
grid axis. It is thread safe, has no global state and calls no library. Buffers of bytes need no alignment,
others four bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llvmlite import ir

from .emit import F16, F32, I8, I16, I32, I64, PTR, Emitter, Value
from .target import Target

ELEMENTS: dict[str, tuple[ir.Type, int]] = {
    "i8": (I8, 1),
    "i16": (I16, 2),
    "i32": (I32, 4),
    "f16": (F16, 2),
    "f32": (F32, 4),
    "q8_0": (I8, 1),
}
"""Buffer element types: LLVM type and bytes. "i8" are a weight's bytes, "q8_0" those of a cache's blocks."""
SCALARS: dict[str, ir.Type] = {"i64": I64, "f32": F32}


@dataclass(frozen=True)
class Buffer:
    """A memory argument: `dtype` is a key of ELEMENTS; `output` says that the kernel writes it."""

    name: str
    dtype: str
    output: bool = False


@dataclass(frozen=True)
class Scalar:
    """A number argument: `dtype` is "i64" or "f32"."""

    name: str
    dtype: str = "i64"


Arguments = Mapping[str, Value]
"""What a body sees: buffer name -> address of its first byte, scalar name -> value, "@axis" -> work-group id."""


@dataclass(frozen=True)
class Kernel:
    """One kernel for one symbol.

    `grid` has one to three axes (scalar name, divisor): an axis has ceil(scalar / divisor) work groups.
    Two kernels are equal if their symbols are: `name` must be unique for everything that changes the body.
    """

    name: str
    buffers: tuple[Buffer, ...] = field(compare=False)
    scalars: tuple[Scalar, ...] = field(compare=False)
    grid: tuple[tuple[str, int], ...] = field(compare=False)
    emit: Callable[[Emitter, Arguments], None] = field(compare=False, repr=False)

    def groups(self, scalars: Mapping[str, float]) -> tuple[int, ...]:
        """Number of work groups on each axis for these scalar values."""
        return tuple(-(-int(scalars[name]) // divisor) for name, divisor in self.grid)


class _KernelAttributes(ir.values.FunctionAttributes):
    """llvmlite's function attributes and the one that keeps LLVM from turning loops into memset and memcpy calls."""

    _known = ir.values.FunctionAttributes._known | {'"no-builtins"'}


def signature(kernel: Kernel) -> ir.FunctionType:
    """The kernel's C function as an LLVM type."""
    buffers = [t for _ in kernel.buffers for t in (PTR, I64)]
    return ir.FunctionType(
        ir.VoidType(), [*buffers, *(SCALARS[s.dtype] for s in kernel.scalars), *(I64 for _ in kernel.grid)]
    )


def build_module(kernel: Kernel, target: Target) -> ir.Module:
    """The LLVM module (not yet optimised) that holds the kernel alone."""
    module = ir.Module(kernel.name)
    module.triple = target.triple
    function = ir.Function(module, signature(kernel), kernel.name)
    function.attributes = _KernelAttributes(('"no-builtins"', "nounwind"))
    e = Emitter(function.append_basic_block("entry"), target)
    given = iter(function.args)
    arguments: dict[str, Value] = {}
    for buffer in kernel.buffers:
        address, offset = next(given), next(given)
        arguments[buffer.name] = e.at(address, e.times(offset, ELEMENTS[buffer.dtype][1]))
    arguments.update({scalar.name: next(given) for scalar in kernel.scalars})
    arguments.update({f"@{axis}": next(given) for axis, _ in kernel.grid})
    kernel.emit(e, arguments)
    e.ret_void()
    return module
