"""What export leaves behind: the same bytes for the same input, and never half a bundle."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ggufc.backends.bundles.export import export
from ggufc.frontend.errors import InputError

from ...tiny_models import tiny_gemma3

COMMAND = [sys.executable, "-m", "ggufc", "export"]


def digests(folder: Path) -> dict[str, str]:
    """The sha256 of every file of a bundle but the weights."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file() and not p.is_symlink())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


# What surrounds an export and must not show in it: environment, umask.
SURROUNDINGS: tuple[tuple[dict[str, str], int], ...] = (
    ({"PYTHONHASHSEED": "0"}, 0o022),
    ({"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"}, 0o077),
    ({"PYTHONHASHSEED": "random", "OMP_NUM_THREADS": "1", "TMPDIR": "ELSEWHERE"}, 0o002),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["det-gemma3", "det-llama"])
def test_the_same_model_gives_the_same_bytes(name: str, shared_dir: Path, tmp_path: Path) -> None:
    """Case 59: other hash seeds, folders, time zones, languages, umasks."""
    source = shared_dir / "cases" / "59-same-input-other-bytes" / "input" / f"{name}.gguf"
    found = []
    for n, (environment, umask) in enumerate(SURROUNDINGS):
        folder = tmp_path / f"place{n}"
        (folder / "tmp").mkdir(parents=True)
        model = shutil.copy(source, folder / source.name)
        changed = {k: str(folder / "tmp") if v == "ELSEWHERE" else v for k, v in environment.items()}
        command = [*COMMAND, str(model), "-o", "out"]
        subprocess.run(command, cwd=folder, env=os.environ | changed, umask=umask, check=True, capture_output=True)
        found.append(digests(folder / "out"))
        assert list((folder / "tmp").iterdir()) == []
    assert found[0] == found[1] == found[2]
    assert {"manifest.json", "model.mlir", "model.host.vmfb"} <= found[0].keys()


@pytest.mark.slow
def test_a_kill_leaves_the_old_bundle_or_none(tmp_path: Path) -> None:
    """Case 61: killed at random moments, first with nothing there and then with an older bundle; the next export
    removes what the killed ones left."""
    model = tiny_gemma3(tmp_path / "model.gguf", layers=2)
    place = tmp_path / "place"
    place.mkdir()
    command = [*COMMAND, str(model), "-o", str(place / "out")]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    whole, seconds = digests(place / "out"), time.perf_counter() - start
    shutil.rmtree(place / "out")
    chance = random.Random(61)
    for old in (False, True):
        for _ in range(4):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
                time.sleep(chance.uniform(0.2, 1.0) * seconds)
                child.send_signal(signal.SIGKILL)
            if old or (place / "out").exists():  # the last moment may come too late
                assert digests(place / "out") == whole
        subprocess.run(command, check=True, capture_output=True)
        assert digests(place / "out") == whole
        assert [p.name for p in place.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.6, 1.2])
def test_an_interrupt_is_one_line_and_leaves_nothing(seconds: float, tmp_path: Path) -> None:
    """Early on it comes while native modules are imported, which it would crash."""
    model = tiny_gemma3(tmp_path / "model.gguf", layers=2)
    place = tmp_path / "place"
    place.mkdir()
    with subprocess.Popen([*COMMAND, str(model), "-o", str(place / "out")], stderr=subprocess.PIPE, text=True) as child:
        while not list(place.iterdir()):  # its temporary folder
            time.sleep(0.01)
        time.sleep(seconds)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    assert child.returncode == 130
    assert said == "ggufc: error: interrupted\n"
    assert list(place.iterdir()) == []


def test_a_name_that_the_disk_cannot_hold_is_told_before_the_work(tmp_path: Path) -> None:
    model = tiny_gemma3(tmp_path / "model.gguf", layers=1)
    stages: list[str] = []
    for output in (tmp_path / ("x" * 300), tmp_path / ("x" * 300) / "out", tmp_path / "new" / "deep" / ("x" * 300)):
        with pytest.raises(InputError, match=r"can't be written: File name too long$"):
            export(model, output, progress=stages.append)
    assert stages == ["reading the header"] * 3
    assert list(tmp_path.iterdir()) == [model]


def test_a_disk_without_room_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_gemma3(tmp_path / "model.gguf", layers=1)
    stages: list[str] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: (1 << 30, (1 << 30) - 5000, 5000))
    with pytest.raises(InputError, match=r"No space left on device: wants \d+ bytes, and 5000 are free$"):
        export(model, tmp_path / "out", copy_weights=True, progress=stages.append)
    assert stages == ["reading the header"]
    assert list(tmp_path.iterdir()) == [model]
