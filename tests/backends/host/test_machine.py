"""A bundle for several machines runs the best code that this one can run, and none that it can't."""

import json
import shutil
from pathlib import Path
from typing import Any

import ggufc
import pytest
from ggufc import UnsupportedError
from ggufc.backends.bundles.bundle import MANIFEST
from ggufc.backends.bundles.manifest import sealed
from ggufc.backends.host.machine import best_target, free_memory, machine, this_machine
from ggufc.backends.native.target import PRESETS, host_target

from ..conftest import TinyCase

# As Linux prints them, shortened: a Haswell, a Skylake server, an Ice Lake server; and the words of
# the auxiliary vectors of a Raspberry Pi 4 and 5, a Graviton 3 and a board with RISC-V.
ATOM = "fpu sse sse2 pni ssse3 cx16 sse4_1 sse4_2 movbe popcnt"
HASWELL = "fpu sse sse2 pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt aes avx f16c rdrand abm bmi1 avx2 bmi2 lahf_lm"
SKYLAKE = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"
ICE_LAKE = f"{SKYLAKE} avx512vbmi avx512_vbmi2 gfni avx512_vnni avx512_bitalg"
PI4, PI5 = {16: 0x887}, {16: 0x119FFF, 26: 0}
GRAVITON3 = {16: 0xEFFFFFFF, 26: 0x6F3FF}
SIFIVE = {16: 0x112D}
ALL = {name: {"triple": t.triple, "features": list(t.features)} for name, t in PRESETS.items()}


def x86(flags: str) -> str:
    return f"processor\t: 0\nflags\t\t: {flags}\nbugs\t\t: spectre\n\nprocessor\t: 1\nflags\t\t: {flags}\n"


@pytest.mark.parametrize(
    ("name", "told", "wanted"),
    [
        ("x86_64", x86("fpu sse sse2"), "x86-64"),
        ("x86_64", x86(HASWELL), "x86-64-v3"),
        ("x86_64", x86(SKYLAKE), "x86-64-v4"),
        ("x86_64", x86(ICE_LAKE), "x86-64-v4-vnni"),
        ("x86_64", x86(HASWELL.replace(" fma", "")), "x86-64-v2"),
        ("x86_64", x86(ICE_LAKE) + x86(HASWELL), "x86-64-v3"),  # cores that differ
        ("AMD64", "", "x86-64"),  # nothing is told: the safest
        ("x86_64", x86(ATOM), "x86-64-v2"),
        ("aarch64", PI4, "aarch64"),
        ("aarch64", PI5, "aarch64-dotprod"),
        ("aarch64", GRAVITON3, "aarch64-i8mm"),
        ("aarch64", x86(ICE_LAKE), "aarch64"),  # an emulator that shows the real machine's
        ("arm64", "", "aarch64"),
        ("riscv64", SIFIVE, "riscv64"),
    ],
)
def test_the_best_target_that_a_machine_runs_is_taken(name: str, told: str | dict[int, int], wanted: str) -> None:
    here = machine(name, told, {}) if isinstance(told, str) else machine(name, "", told)
    for targets in (ALL, dict(reversed(ALL.items()))):
        assert best_target(targets, "bundle", here) == wanted


def test_a_machine_that_runs_none_is_told_what_it_lacks() -> None:
    targets = {name: ALL[name] for name in ("x86-64-v4", "aarch64", "riscv64")}
    with pytest.raises(UnsupportedError) as refused:
        best_target(targets, "bundle", machine("x86_64", x86(HASWELL), {}))
    assert str(refused.value) == (
        "bundle: compiled for x86-64-v4 (this machine lacks avx512bw, avx512cd, avx512dq, avx512f, avx512vl), "
        "aarch64 (this machine lacks an aarch64 processor), riscv64 (this machine lacks a riscv64 processor); "
        "export it with a target that this machine has"
    )


def test_this_machine_runs_what_llvm_sees_in_it() -> None:
    target = host_target()
    assert this_machine().lacks(target.triple, target.features) == []


@pytest.mark.parametrize(
    "change", [{"triple": "sparc-none-elf"}, {"features": ["+avx2", "+amx-tile", "+xop", "+sve2"]}]
)
def test_a_bundle_of_another_machine_is_refused_before_its_code_runs(
    change: dict[str, Any], tiny_f32: TinyCase, tmp_path: Path
) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_f32.bundle.path, folder, symlinks=True)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["targets"]["host"] |= change
    (folder / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(UnsupportedError, match=r"compiled for host \(this machine lacks"):
        ggufc.load(folder, threads=1)


def test_free_memory_is_told_where_the_system_tells_it() -> None:
    free = free_memory()
    assert (free is not None) == Path("/proc/meminfo").exists()
    assert free is None or 1 << 20 < free < 1 << 50
