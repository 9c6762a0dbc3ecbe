"""A bundle is refused, with a reason, as soon as any of its files is not what was exported."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ggufc
import pytest
from ggufc import InputError
from ggufc.backends.bundles.bundle import MANIFEST, read_bundle, weight_names
from ggufc.backends.bundles.manifest import sealed
from ggufc.backends.bundles.writing import UNFINISHED, write_manifest, written_aside
from ggufc.backends.host.folders import owned_folder

from ..conftest import TinyCase

WEIGHTS = weight_names(1)[0]
CUTS = (0, 1, 7, 8, 63, 64, 0.01, 0.25, 0.5, 0.9, 0.99, -1)
"""Lengths to cut a file to; fractions of it, or -1 for all but the last byte."""


@pytest.fixture
def copied(tiny_f32: TinyCase, tmp_path: Path) -> Iterator[Path]:
    """A bundle to damage."""
    folder = tmp_path / "bundle"
    shutil.copytree(tiny_f32.bundle.path, folder, symlinks=True)
    yield folder


@pytest.mark.parametrize(
    "name",
    [MANIFEST, "model.mlir", "model.host.vmfb", "tokenizer.model", "tokenizer_config.json", "gemma3.archdef"],
)
def test_a_cut_file_is_refused(name: str, copied: Path) -> None:
    raw = (copied / name).read_bytes()
    for cut in CUTS:
        length = int(cut * len(raw)) if isinstance(cut, float) else cut % len(raw)
        if raw[:length].strip() == raw.strip():
            continue  # without its last line's end a manifest is whole
        (copied / name).write_bytes(raw[:length])
        with pytest.raises(InputError, match="export"):
            backend = {"model.mlir": "xla", "gemma3.archdef": "native"}.get(name, "iree")
            ggufc.load(copied, backend, threads=1).tokenizer  # noqa: B018


def test_one_changed_byte_is_refused(copied: Path) -> None:
    raw = bytearray((copied / "model.host.vmfb").read_bytes())
    raw[len(raw) // 2] ^= 1
    (copied / "model.host.vmfb").write_bytes(raw)
    with pytest.raises(InputError, match=r"as long, but the content has sha256 .{12}, wanted .{12}; export"):
        ggufc.load(copied, threads=1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("gone", "give the place of f32.gguf with --weights-file FILE, or as weights= in Python$"),
        ("cut", r"exported: \d+ bytes, wanted \d+; give that one, or export again$"),
        ("another model", "exported: as long, but the header has sha256"),
        ("a header changed", "exported: as long, but the header has sha256"),
        ("other weights", "exported: as long, but the sample of its tensors has sha256"),
    ],
)
def test_weights_that_are_not_the_exported_ones_are_refused(damage: str, said: str, copied: Path) -> None:
    raw = (copied / WEIGHTS).read_bytes()
    norm = json.loads((copied / MANIFEST).read_text())["tensors"]["blk.6.attn_norm.weight"]
    begin, end = norm["offset"], norm["offset"] + norm["nbytes"]
    (copied / WEIGHTS).unlink()
    changed = {
        "cut": raw[:-1],
        "another model": raw[::-1],
        "a header changed": raw.replace(b"gemma3.block", b"gemma3.glock"),
        "other weights": raw[:begin] + raw[begin:end][::-1] + raw[end:],
    }
    if damage in changed:
        (copied / WEIGHTS).write_bytes(changed[damage])
    with pytest.raises(InputError, match=said):
        ggufc.load(copied, threads=1)


def test_a_definition_of_another_name_is_refused(copied: Path) -> None:
    manifest = json.loads((copied / MANIFEST).read_text())
    manifest["architecture"]["name"] = "../../gemma3"
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match=r"the bundle has no \.\./\.\./gemma3\.archdef"):
        ggufc.load(copied, "native", threads=1)
    manifest["architecture"] = {"name": "gemma3", "sha256": "0" * 64}
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match=r"gemma3.archdef: not the definition that the manifest names"):
        ggufc.load(copied, "native", threads=1)


def test_weights_may_lie_elsewhere(copied: Path, tiny_f32: TinyCase) -> None:
    (copied / WEIGHTS).unlink()
    assert ggufc.load(copied, threads=1, weights=tiny_f32.path).prefill([2]).shape == (tiny_f32.model.vocabulary,)


@pytest.mark.parametrize("key", ["files", "weights", "parameters", "caches", "targets", "entries"])
def test_a_manifest_without_a_part_is_refused(key: str, copied: Path) -> None:
    manifest = json.loads((copied / MANIFEST).read_text())
    del manifest[key]
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match=key):
        read_bundle(copied)


def test_another_format_is_refused(copied: Path) -> None:
    manifest = json.loads((copied / MANIFEST).read_text()) | {"format": 99}
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match="format 99"):
        read_bundle(copied)


def test_a_failed_writer_leaves_the_old_bundle(copied: Path) -> None:
    before = (copied / MANIFEST).read_bytes()
    with pytest.raises(RuntimeError), written_aside(copied) as aside:
        (aside / MANIFEST).write_text("half")
        raise RuntimeError
    assert (copied / MANIFEST).read_bytes() == before
    assert list(copied.parent.iterdir()) == [copied]


def test_what_a_killed_writer_left_goes_at_the_next_to_any_place_beside_it(tmp_path: Path) -> None:
    with owned_folder(tmp_path, UNFINISHED) as left:
        shutil.copytree(left, tmp_path / f"{UNFINISHED}orphan")
    (tmp_path / "mine.ggufc").mkdir()
    with written_aside(tmp_path / "bundle") as aside:
        assert {p.name for p in tmp_path.iterdir()} == {aside.parent.name, "mine.ggufc"}
        (aside / MANIFEST).write_text("new")


def test_a_writer_replaces_a_bundle_whole(copied: Path) -> None:
    with written_aside(copied) as aside:
        (aside / MANIFEST).write_text("new")
        assert (copied / MANIFEST).read_text() != "new"
    assert [p.name for p in copied.iterdir()] == [MANIFEST]
    assert list(copied.parent.iterdir()) == [copied]


@pytest.mark.parametrize(
    ("keys", "value", "said"),
    [
        (("parameters", "token_embd.weight"), [0, 1, 2, 3], "parameters"),
        (("parameters", "token_embd.weight"), [0, -8, 16], "parameters"),
        (("parameters", "token_embd.weight"), [0, 0, 1 << 40], "parameters"),
        (("parameters", "token_embd.weight"), [0, 0, 1 << 70], "parameters"),
        (("parameters", "token_embd.weight"), [1, 0, 16], "lies in file 1"),
        (("weights",), [], "weights"),
        (("entries", "decode", "results"), [], "results"),
        (("entries", "decode", "results", 0, "shape"), [], "shape"),
        (("entries",), {}, "entries"),
        (("entries", "forecast"), {"arguments": [], "results": [{"shape": [1]}]}, "forecast"),
        (("caches", 0, "dtype"), "q4_0", "dtype"),
        (("caches", 0, "row"), [], "row"),
        (("caches", 0, "row", 0), -2, "row"),
        (("caches", 0, "window"), -1, "window"),
        (("kv",), "bf16", "kv"),
        (("context_length",), 0, "context_length"),
        (("context_length",), True, "context_length"),
        (("vocabulary",), 1 << 40, "vocabulary"),
        (("targets",), {}, "targets"),
        (("targets", "host", "features"), "avx2", "features"),
        (("tokenizer", "notes"), [1], "notes"),
        (("weights", 0, "header_bytes"), -1, "header_bytes"),
        (("weights", 0, "header_bytes"), 1 << 60, "header_bytes"),
        (("architecture",), "gemma3", "architecture"),
        (("vocabulary",), 311, "vocabulary"),
        (("encoding",), "foo", "encoding is 'foo', wanted bf16 or f32"),
        (("parameters", "blk.0.attn_k.weight", 1), 64, "the tensor lies at"),
        (("parameters", "blk.9.attn_k.weight"), [0, 0, 64], "none of the tensors"),
    ],
)
def test_a_manifest_with_a_wrong_value_is_refused(
    keys: tuple[str | int, ...], value: Any, said: str, copied: Path
) -> None:
    manifest = json.loads((copied / MANIFEST).read_text())
    place = manifest
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match=f"{said}.*export the model again"):
        ggufc.load(copied, threads=1)


def test_a_manifest_without_decode_is_damaged(copied: Path) -> None:
    manifest = json.loads((copied / MANIFEST).read_text())
    del manifest["entries"]["decode"]
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match="entries has no 'decode'"):
        read_bundle(copied)


def test_a_change_that_contradicts_nothing_is_refused(copied: Path) -> None:
    """Of the context's length, for example, or of a cache's window everywhere: other numbers would come out."""
    manifest = json.loads((copied / MANIFEST).read_text())
    (copied / MANIFEST).write_text(json.dumps(manifest | {"context_length": manifest["context_length"] // 2}) + "\n")
    with pytest.raises(InputError, match=r"the manifest's sha256 is '.{12}', of what it says .{12}; export"):
        read_bundle(copied)
    (copied / MANIFEST).write_text(json.dumps(manifest, indent=7) + "\n")  # a blank is none
    assert read_bundle(copied).manifest == manifest
    (copied / MANIFEST).write_text(json.dumps(manifest, indent=7))
    with pytest.raises(InputError, match="damaged: cut off at its end"):
        read_bundle(copied)


@pytest.mark.parametrize(
    ("row", "said"), [([2**31 - 1, 2**31 - 1], "no memory holds"), ([1, 16], "takes other arguments")]
)
def test_caches_of_another_shape_everywhere_are_refused(row: list[int], said: str, copied: Path) -> None:
    manifest = json.loads((copied / MANIFEST).read_text())
    for entry in manifest["entries"].values():
        for argument in entry["arguments"][2:]:
            argument["shape"][1:] = row
    for cache in manifest["caches"]:
        cache["row"] = row
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match=f"{said}.*export the model again"):
        ggufc.load(copied, threads=1).prefill([2])


def test_a_manifest_nested_without_end_is_refused(copied: Path) -> None:
    (copied / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(InputError, match="export the model again"):
        read_bundle(copied)


@pytest.mark.parametrize("change", ["rows", "window", "row", "fewer"])
def test_caches_that_are_not_the_entries_arguments_are_refused(change: str, copied: Path) -> None:
    """A cache of another length than the module counts on would give wrong logits."""
    manifest = json.loads((copied / MANIFEST).read_text())
    cache = manifest["caches"][0]
    if change == "fewer":
        del manifest["caches"][0]
    else:
        cache[change] = [7] if change == "row" else cache[change] + 1
    (copied / MANIFEST).write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(InputError, match="damaged: the manifest"):
        read_bundle(copied)


def test_a_manifest_that_never_ends_is_not_read(copied: Path) -> None:
    (copied / MANIFEST).unlink()
    os.mkfifo(copied / MANIFEST)
    with pytest.raises(InputError, match="is a pipe or a device, wanted a file"):
        read_bundle(copied)


@pytest.mark.parametrize("name", ["model.host.vmfb", "tokenizer.model", "tokenizer_config.json", WEIGHTS])
def test_a_pipe_in_place_of_a_file_is_refused(name: str, copied: Path) -> None:
    """At once: opened as files are, it would wait for somebody who writes to it."""
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with pytest.raises(InputError, match=r"is a pipe or a device, wanted a file; |0 bytes, wanted"):
        ggufc.load(copied, threads=1).tokenizer  # noqa: B018


def bomb(config: dict[str, Any]) -> bytes:
    return json.dumps(config | {"types": [[1, 10**9]]}).encode()


def no_token(config: dict[str, Any]) -> bytes:
    return json.dumps(config | {"specials": config["specials"] | {"bos_id": 10**9}}).encode()


@pytest.mark.parametrize("change", [lambda config: b"[" * 100_000, bomb, no_token])
def test_a_tokenizers_configuration_that_was_written_by_hand(
    change: Callable[[dict[str, Any]], bytes], copied: Path
) -> None:
    """With the sha256 that it now has, so that only its content can tell."""
    (copied / "tokenizer_config.json").write_bytes(change(json.loads((copied / "tokenizer_config.json").read_text())))
    manifest = json.loads((copied / MANIFEST).read_text())
    (copied / MANIFEST).unlink()
    write_manifest(copied, {key: value for key, value in manifest.items() if key != "files"})
    with pytest.raises(InputError, match="export the model again"):
        ggufc.load(copied, threads=1).tokenizer  # noqa: B018


def test_a_strangers_folder_is_never_replaced(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not a bundle's own would be deleted with it."""
    web = tmp_path / "web"
    web.mkdir()
    (web / "manifest.json").write_text('{"name": "an application of the web"}')
    (copied / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for place, words in ((web, "no whole bundle"), (copied, "notes.txt"), (Path(), "current directory")):
        with pytest.raises(InputError, match=words), written_aside(place):
            pass
    assert (copied / "notes.txt").exists()


def test_a_link_to_a_bundle_stays_a_link(copied: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(copied)
    with written_aside(link) as aside:
        write_manifest(aside, {"new": True})
    assert link.is_symlink()
    assert json.loads((copied / MANIFEST).read_text())["new"]


def test_a_model_inside_its_own_output_is_refused(tiny_f32: TinyCase, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    model = shutil.copy(tiny_f32.path, own / "model.gguf")
    with pytest.raises(InputError, match="which the export would replace"):
        ggufc.export(model, own)
    assert Path(model).stat().st_size == tiny_f32.path.stat().st_size


def test_an_error_of_the_writer_is_not_the_outputs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="a source"), written_aside(tmp_path / "out"):
        raise FileNotFoundError(2, "not there", "a source")
    with pytest.raises(InputError, match="/dev/null/out: /dev/null is no folder"), written_aside(Path("/dev/null/out")):
        pass
    assert list(tmp_path.iterdir()) == []
