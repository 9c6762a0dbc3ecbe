"""What a device needs that only runs bundles: these packages, no others, and little room and time."""

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import ggufc
import pytest

from .tiny_models import Sizes, tiny_model

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PROFILER = "_runtime_libs_tracy"
"""The copy of IREE's runtime that is for profiling alone."""


@pytest.fixture(scope="module")
def packages() -> list[str]:
    """Those that the README names for a device."""
    line = re.search(r"^pip install --no-compile --no-deps \. (.+?)(?:  .*)?$", README, re.MULTILINE)
    assert line
    return line[1].split()


def test_they_are_all_that_is_declared(packages: list[str]) -> None:
    """And what those need in turn, but for what fetches models by name from the Hugging Face Hub."""
    declared: set[str] = set()
    queue = list(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"])
    while queue:
        name = re.split(r"[^\w.-]", queue.pop())[0].lower().replace("-", "_")
        if name in declared or name == "huggingface_hub":
            continue
        declared.add(name)
        queue += [need for need in importlib.metadata.requires(name) or () if "extra" not in need]
    assert {name.lower().replace("-", "_") for name in packages} == declared


def test_they_take_less_than_120_mb(packages: list[str]) -> None:
    files = [file for name in packages for file in importlib.metadata.files(name) or ()]
    kept = [file.locate() for file in files if file.suffix != ".pyc" and PROFILER not in file.parts]
    own = [path for path in Path(ggufc.__file__).parent.rglob("*.py") if ".venv" not in path.parts]
    assert sum(Path(str(path)).stat().st_size for path in (*kept, *own) if Path(str(path)).is_file()) < 120e6


def run(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


def test_importing_ggufc_takes_less_than_300_ms() -> None:
    timed = "import time; start = time.perf_counter(); import ggufc; print(time.perf_counter() - start)"
    assert min(float(run(timed)) for _ in range(3)) < 0.3


ONLY = """
import importlib.abc, importlib.metadata, json, sys

packages, bundle = json.loads(sys.argv[1]), sys.argv[2]
allowed = {name.lower().replace("_", "-") for name in packages} | {"ggufc"}
homes = importlib.metadata.packages_distributions()

class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        owners = {owner.lower().replace("_", "-") for owner in homes.get(name.split(".")[0], ())}
        if owners and not owners & allowed or name.startswith(("iree.compiler", "iree._runtime_libs_tracy")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Only())
try:
    import huggingface_hub
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("the packages are not kept apart")

from ggufc.frontend.tokenizer import bpe, spm, ugm, wpm
from ggufc.cli import main
main(["run", bundle, "the an", "--tokens", "3", "--json"])
"""


def test_a_bundle_made_elsewhere_runs_with_them_alone(packages: list[str], tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "m.gguf", "llama", Sizes(layers=1))
    bundle = ggufc.export(model, tmp_path / "made", copy_weights=True).path
    moved = bundle.rename(tmp_path / "moved")
    model.unlink()
    assert len(json.loads(run(ONLY, json.dumps(packages), str(moved)))["tokens"]) == 3
