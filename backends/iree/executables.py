# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""Kernels as an executable of the IREE program: their object files, and the function that calls them."""

from dataclasses import dataclass

from iree.compiler import ir

from ..native.kernel import Kernel
from ..native.objects import data_layout
from ..native.target import Target

_ELEMENTS = {"i8": "i8", "i16": "i16", "i32": "i32", "f16": "f16", "f32": "f32", "q8_0": "i8"}
_TYPES = {"i64": "index", "f32": "f32"}
_ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm_64", "riscv64": "riscv_64"}
"""What IREE's loader calls LLVM's architectures."""
RAW = "i8"
"""The type of buffers that hold a weight's bytes, which begin some bytes (the lead) after the binding does."""


def target_attribute(target: Target, library: str = "") -> str:
    """IREE's name of a target, as the text of an attribute.

    Args:
        target: the machine.
        library: the object that the compiler shall write the code to, for a program to be linked with; empty: the code
            is a part of the module.
    """
    arch = target.arch
    features = ",".join(f for f in target.features if f.startswith("+"))
    form = "static" if library else f"embedded-elf-{_ARCHITECTURES[arch]}"
    linking = f'link_embedded = false, link_static = true, static_library_output = "{library}", ' if library else ""
    return (
        f'#hal.executable.target<"llvm-cpu", "{form}", {{'
        f'cpu = "{target.cpu}", cpu_features = "{features}", '
        f'data_layout = "{data_layout(target)}", {linking}'
        f'native_vector_size = {target.vector_bits // 8} : i64, target_triple = "{arch}-unknown-unknown-eabi-elf"}}>'
    )


def object_name(kernel: Kernel) -> str:
    """The file name under which the compiler looks for a kernel's object."""
    return f"{kernel.name}.o"


@dataclass(frozen=True)
class Step:
    """One kernel's call in an executable: which of its bindings and scalars the kernel's buffers and scalars are, and
    for each buffer the scalar that is its lead, which only a raw one has."""

    kernel: Kernel
    buffers: tuple[int, ...]
    scalars: tuple[int, ...]
    leads: tuple[int | None, ...]


@dataclass(frozen=True)
class Executable:
    """What one dispatch runs: a kernel with its `grid`, or several, one after the other, of one work group each.

    `bindings` are the element types of the buffers, `scalars` those of the numbers.
    """

    bindings: tuple[str, ...]
    scalars: tuple[str, ...]
    steps: tuple[Step, ...]
    grid: tuple[tuple[str, int], ...] = ()


def executable(name: str, run: Executable, target: Target, library: str = "") -> str:
    """The `stream.executable` as the text of one operation.

    Its export is `@NAME::@NAME_run`. The workload are the scalars that the grid divides; the operands are the bindings,
    then the scalars. Code for a `library` (see `target_attribute`) names the kernels alone: the compiler can't put
    several objects into one.
    """
    kernels = tuple(dict.fromkeys(step.kernel for step in run.steps))
    objects = ", ".join(f'#hal.executable.object<{{path = "{object_name(k)}"}}>' for k in kernels)
    linked = f"""attributes {{
  hal.executable.objects = #hal.executable.objects<{{{target_attribute(target)} = [
    {objects}]}}>
}}"""
    axes = range(len(run.grid))
    counts = [
        f"%d{n} = arith.constant {divisor} : index\n%n{n} = arith.ceildivui %w{n}, %d{n} : index"
        for n, (_, divisor) in enumerate(run.grid)
    ]
    groups = [f"%n{n}" for n in axes] + ["%c1"] * (3 - len(axes))
    workload = ", ".join(f"%w{n}: index" for n in axes)
    parameters = ", ".join(
        [f"%b{n}: !stream.binding" for n in range(len(run.bindings))]
        + [f"%s{n}: {_TYPES[dtype]}" for n, dtype in enumerate(run.scalars)]
    )
    body = ["%c0 = arith.constant 0 : index"]
    for n, dtype in enumerate(run.bindings):
        element = _ELEMENTS[dtype]
        body.append(f"%m{n} = stream.binding.subspan %b{n}[%c0] : !stream.binding -> memref<1x{element}>")
        body.append(
            f"%p{n}, %o{n}, %z{n}, %t{n} = iree_codegen.extract_strided_metadata %m{n} : "
            f"memref<1x{element}> -> memref<{element}>, index, index, index"
        )
    body += [f"%g{n} = stream.dispatch.workgroup.id[{n}] : index" for n in axes]
    for number, step in enumerate(run.steps):
        body += _call(step, number, joined=not run.grid)
    return f"""
stream.executable private @{name} {"" if library else linked} {{
  stream.executable.export public @{name}_run workgroups({workload}) -> (index, index, index) {{
    %c1 = arith.constant 1 : index
    {chr(10).join(counts)}
    stream.return {", ".join(groups)} : index, index, index
  }}
  builtin.module {{
    {chr(10).join(_declaration(kernel) for kernel in kernels)}
    func.func @{name}_run({parameters}) {{
      {chr(10).join(body)}
      return
    }}
  }}
}}
"""


def _types(kernel: Kernel) -> str:
    """The types of the kernel's C function."""
    buffers = [t for b in kernel.buffers for t in (f"memref<{_ELEMENTS[b.dtype]}>", "index")]
    return ", ".join([*buffers, *(_TYPES[s.dtype] for s in kernel.scalars), *("index" for _ in kernel.grid)])


def _declaration(kernel: Kernel) -> str:
    return f"func.func private @{kernel.name}({_types(kernel)}) attributes {{hal.import.static, llvm.bareptr = true}}"


def _call(step: Step, number: int, joined: bool) -> list[str]:
    """The lines that call a kernel; `joined` ones have a single work group each."""
    lines, arguments = [], []
    for binding, lead in zip(step.buffers, step.leads, strict=True):
        offset = f"%o{binding}"
        if lead is not None:
            offset = f"%a{number}_{binding}"
            lines.append(f"{offset} = arith.addi %o{binding}, %s{lead} : index")
        arguments += [f"%p{binding}", offset]
    arguments += [f"%s{n}" for n in step.scalars]
    arguments += ["%c0" if joined else f"%g{n}" for n in range(len(step.kernel.grid))]
    return [*lines, f"func.call @{step.kernel.name}({', '.join(arguments)}) : ({_types(step.kernel)}) -> ()"]


def parse_executable(name: str, run: Executable, target: Target, library: str = "") -> ir.Operation:
    """The executable as an operation that belongs to no module yet."""
    module = ir.Module.parse(f"module {{ {executable(name, run, target, library)} }}")
    operation = module.body.operations[0].operation
    operation.detach_from_parent()
    return operation
