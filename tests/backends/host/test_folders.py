"""A temporary folder outlives neither its block nor, for long, a killed process; a living one's is left alone."""

import subprocess
import sys
from pathlib import Path

from ggufc.backends.host.folders import owned_folder

HOLD = """
import sys, time
from pathlib import Path
from ggufc.backends.host.folders import owned_folder
with owned_folder(Path(sys.argv[1]), "part-"):
    print("held", flush=True)
    time.sleep(60)
"""


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_a_folder_vanishes_with_its_block(tmp_path: Path) -> None:
    with owned_folder(tmp_path, "part-", ".x") as folder:
        assert folder.name.startswith("part-") and folder.name.endswith(".x")
        (folder / "file").write_text("half")
    assert names(tmp_path) == set()


def test_only_a_dead_process_loses_its_folder(tmp_path: Path) -> None:
    """Nothing but the lock decides: the number of a process means nothing in another container."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "held\n"
        (theirs,) = names(tmp_path)
        with owned_folder(tmp_path, "part-") as mine, owned_folder(tmp_path, "part-") as another:
            assert names(tmp_path) == {theirs, mine.name, another.name}
        child.kill()
        child.wait()
    assert names(tmp_path) == {theirs}
    (tmp_path / "other").mkdir()
    with owned_folder(tmp_path, "part-") as mine:
        assert names(tmp_path) == {mine.name, "other"}


def test_what_only_looks_like_one_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "part-file").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "part-link").symlink_to(tmp_path / "elsewhere")
    with owned_folder(tmp_path, "part-"):
        pass
    assert names(tmp_path) == {"part-file", "part-link", "elsewhere"}
