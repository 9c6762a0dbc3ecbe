"""The machine this process runs on, by what the system says of it, and the target of a bundle that suits it best.

Only what a device has is used: no LLVM is asked.
"""

import functools
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..frontend.errors import UnsupportedError

_CPUINFO = Path("/proc/cpuinfo")
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
_AARCH64 = {
    "bf16": "bf16",
    "dotprod": "asimddp",
    "fullfp16": "asimdhp",
    "i8mm": "i8mm",
    "lse": "atomics",
    "neon": "asimd",
    "sve": "sve",
    "sve2": "sve2",
}
_CPUINFO_NAMES = {"x86_64": ("flags", _X86), "aarch64": ("Features", _AARCH64)}
"""For each architecture the line of /proc/cpuinfo that lists features, and its names for LLVM's.

A feature that isn't here doesn't decide whether compiled code runs: it is for the system, or a matter of speed.
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
            return [f"an {arch} processor"]
        if self.features is None:
            return []
        return sorted((self.decisive & _present(features)) - self.features)


def _present(features: Sequence[str]) -> frozenset[str]:
    return frozenset(f[1:] for f in features if f.startswith("+"))


@functools.cache
def this_machine() -> Machine:
    """The machine this process runs on."""
    try:
        text = _CPUINFO.read_text("utf-8", "replace")
    except OSError:
        text = ""
    return machine(platform.machine(), text)


def machine(name: str, cpuinfo: str) -> Machine:
    """A machine from the name of its architecture and its /proc/cpuinfo, where features count that every core has."""
    arch = _ARCHITECTURES.get(name.lower(), name.lower())
    label, names = _CPUINFO_NAMES.get(arch, ("", {}))
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    cores = [set(words.split()) for key, _, words in lines if label and key.strip() == label]
    if not cores:
        return Machine(arch, None, frozenset())
    common = set.intersection(*cores)
    return Machine(arch, frozenset(f for f, theirs in names.items() if theirs in common), frozenset(names))


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
