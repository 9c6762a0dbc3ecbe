"""The machine that a kernel is made for: its instructions are chosen from here, never from the building machine."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import llvmlite.binding as llvm

_X86_V3 = ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse3", "sse4.1", "sse4.2")
_X86_V4 = (*_X86_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Target:
    """A machine in LLVM's words.

    `features` holds LLVM feature flags, each with its sign ("+avx2"). `abi` is LLVM's name of the calling convention
    where the triple leaves it open (RISC-V). The triple is one without an operating system, so that an object for it
    may be linked into a freestanding library as well as loaded into this process.
    """

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    abi: str = ""

    def has(self, feature: str) -> bool:
        """Whether the feature (LLVM's name, without sign) is there."""
        return f"+{feature}" in self.features

    @property
    def arch(self) -> str:
        """The triple's first word, such as "x86_64"."""
        return self.triple.split("-", 1)[0]

    @property
    def is_x86(self) -> bool:
        return self.arch == "x86_64"

    @property
    def has_avx2(self) -> bool:
        return self.has("avx2")

    @property
    def has_avx512(self) -> bool:
        """The 512-bit byte, word and float instructions of x86-64-v4."""
        return self.has("avx512bw") and self.has("avx512vl")

    @property
    def has_avx512_vnni(self) -> bool:
        return self.has_avx512 and self.has("avx512vnni")

    @property
    def has_vbmi(self) -> bool:
        """Byte permutes over 512 bits and the quadword multishift."""
        return self.has_avx512 and self.has("avx512vbmi")

    @property
    def has_dotprod(self) -> bool:
        return self.has("dotprod")

    @property
    def has_i8mm(self) -> bool:
        return self.has("i8mm")

    @property
    def has_half_conversion(self) -> bool:
        """Whether half to float is an instruction; elsewhere LLVM would call a library."""
        return self.arch == "aarch64" or self.has("f16c") or self.has("zfh")

    @property
    def has_fma(self) -> bool:
        """Whether a fused multiply-add is an instruction; elsewhere LLVM would call a library."""
        return self.arch in ("aarch64", "riscv64") or self.has("fma")

    @property
    def vector_bits(self) -> int:
        """Width of the widest vector register that the kernels count on."""
        return 512 if self.has_avx512 else 256 if self.has_avx2 else 128

    @property
    def vector_registers(self) -> int:
        return 32 if self.has_avx512 or not self.is_x86 else 16


def _preset(name: str, triple: str, cpu: str, *features: str, abi: str = "") -> Target:
    return Target(name, triple, cpu, tuple(f"+{f}" for f in features), abi)


PRESETS: dict[str, Target] = {
    t.name: t
    for t in (
        _preset("x86-64", "x86_64-none-elf", "x86-64"),
        _preset("x86-64-v3", "x86_64-none-elf", "x86-64-v3", *_X86_V3),
        _preset("x86-64-v4", "x86_64-none-elf", "x86-64-v4", *_X86_V4),
        _preset("x86-64-v4-vnni", "x86_64-none-elf", "x86-64-v4", *_X86_V4, "avx512vnni", "avx512vbmi", "fast-dpwssd"),
        _preset("aarch64", "aarch64-none-elf", "generic", "neon"),
        _preset("aarch64-dotprod", "aarch64-none-elf", "generic", "neon", "dotprod"),
        _preset("riscv64", "riscv64-none-elf", "generic-rv64", "m", "a", "f", "d", "c", abi="lp64d"),
    )
}
"""Targets by name. A plain name is the architecture's base line."""

_HOST_TRIPLES = {"x86_64": "x86_64-none-elf", "aarch64": "aarch64-none-elf", "arm64": "aarch64-none-elf"}


@functools.cache
def host_target() -> Target:
    """The machine this process runs on, with every feature that LLVM sees in it."""
    arch = llvm.get_process_triple().split("-", 1)[0]
    features = llvm.get_host_cpu_features().flatten().split(",")
    triple = _HOST_TRIPLES.get(arch, f"{arch}-none-elf")
    abi = "lp64d" if arch == "riscv64" else ""
    return Target("host", triple, llvm.get_host_cpu_name(), tuple(sorted(f for f in features if f)), abi)
