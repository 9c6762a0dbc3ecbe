"""The machine this process runs on, by what the system says of it, and the target of a bundle that suits it best.

Only what a device has is used: no LLVM is asked.
"""

import functools
import platform
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...frontend.errors import UnsupportedError

_CPUINFO = Path("/proc/cpuinfo")
_AUXV = Path("/proc/self/auxv")
_MEMINFO = Path("/proc/meminfo")
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_X86 = {
    "adx": "adx",
    "aes": "aes",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "amx-tile": "amx_tile",
    "avx": "avx",
    "avx2": "avx2",
    "avx512bf16": "avx512_bf16",
    "avx512bitalg": "avx512_bitalg",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512f": "avx512f",
    "avx512fp16": "avx512_fp16",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "cx16": "cx16",
    "f16c": "f16c",
    "fma": "fma",
    "fma4": "fma4",
    "gfni": "gfni",
    "lzcnt": "abm",
    "movbe": "movbe",
    "pclmul": "pclmulqdq",
    "popcnt": "popcnt",
    "sha": "sha_ni",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "sse4a": "sse4a",
    "ssse3": "ssse3",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "xop": "xop",
}
_HWCAP, _HWCAP2 = 16, 26
_AARCH64 = {
    "aes": (_HWCAP, 4),
    "bf16": (_HWCAP2, 14),
    "complxnum": (_HWCAP, 14),
    "crc": (_HWCAP, 7),
    "dotprod": (_HWCAP, 20),
    "fp16fml": (_HWCAP, 23),
    "fullfp16": (_HWCAP, 10),
    "i8mm": (_HWCAP2, 13),
    "jsconv": (_HWCAP, 13),
    "lse": (_HWCAP, 8),
    "neon": (_HWCAP, 1),
    "rcpc": (_HWCAP, 15),
    "rdm": (_HWCAP, 12),
    "sha2": (_HWCAP, 6),
    "sha3": (_HWCAP, 17),
    "sve": (_HWCAP, 22),
    "sve2": (_HWCAP2, 1),
}
_RISCV64 = {letter: (_HWCAP, ord(letter) - ord("a")) for letter in "acdfmv"}
_BITS = {"aarch64": _AARCH64, "riscv64": _RISCV64}
"""For LLVM's features the key of the auxiliary vector and the bit that say so (Linux' asm/hwcap.h).

On x86-64 the line `flags` of /proc/cpuinfo does. A feature that isn't here doesn't decide whether compiled code runs:
it is for the system, or a matter of speed.
"""


@dataclass(frozen=True)
class Machine:
    """An architecture by LLVM's name, and those of LLVM's features that are known to be there; None: it can't be told.

    `decisive` are the features that would have been told.
    """

    arch: str
    features: frozenset[str] | None
    decisive: frozenset[str]

    def lacks(self, triple: str, features: Sequence[str]) -> list[str]:
        """What code for a target (LLVM's triple and signed features) needs and this machine hasn't, in words."""
        arch = triple.split("-", 1)[0]
        if arch != self.arch:
            return [f"{'an' if arch[0] in 'aeiox' else 'a'} {arch} processor"]
        if self.features is None:
            return []
        return sorted((self.decisive & _present(features)) - self.features)


def _present(features: Sequence[str]) -> frozenset[str]:
    return frozenset(f[1:] for f in features if f.startswith("+"))


def known_features(arch: str) -> frozenset[str]:
    """LLVM's names of an architecture's features of which a machine can be asked whether it has them."""
    return frozenset(_X86 if arch == "x86_64" else _BITS.get(arch, ()))


@functools.cache
def this_machine() -> Machine:
    """The machine this process runs on; under an emulator the one that is emulated, where the system says so."""
    try:
        text = _CPUINFO.read_text("utf-8", "replace")
    except OSError:
        text = ""
    try:
        raw = _AUXV.read_bytes()
    except OSError:
        raw = b""
    pair = struct.Struct("@LL")
    return machine(platform.machine(), text, dict(pair.iter_unpack(raw[: len(raw) // pair.size * pair.size])))


def machine(name: str, cpuinfo: str, auxiliary: Mapping[int, int]) -> Machine:
    """A machine from the name of its architecture, its /proc/cpuinfo and its auxiliary vector.

    Of a processor whose cores differ the features count that every core has.
    """
    arch = _ARCHITECTURES.get(name.lower(), name.lower())
    if arch in _BITS and _HWCAP in auxiliary:
        bits = _BITS[arch]
        found = frozenset(f for f, (key, bit) in bits.items() if auxiliary.get(key, 0) >> bit & 1)
        return Machine(arch, found, known_features(arch))
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    cores = [set(words.split()) for key, _, words in lines if key.strip() == "flags"]
    if arch != "x86_64" or not cores:
        return Machine(arch, None, frozenset())
    common = set.intersection(*cores)
    return Machine(arch, frozenset(f for f, theirs in _X86.items() if theirs in common), known_features(arch))


def best_target(targets: Mapping[str, Mapping[str, Any]], where: str, here: Machine) -> str:
    """The name of the target with the most features of those that a machine can run.

    Where the machine's features can't be told, the one with the fewest is taken.

    Args:
        targets: `triple` and `features` of each, as in a manifest.
        where: the bundle, for messages.
        here: the machine.

    Raises:
        UnsupportedError: it can run none of them.
    """
    missing = {name: here.lacks(t["triple"], t["features"]) for name, t in targets.items()}
    able = [name for name in targets if not missing[name]]
    if not able:
        wanted = ", ".join(f"{name} (this machine lacks {', '.join(lacks)})" for name, lacks in missing.items())
        raise UnsupportedError(f"{where}: compiled for {wanted}; export it with a target that this machine has")
    sign = 1 if here.features is not None else -1
    return max(able, key=lambda name: sign * len(_present(targets[name]["features"])))


def free_memory() -> int | None:
    """Bytes that a program may take now without making others swap; None where the system doesn't tell."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", _MEMINFO.read_text("utf-8", "replace"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None
