# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""A kernel as an executable of the IREE program: its object file, and the function that calls it with its bindings."""

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


def executable(kernel: Kernel, target: Target, library: str = "") -> str:
    """The `stream.executable` of a kernel, as the text of one operation.

    Its export is `@NAME::@NAME_run`. The workload are the scalars that the grid divides; the operands are the
    buffers in the kernel's order, then all scalars, then a lead for each raw buffer. Code for a `library` (see
    `target_attribute`) names the kernel alone: the compiler can't put several objects into one.
    """
    linked = f"""attributes {{
  hal.executable.objects = #hal.executable.objects<{{{target_attribute(target)} = [
    #hal.executable.object<{{path = "{object_name(kernel)}"}}>]}}>
}}"""
    name = kernel.name
    buffers, scalars, axes = kernel.buffers, kernel.scalars, len(kernel.grid)
    workload = ", ".join(f"%w{n}: index" for n in range(axes))
    counts, groups = [], []
    for n, (_, divisor) in enumerate(kernel.grid):
        counts.append(f"%d{n} = arith.constant {divisor} : index\n%n{n} = arith.ceildivui %w{n}, %d{n} : index")
        groups.append(f"%n{n}")
    groups += ["%c1"] * (3 - axes)
    parameters = ", ".join(
        [f"%b{n}: !stream.binding" for n in range(len(buffers))]
        + [f"%s{n}: {_TYPES[s.dtype]}" for n, s in enumerate(scalars)]
        + [f"%l{n}: index" for n, b in enumerate(buffers) if b.dtype == RAW]
    )
    body, arguments, types = ["%c0 = arith.constant 0 : index"], [], []
    for n, buffer in enumerate(buffers):
        element = _ELEMENTS[buffer.dtype]
        body.append(f"%m{n} = stream.binding.subspan %b{n}[%c0] : !stream.binding -> memref<1x{element}>")
        body.append(
            f"%p{n}, %o{n}, %z{n}, %t{n} = iree_codegen.extract_strided_metadata %m{n} : "
            f"memref<1x{element}> -> memref<{element}>, index, index, index"
        )
        offset = f"%o{n}"
        if buffer.dtype == RAW:
            body.append(f"%a{n} = arith.addi %o{n}, %l{n} : index")
            offset = f"%a{n}"
        arguments += [f"%p{n}", offset]
        types += [f"memref<{element}>", "index"]
    arguments += [f"%s{n}" for n in range(len(scalars))]
    types += [_TYPES[s.dtype] for s in scalars]
    for n in range(axes):
        body.append(f"%g{n} = stream.dispatch.workgroup.id[{n}] : index")
        arguments.append(f"%g{n}")
        types.append("index")
    return f"""
stream.executable private @{name} {"" if library else linked} {{
  stream.executable.export public @{name}_run workgroups({workload}) -> (index, index, index) {{
    %c1 = arith.constant 1 : index
    {chr(10).join(counts)}
    stream.return {", ".join(groups)} : index, index, index
  }}
  builtin.module {{
    func.func private @{name}({", ".join(types)}) attributes {{hal.import.static, llvm.bareptr = true}}
    func.func @{name}_run({parameters}) {{
      {chr(10).join(body)}
      func.call @{name}({", ".join(arguments)}) : ({", ".join(types)}) -> ()
      return
    }}
  }}
}}
"""


def parse_executable(kernel: Kernel, target: Target, library: str = "") -> ir.Operation:
    """The executable as an operation that belongs to no module yet."""
    module = ir.Module.parse(f"module {{ {executable(kernel, target, library)} }}")
    operation = module.body.operations[0].operation
    operation.detach_from_parent()
    return operation
