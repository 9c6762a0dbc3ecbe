"""The objects that get linked: one symbol each, nothing else needed, the same bytes every time."""

from __future__ import annotations

import struct

import pytest
from ggufc.backends.native.kernel import Kernel
from ggufc.backends.native.kernels.activation_bytes import quantize_bytes
from ggufc.backends.native.kernels.activations import quantize_rows
from ggufc.backends.native.kernels.embed import embed
from ggufc.backends.native.kernels.linear_many import linear_many
from ggufc.backends.native.kernels.linear_many_bytes import linear_many_bytes
from ggufc.backends.native.kernels.linear_one import linear_one
from ggufc.backends.native.objects import assembly, llvm_ir, object_code
from ggufc.backends.native.target import PRESETS, host_target

from .blocks import TYPES

KERNELS = [quantize_rows(), *(make(t) for make in (linear_one, linear_many, embed) for t in TYPES)]
OF_BYTES = [quantize_bytes(), *(linear_many_bytes(t) for t in ("q8_0", "q4_k", "q6_k"))]
PAIRS = [(kernel, name) for n, kernel in enumerate(KERNELS) for name in [*PRESETS][n % 5 :: 5]]
PAIRS += [(kernel, name) for kernel in OF_BYTES for name in ("x86-64-v4-vnni", "aarch64-i8mm")]
"""Each kernel for a fifth of the targets, its neighbours for the others."""
MACHINES = {"x86_64": 62, "aarch64": 183, "riscv64": 243}


def symbols(code: bytes) -> tuple[set[str], set[str]]:
    """The names that a 64-bit ELF object defines for others, and those that it wants from others."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    (count,) = struct.unpack_from("<H", code, 0x3C)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, table + 64 * i) for i in range(count)]
    defined, wanted = set(), set()
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        for at in range(offset + 24, offset + size, 24):
            name, info, _, section = struct.unpack_from("<IBBH", code, at)
            begin = sections[link][4] + name
            text = code[begin : code.index(b"\0", begin)].decode()
            if section == 0:
                wanted.add(text)
            elif info >> 4:  # not STB_LOCAL
                defined.add(text)
    return defined, wanted


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "name"), PAIRS, ids=lambda of: of.name if isinstance(of, Kernel) else of)
def test_an_object_defines_its_kernel_and_needs_nothing(kernel: Kernel, name: str) -> None:
    target = PRESETS[name]
    code = object_code(kernel, target)
    assert code[:4] == b"\x7fELF"
    assert struct.unpack_from("<H", code, 18) == (MACHINES[target.arch],)
    assert symbols(code) == ({kernel.name}, set())


def test_kernels_are_hidden() -> None:
    """Calls of what others could replace go through slots, which IREE's loader fills on x86 alone."""
    assert "define hidden void @ggufc_linear_one_q8_0" in llvm_ir(linear_one("q8_0"), PRESETS["aarch64"], True)


def test_objects_are_the_same_every_time() -> None:
    for make in (lambda: linear_one("q5_0"), lambda: linear_many("q4_k")):
        assert object_code(make(), PRESETS["x86-64-v3"]) == object_code(make(), PRESETS["x86-64-v3"])


def test_names_are_unique() -> None:
    assert len({k.name for k in KERNELS}) == len(KERNELS)


@pytest.mark.parametrize(
    ("target", "there", "absent"),
    [
        ("x86-64-v4-vnni", "vpdpbusd", "call"),
        ("x86-64-v4", "zmm", "vpdp"),
        ("x86-64-v3", "vpmaddwd", "zmm"),
        ("x86-64", "pmaddwd", "ymm"),
        ("aarch64", "smlal", "dot"),
        ("aarch64-dotprod", "sdot", "usdot"),
        ("aarch64-i8mm", "usdot", "\tsdot"),
    ],
)
def test_instructions_are_the_targets_not_the_machines(target: str, there: str, absent: str) -> None:
    text = assembly(linear_one("q4_k"), PRESETS[target])
    assert there in text
    assert absent not in text


def test_the_abi_is_pointers_with_offsets_then_scalars_then_groups() -> None:
    text = llvm_ir(linear_many("q8_0"), host_target())
    head = next(line for line in text.splitlines() if line.startswith("define"))
    assert head.count("ptr") == 3
    assert head.count("i64") == 3 + 3 + 1
    assert linear_many("q8_0").groups({"tokens": 5, "rows": 33, "cols": 64}) == (2,)
