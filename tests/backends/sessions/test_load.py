"""What a model is opened with: the file at hand, the definition it was compiled by, types that there are."""

import shutil
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import pytest
from ggufc import InputError
from ggufc.backends.bundles.bundle import MANIFEST
from ggufc.backends.host.folders import cache_directory
from ggufc.backends.reports.bench.speed import bench
from ggufc.backends.sessions import load as load_module

from ...tiny_models import tiny_gemma3
from ..conftest import TinyCase


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of compiled models of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return cache_directory()


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    """A folder with another definition of gemma3, alike but for its bytes."""
    folder = tmp_path / "definitions"
    folder.mkdir()
    text = (Path(str(files("ggufc.archdefs"))) / "gemma3.archdef").read_text()
    (folder / "gemma3.archdef").write_text(text + "\n# mine\n")
    return folder


@pytest.mark.parametrize("kv", ["q4_0", "bf16", ""])
def test_a_cache_type_that_there_is_not_is_refused(kv: str, tiny_f32: TinyCase, tmp_path: Path) -> None:
    for backend in load_module.BACKENDS:
        with pytest.raises(InputError, match=f"type '{kv}'; there are f32, f16, q8_0"):
            ggufc.load(tiny_f32.path, backend, kv=kv)
    with pytest.raises(InputError, match="there are f32, f16, q8_0"):
        ggufc.export(tiny_f32.path, tmp_path / "out", kv=kv)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cached_module_runs_on_the_file_at_hand(cache: Path, tmp_path: Path) -> None:
    """The cache's own link goes with the file's old name, and may point at another model later."""
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    tiny_gemma3(first, layers=2, seed=1)
    wanted = ggufc.load(first, threads=1).prefill([2, 5])
    first.rename(second)
    for _ in range(2):  # without, then with another file where the link points
        np.testing.assert_array_equal(ggufc.load(second, threads=1).prefill([2, 5]), wanted)
        report = bench(second, prompts=[4], tokens=[2], threads=[1], rounds=1)
        assert report["decode_tok_s"] > 0
        first.write_bytes(b"another")
    assert len(list(cache.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["a cut module", "no manifest", "half a manifest"])
def test_a_damaged_entry_of_the_cache_is_made_again(
    damage: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_gemma3(tmp_path / "model.gguf", layers=2)
    wanted = ggufc.load(model, threads=1).prefill([2, 5])
    (entry,) = cache.iterdir()
    if damage == "no manifest":
        (entry / MANIFEST).unlink()
    else:
        file = entry / ("model.host.vmfb" if damage == "a cut module" else MANIFEST)
        file.write_bytes(file.read_bytes()[:1000])
    assert not caplog.records
    np.testing.assert_array_equal(ggufc.load(model, threads=1).prefill([2, 5]), wanted)
    assert [record.getMessage() for record in caplog.records] == [
        f"{entry}: a damaged entry of the cache; it is compiled again"
    ]
    assert list(cache.iterdir()) == [entry]


@pytest.mark.parametrize("backend", load_module.BACKENDS)
def test_definitions_mean_nothing_to_a_bundle(backend: str, tiny_f32: TinyCase, definitions: Path) -> None:
    with pytest.raises(InputError, match="compiled with a definition already, so it takes no --archdefs"):
        ggufc.load(tiny_f32.bundle.path, backend, archdefs=[definitions])


def test_a_bundle_is_lowered_by_its_own_definition(
    tiny_f32: TinyCase, definitions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGUFC_ARCHDEFS", str(definitions))
    assert load_module.lowered(None, tiny_f32.path).definition.source.startswith(str(definitions))
    own = load_module.lowered(tiny_f32.bundle, tiny_f32.path).definition
    assert (own.source, own.text) == (str(tiny_f32.bundle.path / "gemma3.archdef"), tiny_f32.model.definition.text)


@pytest.mark.parametrize("name", ["model.mlir", "gemma3.archdef"])
def test_a_bundle_with_a_cut_file_is_refused_though_nobody_reads_it(
    name: str, tiny_f32: TinyCase, tmp_path: Path
) -> None:
    """The compiled module runs without either: one that is gone is none that was cut."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_f32.bundle.path, folder, symlinks=True)
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[:-1])
    with pytest.raises(InputError, match=rf"/{name}: not the file that was exported: {len(raw) - 1} bytes, wanted"):
        ggufc.load(folder, threads=1)
    (folder / name).unlink()
    assert ggufc.load(folder, threads=1).prefill([2]).shape == (tiny_f32.model.vocabulary,)


def test_a_bundle_moved_away_from_its_weights_is_still_measured(tiny_f32: TinyCase, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_f32.bundle.path, folder, symlinks=True)
    (folder / "model.gguf").unlink()
    (folder / "model.gguf").symlink_to("/nowhere/model.gguf")
    measure = partial(bench, folder, prompts=[4], tokens=[2], threads=[1], rounds=1)
    with pytest.raises(InputError, match="--weights-file"):
        measure()
    assert measure(weights=tiny_f32.path)["decode_tok_s"] > 0


@pytest.mark.parametrize("threads", [0, -1, 1.5, 10**6, "2"])
@pytest.mark.parametrize("backend", ["iree", "native", "xla"])
def test_threads_are_a_whole_number_that_a_machine_may_have(threads: Any, backend: str, tiny_f32: TinyCase) -> None:
    with pytest.raises(InputError, match="threads: wanted a whole number from 1 to 1024"):
        ggufc.load(tiny_f32.path, backend, threads=threads)
