"""An AArch64 machine for tests: qemu-user, Debian's Python for it, and the runtime's own wheels.

They are brought once, with apt-get and pip, into the user's cache; nothing is installed.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from ggufc.backends.native.kernel import Kernel
from ggufc.backends.native.objects import object_code
from ggufc.backends.native.target import Target
from iree.compiler.tools.binaries import find_tool
from llvmlite import ir

DEBIAN = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "liblzma5", "libbz2-1.0"),
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
)
WHEELS = ("numpy", "iree-base-runtime", "ml_dtypes")
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
LAUNCHES = """
import ctypes, sys
import numpy as np
library, data = ctypes.CDLL(sys.argv[1]), dict(np.load(sys.argv[2]))
names = sys.argv[3:]
call = ctypes.CFUNCTYPE(None)
kernels = dict(zip(names, map(call, (ctypes.c_void_p * len(names)).in_dll(library, "kernels"))))
for line in data.pop("launches").tolist():
    symbol, *words = line.split()
    arrays = [data[w] for w in words if w in data]
    numbers = [int(w) for w in words if w not in data]
    *scalars, groups = numbers
    kernel, memory = kernels[symbol], [p for a in arrays for p in (ctypes.c_void_p(a.ctypes.data), ctypes.c_int64(0))]
    for group in range(groups):
        kernel(*memory, *map(ctypes.c_int64, scalars), ctypes.c_int64(group))
np.savez(sys.argv[2], **data)
"""
"""Runs kernels of one grid axis: of each its symbol, the names of its arrays, its scalars, and the number of groups."""


@dataclass(frozen=True)
class Emulator:
    """`folder` holds the machine's `root` and its Python packages in `site`, `packages` ggufc itself."""

    folder: Path
    packages: Path

    def python(self, program: str, *arguments: str, cpu: str = "max") -> str:
        """What a Python program prints on a processor by qemu's name."""
        root = self.folder / "root"
        command = ["qemu-aarch64", "-cpu", cpu, "-L", str(root), str(root / "usr/bin/python3.11"), "-c", program]
        paths = f"{self.folder / 'site'}{os.pathsep}{self.packages}"
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths}
        run = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout

    def launch(
        self, launches: Sequence[tuple[Kernel, dict[str, np.ndarray], dict[str, int]]], target: Target, place: Path
    ) -> None:
        """Runs kernels with one axis and whole scalars one after another, as `ggufc.backends.native.launch` does one.

        Arrays that are one object stay one.
        """
        names: dict[int, str] = {}
        data: dict[str, np.ndarray] = {}
        objects: dict[str, str] = {}
        lines = []
        for kernel, arrays, scalars in launches:
            path = place / f"{kernel.name}.o"
            if kernel.name not in objects:
                path.write_bytes(object_code(kernel, target))
            objects[kernel.name] = str(path)
            for array in arrays.values():
                data[names.setdefault(id(array), f"a{len(names)}")] = array
            (count,) = kernel.groups(scalars)
            words = [names[id(arrays[b.name])] for b in kernel.buffers]
            lines.append(" ".join([kernel.name, *words, *(str(scalars[s.name]) for s in kernel.scalars), str(count)]))
        table = place / "table.o"
        table.write_bytes(_table(list(objects), target))
        files = [*objects.values(), str(table)]
        link = [find_tool("iree-lld"), "-flavor", "gnu", "-shared", *files, "-o", str(place / "kernels.so")]
        subprocess.run(link, check=True)
        given: dict[str, Any] = {"launches": np.array(lines), **data}
        np.savez(place / "data.npz", **given)
        self.python(LAUNCHES, str(place / "kernels.so"), str(place / "data.npz"), *objects)
        with np.load(place / "data.npz") as results:
            for name, array in data.items():
                array[...] = results[name]


def _table(symbols: Sequence[str], target: Target) -> bytes:
    """An object that exports the addresses of symbols as the array `kernels`."""
    module = ir.Module("table")
    module.triple = target.triple
    functions = [ir.Function(module, ir.FunctionType(ir.VoidType(), []), symbol) for symbol in symbols]
    array = ir.ArrayType(ir.PointerType(), len(functions))
    held: Any = ir.GlobalVariable(module, array, "kernels")
    held.initializer = ir.Constant(array, [f.bitcast(ir.PointerType()) for f in functions])
    machine = llvm.Target.from_triple(target.triple).create_target_machine(reloc="pic", codemodel="default")
    return machine.emit_object(llvm.parse_assembly(str(module)))


@pytest.fixture(scope="session")
def aarch64(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """An AArch64 machine; a test that needs it is skipped where it can't be had."""
    if not shutil.which("qemu-aarch64"):
        pytest.skip("qemu-aarch64 is not installed; it is in Debian's package qemu-user")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ggufc-tests"
    folder = cache / f"aarch64-{importlib.metadata.version('iree-base-runtime')}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as unfinished:
            try:
                _bring(Path(unfinished))
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"the packages of an AArch64 machine can't be had: {error}")
            with suppress(OSError):  # another process was faster
                (Path(unfinished) / "machine").rename(folder)
    packages = tmp_path_factory.mktemp("aarch64")
    (packages / "ggufc").symlink_to(Path(__file__).parents[1])
    return Emulator(folder, packages)


def _bring(place: Path) -> None:
    """Makes the folder `machine` in a place: Debian's packages in its `root`, wheels in its `site`.

    The package manager works on a state of its own, so that this machine's isn't touched.
    """
    machine, debs, wheels = (place / name for name in ("machine", "debs", "wheels"))
    for folder in (machine / "root", machine / "site", debs, wheels, place / "state/lists/partial"):
        folder.mkdir(parents=True)
    (place / "cache/archives/partial").mkdir(parents=True)
    (place / "status").touch()
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::State": place / "state",
        "Dir::State::status": place / "status",
        "Dir::Cache": place / "cache",
    }
    apt = ["apt-get", "-q", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}"))]
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in WHEELS]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.11"]
    for command in (
        [*apt, "update"],
        [*apt, "download", *DEBIAN],
        [*pip, "-d", str(wheels), "--implementation=cp", *(f"--platform={p}" for p in PLATFORMS), *versions],
    ):
        subprocess.run(command, check=True, cwd=debs, capture_output=True)
    for package in debs.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(machine / "root")], check=True)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(machine / "site")
