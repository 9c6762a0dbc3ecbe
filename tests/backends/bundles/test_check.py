"""A bundle held against its manifest: each part that is another one is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ggufc
import pytest
from click.testing import CliRunner
from ggufc.backends.bundles.bundle import read_bundle
from ggufc.backends.bundles.check import check_bundle
from ggufc.backends.bundles.manifest import sealed
from ggufc.backends.reports.verify import verify
from ggufc.cli import main
from ggufc.frontend.errors import InputError

from ..conftest import TinyCase


@pytest.fixture
def copied(tiny_f32: TinyCase, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(tiny_f32.bundle.path, tmp_path / "bundle", symlinks=True))


def failed(bundle: Path) -> dict[str, str]:
    return {check.what: check.said for check in check_bundle(read_bundle(bundle)) if not check.ok}


def test_a_whole_bundle_passes(copied: Path) -> None:
    checks = check_bundle(read_bundle(copied))
    assert all(check.ok for check in checks), checks
    assert {check.what for check in checks} >= {"model.host.vmfb", "gemma3.archdef", "f32.gguf", "contents"}
    assert {check.what: check.said for check in checks if check.said} == {"f32.gguf": "sampled"}


def test_every_damaged_file_is_named(copied: Path, tiny_f32: TinyCase) -> None:
    (copied / "model.host.vmfb").write_bytes(b"x")
    (copied / "gemma3.archdef").unlink()
    (copied / "model.gguf").unlink()
    found = failed(copied)
    assert list(found) == ["gemma3.archdef", "model.host.vmfb", "f32.gguf"]
    assert "1 bytes, wanted" in found["model.host.vmfb"] and "--weights-file" in found["f32.gguf"]
    verdict = verify(copied, weights=tiny_f32.path)
    assert not verdict.ok and not verdict.rows and len([c for c in verdict.checks if not c.ok]) == 2
    with pytest.raises(InputError, match="--weights-file FILE"):
        verify(copied)


def edit_tensor(manifest: dict[str, Any]) -> None:
    manifest["tensors"]["blk.0.attn_k.weight"]["type"] = "f16"


def edit_entry(manifest: dict[str, Any]) -> None:
    manifest["entries"]["decode"]["results"][1]["shape"] = [1, 7]


def drop_tensor(manifest: dict[str, Any]) -> None:
    del manifest["tensors"]["output_norm.weight"], manifest["parameters"]["output_norm.weight"]
    del manifest["weights"][0]["fingerprint"]


def edit_context(manifest: dict[str, Any]) -> None:
    manifest["context_length"] += 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit_tensor, "tensors 'blk.0.attn_k.weight': 'type': 'f16', the model gives 'f32'"),
        (edit_entry, "entries 'decode': 'results': "),
        (drop_tensor, "tensors lack 'output_norm.weight'"),
        (edit_context, "context_length "),
    ],
)
def test_a_manifest_that_says_other_than_the_model_is_refused(
    change: Callable[[dict[str, Any]], None], said: str, copied: Path
) -> None:
    manifest = json.loads((copied / "manifest.json").read_text())
    change(manifest)
    (copied / "manifest.json").write_text(json.dumps(sealed(manifest)) + "\n")
    found = failed(copied)
    assert list(found) == ["contents"] and f"the manifest's {said}" in found["contents"]


def test_a_bundle_has_its_own_type_of_caches(tiny_f32: TinyCase) -> None:
    for call in (ggufc.load, verify):
        with pytest.raises(InputError, match=r"caches of type f32; export the model with --kv q8_0"):
            call(tiny_f32.bundle.path, kv="q8_0")
    for command in ("inspect", "bench"):
        done = CliRunner().invoke(main, [command, str(tiny_f32.bundle.path), "--kv", "q8_0"])
        assert done.exit_code == 2 and "caches of type f32" in done.stderr
