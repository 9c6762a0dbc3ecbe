"""What the machine has: models of every origin, definitions, backends, each with what is wrong with it."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ggufc.backends.reports.status import HERE, NEEDS, status
from ggufc.cli import main
from ggufc.frontend.definitions import VARIABLE, find
from ggufc.frontend.errors import InputError
from ggufc.graph.model import open_model

from ...splitting import split_model
from ...stores import put_hugging_face, put_ollama
from ..conftest import TinyCase


@pytest.fixture
def found(tmp_path: Path, tiny_gemma3_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The status of a machine with everything on it."""
    model, here = tiny_gemma3_path.read_bytes(), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    shutil.copy(tiny_gemma3_path, "own.gguf")
    Path("cut.gguf").write_bytes(model[:1000])
    Path("strange.gguf").write_bytes(model.replace(b"gemma3", b"gemmaX"))
    split_model(tiny_gemma3_path, here)
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    put_ollama(tmp_path / "ollama", "registry.ollama.ai/library/gemma3/tiny", model)
    put_ollama(tmp_path / "ollama", "registry.ollama.ai/library/gone/latest", b"GGUF").unlink()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    put_hugging_face(tmp_path / "hub", "o/r", "aa", {"m-F32.gguf": model, "m-Q8_0.gguf": None, "mmproj.gguf": model})
    put_hugging_face(tmp_path / "hub", "o/torn", "aa", {"m.gguf": model})
    (tmp_path / "hub" / "models--o--torn" / "refs" / "main").write_bytes(b"\xff")
    put_hugging_face(tmp_path / "hub", "o/other", "aa", {"model.safetensors": b"{}"})
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    (definitions / "broken.archdef").write_text("arch broken\nblock\n  x = nonsense y\n")
    monkeypatch.setenv(VARIABLE, str(definitions))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return status()


def test_models_of_every_origin_are_listed(found: dict[str, Any], tiny_gemma3_path: Path) -> None:
    models = {model["name"]: model for model in found["models"]}
    sound = {name for name, model in models.items() if "error" not in model}
    assert sound == {"own.gguf", "gemma3-00001-of-00005.gguf", "gemma3:tiny", "o/r:F32"}
    sha256 = hashlib.sha256(tiny_gemma3_path.read_bytes()).hexdigest()
    for name, origin, known in (
        ("own.gguf", HERE, None),
        ("gemma3:tiny", "Ollama", sha256),
        ("o/r:F32", "Hugging Face", sha256),
    ):
        model = models[name]
        assert (model["origin"], model["sha256"], model["architecture"]) == (origin, known, "gemma3")
        assert model["size"] == tiny_gemma3_path.stat().st_size
        assert set(model["types"]) == {"f32"}
        assert Path(model["path"]).is_file()
    assert models["gemma3-00001-of-00005.gguf"]["files"] == 5


def test_what_cannot_be_used_is_listed_with_the_error_that_using_it_gives(
    found: dict[str, Any], tmp_path: Path
) -> None:
    broken = {
        entry["name"]: entry["error"] for key in ("models", "architectures") for entry in found[key] if "error" in entry
    }
    assert set(broken) == {"cut.gguf", "strange.gguf", "gone:latest", "o/r:Q8_0", "o/torn", "broken"}
    assert "no definition of architecture 'gemmaX'" in broken["strange.gguf"]
    for name in ("cut.gguf", "gone:latest", "o/r:Q8_0", "o/torn"):
        done = CliRunner().invoke(main, ["inspect", name])
        assert done.exit_code == 2
        assert broken[name] in done.stderr
    with pytest.raises(InputError) as caught:
        find("broken")
    assert str(caught.value) == broken["broken"]


@pytest.mark.usefixtures("found")
def test_a_bundle_is_no_worse_for_a_broken_definition(tiny_f32: TinyCase, tmp_path: Path) -> None:
    """It holds its own, and runs; a model of the architecture doesn't."""
    shutil.copytree(tiny_f32.bundle.path, tmp_path / "here" / "exported", symlinks=True)
    (tmp_path / "definitions" / "gemma3.archdef").write_text("arch gemma3\nkind decodr\n")
    models = {model["name"]: model for model in status()["models"]}
    assert "gemma3.archdef:2:6: " in models["own.gguf"]["error"]
    assert "error" not in models["exported/"] and set(models["exported/"]["types"]) == {"f32"}
    said = {
        line.split()[0]: "can't be run" in line for line in CliRunner().invoke(main, ["status"]).stdout.splitlines()
    }
    assert (said["own.gguf"], said["exported/"]) == (True, False)
    weights = tmp_path / "here" / "exported" / "model.gguf"
    weights.unlink()
    weights.symlink_to(tmp_path / "gone.gguf")
    models = {model["name"]: model for model in status()["models"]}
    assert "gone.gguf): No such file or directory; give the place of" in models["exported/"]["error"]


def test_architectures_have_origin_and_sha256(found: dict[str, Any], tiny_gemma3_path: Path) -> None:
    gemma3 = next(entry for entry in found["architectures"] if entry["name"] == "gemma3")
    assert (gemma3["origin"], gemma3["kind"]) == ("shipped", "decoder")
    assert gemma3["sha256"] == open_model(tiny_gemma3_path).definition.sha256


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(backend["ready"] for backend in status()["backends"].values())
    monkeypatch.setitem(NEEDS, "xla", ("jax", "no-such-package"))
    assert status()["backends"]["xla"]["ready"] is False
    assert "missing: pip install no-such-package" in CliRunner().invoke(main, ["status"]).stdout


@pytest.mark.usefixtures("found")
def test_the_command_prints_all_of_it() -> None:
    done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 0, done.stderr
    for part in (
        "o/r:F32",
        "gemma3:tiny",
        "broken",
        "can't be run: no definition",
        "Backends",
        "x86-64-v3",
        "0 compiled",
    ):
        assert part in done.stdout
    assert json.loads(CliRunner().invoke(main, ["status", "--json"]).stdout)["models"]
