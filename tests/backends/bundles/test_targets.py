"""One bundle for several machines: what is written for each, and which of it runs here."""

import ctypes
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import pytest
from click.testing import CliRunner
from ggufc import InputError, UnsupportedError
from ggufc.backends.bundles.bundle import MANIFEST, MODULE, PORTABLE, read_bundle
from ggufc.backends.bundles.manifest import sealed
from ggufc.backends.host.machine import this_machine
from ggufc.backends.native.target import PRESETS
from ggufc.cli import main
from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ...aarch64 import Emulator, aarch64
from ...oracle import kl_divergence
from ...tiny_models import tiny_gemma3
from ..conftest import QUANTIZED, TinyCase
from .test_aarch64 import PROGRAM

__all__ = ["aarch64"]

TARGETS = ["host", "x86-64-v3", "x86-64-v4"]


def only(bundle: Path, target: str, place: Path) -> Path:
    """A copy of a bundle whose manifest has one of its targets."""
    lacks = this_machine().lacks(PRESETS[target].triple, PRESETS[target].features) if target in PRESETS else []
    if lacks:
        pytest.skip(f"this machine lacks {', '.join(lacks)}")
    copy = Path(shutil.copytree(bundle, place / target, symlinks=True))
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["targets"] = {target: manifest["targets"][target]}
    (copy / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    return copy


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    path = folder / "model.gguf"
    tiny_gemma3(path, layers=2, width=256, head_dim=64, ffn=512, sliding_window_pattern=2, types=QUANTIZED)
    words = [word for target in TARGETS for word in ("--target", target)]
    words += [word for kind in ("mlir", "mlirbc", "vmfb") for word in ("--emit", kind)]
    run = CliRunner().invoke(main, ["export", str(path), "-o", str(folder / "bundle"), *words])
    assert run.exit_code == 0, run.output
    return folder / "bundle"


@pytest.mark.slow
def test_each_target_has_its_files(bundle: Path) -> None:
    targets = read_bundle(bundle).manifest["targets"]
    assert list(targets) == TARGETS
    for name, target in targets.items():
        assert target["file"] == f"model.{name}.vmfb"
        assert read_bundle(bundle).file(target["file"]).stat().st_size < 1_000_000


@pytest.mark.slow
def test_the_best_is_taken_and_said(bundle: Path) -> None:
    run = CliRunner().invoke(main, ["run", str(bundle), "--prompt-ids", "2,5", "-n", "2", "--json"])
    assert json.loads(run.stdout)["target"] == "host"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS[1:])
def test_lesser_code_gives_the_same_tokens(target: str, bundle: Path, tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 300, 40).tolist()

    def logits(path: Path) -> np.ndarray:
        session = ggufc.load(path, threads=1)
        return np.stack([session.prefill(ids[:20]).copy(), *(session.decode(i).copy() for i in ids[20:])])

    wanted, found = logits(bundle), logits(only(bundle, target, tmp_path))
    assert (found.argmax(1) == wanted.argmax(1)).all()
    assert kl_divergence(wanted, found).max() < 1e-6


@pytest.mark.slow
def test_the_artifact_is_the_module(bundle: Path) -> None:
    with make_ir_context():
        found = ir.Module.parse(stablehlo.deserialize_portable_artifact_str((bundle / PORTABLE).read_bytes()))
        wanted = ir.Module.parse((bundle / MODULE).read_text())
        # the artifact has no arrays: they come back as tensors
        found, wanted = (
            re.sub(r"(?:array<i64: |dense<\[?)([\d, ]+)\]?>(?: : tensor<\d+xi64>)?", r"[\1]", str(module))
            for module in (found, wanted)
        )
        assert found == wanted


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler to link with")
def test_a_library_needs_nothing_and_is_found_by_its_name(tiny_f32: TinyCase, tmp_path: Path) -> None:
    """Linked as a program would, and asked as IREE's static loader does."""
    made = ggufc.export(tiny_f32.path, tmp_path / "bundle", emit=["mlirbc"], static_library=True)
    assert [name for name in made.manifest["files"] if name.startswith("model.")] == [
        *("model.host.h", "model.host.o", "model.host.static.vmfb", PORTABLE)
    ]
    with pytest.raises(UnsupportedError, match="has no compiled module; export the model with --emit vmfb"):
        ggufc.load(made.path)
    library = {what: made.file(name) for what, name in made.manifest["targets"]["host"]["library"].items()}
    linked = tmp_path / "library.so"
    subprocess.run(["cc", "-shared", "-nostdlib", "-Wl,-z,defs", "-o", linked, library["object"]], check=True)
    query = ctypes.CDLL(str(linked)).ggufc_linked_library_query
    query.restype = ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))
    assert "ggufc_linked_library_query(" in library["header"].read_text()
    version = next(v for v in range(1, 32) if query(v, bytes(256)))
    name = ctypes.cast(query(version, bytes(256))[0], ctypes.POINTER(ctypes.c_char_p))[1]
    assert name == b"ggufc_linked"
    module = library["module"].read_bytes()
    assert name in module and tempfile.gettempdir().encode() not in module  # where it was made would differ each time


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"targets": ["x86-64-v9"]}, InputError, "no target 'x86-64-v9'"),
        ({"targets": ["armv7-linux-gnueabihf"]}, UnsupportedError, "no kernels for armv7"),
        ({"emit": ["vmbf"]}, InputError, r"can't emit 'vmbf' \(did you mean 'vmfb'\?\)"),
        ({"emit": []}, InputError, "nothing to emit"),
        ({"flags": ["-o"]}, InputError, "flag '-o': wanted one of iree-compile's"),
        ({"flags": ["--iree-no-such-flag"]}, InputError, "iree-compile refuses a flag"),
    ],
)
def test_wrong_words_leave_nothing_behind(
    arguments: dict[str, Any], error: type[Exception], said: str, tiny_f32: TinyCase, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        ggufc.export(tiny_f32.path, tmp_path / "bundle", **arguments)
    assert list(tmp_path.iterdir()) == []


PROMPT = [2, 818, 5279, 529, 7001, 563]


@pytest.fixture(scope="module")
def real_bundle(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real") / "bundle"
    return ggufc.export(real_model, folder, targets=["host", "x86-64-v3", "aarch64-i8mm"]).path


@pytest.mark.slow
def test_avx2_gives_the_real_models_tokens(real_bundle: Path, tmp_path: Path) -> None:
    assert greedy(only(real_bundle, "x86-64-v3", tmp_path), 48) == greedy(real_bundle, 48)


@pytest.mark.slow
def test_aarch64_gives_the_real_models_tokens(real_bundle: Path, aarch64: Emulator, tmp_path: Path) -> None:
    arguments = (str(real_bundle), json.dumps(PROMPT), "[]", str(tmp_path / "logits.npy"), "8")
    assert json.loads(aarch64.python(PROGRAM, *arguments)) == ["aarch64-i8mm", greedy(real_bundle, 8)]


def greedy(bundle: Path, count: int) -> list[int]:
    """The likeliest tokens after the prompt."""
    session = ggufc.load(bundle)
    found = [int(session.prefill(PROMPT).argmax())]
    while len(found) < count:
        found.append(session.decode_greedy(found[-1]))
    return found
