"""The machine that a kernel is made for: its instructions are chosen from here, never from the building machine."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

import llvmlite.binding as llvm

from ...frontend.errors import InputError, UnsupportedError
from ...frontend.near import nearest
from ..host.machine import known_features

_X86_V2 = ("cx16", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3")
_X86_V3 = (*_X86_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
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
    def has_bit_permutes(self) -> bool:
        """Products of the bits of bytes with bit matrices, over 512 bits."""
        return self.has_avx512 and self.has("gfni")

    @property
    def has_dotprod(self) -> bool:
        return self.has("dotprod")

    @property
    def has_i8mm(self) -> bool:
        return self.has("i8mm")

    def dots_bytes(self, signed: bool) -> bool:
        """Whether there is an instruction for four products of bytes, which are signed or not, with signed ones."""
        if self.is_x86:
            return self.has_avx512_vnni and not signed
        return self.has_dotprod if signed else self.has_i8mm

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
        _preset("x86-64-v2", "x86_64-none-elf", "x86-64-v2", *_X86_V2),
        _preset("x86-64-v3", "x86_64-none-elf", "x86-64-v3", *_X86_V3),
        _preset("x86-64-v4", "x86_64-none-elf", "x86-64-v4", *_X86_V4),
        _preset(
            "x86-64-v4-vnni",
            "x86_64-none-elf",
            "x86-64-v4",
            *_X86_V4,
            "avx512vnni",
            "avx512vbmi",
            "gfni",
            "fast-dpwssd",
        ),
        _preset("aarch64", "aarch64-none-elf", "generic", "neon"),
        _preset("aarch64-dotprod", "aarch64-none-elf", "generic", "neon", "dotprod"),
        _preset("aarch64-i8mm", "aarch64-none-elf", "generic", "neon", "dotprod", "i8mm"),
        _preset("riscv64", "riscv64-none-elf", "generic-rv64", "m", "a", "f", "d", "c", abi="lp64d"),
    )
}
"""Targets by name. A plain name is the architecture's base line."""

_BASE_LINES = {"x86_64": "x86-64", "amd64": "x86-64", "aarch64": "aarch64", "arm64": "aarch64", "riscv64": "riscv64"}
"""For a triple's first word the preset that every such machine runs."""


@functools.cache
def host_target() -> Target:
    """The machine this process runs on, with every feature that LLVM sees in it."""
    arch = llvm.get_process_triple().split("-", 1)[0]
    features = llvm.get_host_cpu_features().flatten().split(",")
    base = PRESETS[_BASE_LINES[arch]] if arch in _BASE_LINES else _preset("", f"{arch}-none-elf", "")
    return Target("host", base.triple, llvm.get_host_cpu_name(), tuple(sorted(f for f in features if f)), base.abi)


def find_target(words: str) -> Target:
    """The target that is meant by a name and features, such as `host`, `x86-64-v3` or `aarch64-linux-gnu:+dotprod`.

    The name is `host`, a preset's or a triple's, of which only the architecture matters: a compiled module runs on any
    system. Features are LLVM's, signed, with commas between them. Those are known of which a machine can be asked.

    Raises:
        InputError: there is no such target or feature.
        UnsupportedError: a triple of an architecture that there are no kernels for.
    """
    name, colon, listed = words.partition(":")
    base = host_target() if name == "host" else PRESETS.get(name) or _base_line(name)
    if not colon:
        return base
    known = known_features(base.arch)
    changes: dict[str, str] = {}
    for feature in listed.split(","):
        sign, plain = feature[:1], feature[1:]
        if sign not in ("+", "-") or plain not in known:
            hint = nearest(feature.lstrip("+-"), known)
            raise InputError(f"target {words!r}: no feature {feature!r}{hint}; wanted +NAME or -NAME of {base.arch}'s")
        changes[plain] = sign
    kept = [f for f in base.features if f[1:] not in changes]
    features = tuple(sorted((*kept, *(f"{sign}{plain}" for plain, sign in changes.items()))))
    named = base.name + "".join(f"{'+' if sign == '+' else '-no-'}{plain}" for plain, sign in changes.items())
    same = (t for t in PRESETS.values() if (t.triple, t.cpu, set(t.features)) == (base.triple, base.cpu, set(features)))
    return next(same, dataclasses.replace(base, name=named, features=features))


def _base_line(triple: str) -> Target:
    """The least target of a triple's architecture."""
    arch = triple.split("-", 1)[0].lower()
    if arch in _BASE_LINES:
        return PRESETS[_BASE_LINES[arch]]
    llvm.initialize_all_targets()
    try:
        llvm.Target.from_triple(triple)
    except RuntimeError:
        names = ["host", *PRESETS]
        raise InputError(
            f"no target {triple!r}{nearest(triple, names)}; there are {', '.join(names)}, "
            f"and triples with features such as aarch64-linux-gnu:+dotprod"
        ) from None
    there = ", ".join(sorted({t.arch for t in PRESETS.values()}))
    raise UnsupportedError(f"target {triple!r}: there are no kernels for {arch}; there are some for {there}")
