"""Matrices encoded anew: bytes against gguf-py's and numpy's, what is kept, and errors that leave nothing behind."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import ggufc
import ml_dtypes
import numpy as np
import pytest
from gguf.quants import dequantize
from ggufc import InputError
from ggufc.backends.bundles import encode
from ggufc.frontend.gguf.reader import read_metadata
from ggufc.graph.model import Model, open_model

from ...splitting import split_model
from ...tiny_models import Sizes, Weight, tiny_gemma3, tiny_model
from .test_archive import read_archive

MIXED = {"token_embd*": "q8_0", "*attn_k*": "f16", "*attn_v*": "bf16", "*ffn_down*": "q5_0", "*": "q4_0"}
HEADS = "*attn_q.weight"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A Gemma 3 of one layer with a matrix of each kind."""
    path = tmp_path_factory.mktemp("encode") / "mixed.gguf"
    return open_model(tiny_gemma3(path, layers=1, width=64, head_dim=32, ffn=96, types=MIXED))


def archive_of(model: Model, path: Path, weights: str, keep: tuple[str, ...] = ()) -> Model:
    target = encode.begin(model, path, weights, keep)
    encode.fill(model.file, target.file, 1)
    return target


def values_of(path: Path) -> dict[str, np.ndarray]:
    """float32 tensors, as gguf-py reads them."""
    return {t.name: dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


def bf16_bytes(values: np.ndarray) -> bytes:
    return values.astype(ml_dtypes.bfloat16).tobytes()


def int8_bytes(values: np.ndarray) -> bytes:
    rows = []
    for row in values.reshape(-1, values.shape[-1]):
        scale = np.float32(np.abs(row).max() / np.float32(127))
        rows.append(scale.tobytes() + np.rint(row / scale).astype(np.int8).tobytes())
    return b"".join(rows)


@pytest.mark.parametrize(
    ("weights", "encoded"), [("f32", lambda v: v.tobytes()), ("bf16", bf16_bytes), ("int8", int8_bytes)]
)
def test_matrices_are_encoded_and_the_rest_stays(
    weights: str, encoded: Callable[[np.ndarray], bytes], mixed: Model, tmp_path: Path
) -> None:
    target = archive_of(mixed, tmp_path / "w.irpa", weights)
    raw = (tmp_path / "w.irpa").read_bytes()
    entries, values = read_archive(raw), values_of(mixed.file.path)
    assert list(entries) == list(mixed.file.tensors)
    for name, (start, length, note) in entries.items():
        wanted = encoded(values[name]) if values[name].ndim > 1 else bytes(mixed.file.tensor_bytes(name))
        assert raw[start : start + length] == wanted == bytes(target.file.tensor_bytes(name)), name
        assert note["type"] == (weights if values[name].ndim > 1 else "f32")
        assert note["source"] == mixed.file.header_sha256()


def test_irpa_holds_the_blocks_as_they_are(mixed: Model, tmp_path: Path) -> None:
    archive_of(mixed, tmp_path / "w.irpa", "irpa")
    raw = (tmp_path / "w.irpa").read_bytes()
    found = {name: raw[start : start + length] for name, (start, length, _) in read_archive(raw).items()}
    assert found == {name: bytes(mixed.file.tensor_bytes(name)) for name in mixed.file.tensors}


def test_the_parts_of_a_split_model_become_one_archive(mixed: Model, tmp_path: Path) -> None:
    first = split_model(mixed.file.path, tmp_path / "parts", 5)
    archive_of(mixed, tmp_path / "whole.irpa", "int8")
    parts = open_model(first)
    archive_of(parts, tmp_path / "parts.irpa", "int8")
    raws = [(tmp_path / name).read_bytes() for name in ("whole.irpa", "parts.irpa")]
    found = [{n: raw[start : start + length] for n, (start, length, _) in read_archive(raw).items()} for raw in raws]
    assert found[0] == found[1]
    (tmp_path / "metadata.gguf").write_bytes(parts.file.metadata_bytes())
    assert "split.count" in read_metadata(tmp_path / "metadata.gguf").metadata


def test_metadata_is_a_gguf_without_tensors(mixed: Model, tmp_path: Path) -> None:
    (tmp_path / "metadata.gguf").write_bytes(mixed.file.metadata_bytes())
    before, after = (gguf.GGUFReader(p) for p in (mixed.file.path, tmp_path / "metadata.gguf"))
    assert not after.tensors
    assert list(before.fields) == list(after.fields)
    assert all(before.fields[k].contents() == after.fields[k].contents() for k in before.fields if k[:4] != "GGUF")


def test_what_is_kept_keeps_its_bytes(mixed: Model, tmp_path: Path) -> None:
    target = archive_of(mixed, tmp_path / "w.irpa", "int8", ("token_embd.weight", HEADS))
    types = {name: info.type.name for name, info in target.file.tensors.items()}
    assert types["token_embd.weight"] == "q8_0"
    assert types["blk.0.attn_q.weight"] == "q4_0"
    assert types["blk.0.attn_k.weight"] == "int8"
    assert bytes(target.file.tensor_bytes("token_embd.weight")) == bytes(mixed.file.tensor_bytes("token_embd.weight"))


def test_rows_that_are_no_multiple_of_32_stay_as_they_are_in_int8(tmp_path: Path) -> None:
    model = open_model(tiny_model(tmp_path / "m.gguf", "llama", Sizes(layers=1, width=48, head_dim=16, ffn=64)))
    for weights, wanted in (("int8", "f32"), ("bf16", "bf16")):
        target = encode.begin(model, tmp_path / "w.irpa", weights)
        assert target.file.tensors["blk.0.attn_q.weight"].type.name == wanted


def test_rows_are_rounded_as_they_should_be() -> None:
    """Halves go to the even number; a row of zeros, and the least numbers that there are, divide by nothing."""
    rows = np.zeros((4, 32), np.float32)
    rows[0, :4] = 127, 0.5, 1.5, -2.5
    rows[2, :2] = 1e-45, -1e-45
    rows[3, :2] = 3.4e38, -3.4e38
    raw = encode._int8(rows)
    assert raw[0, :4].view("<f4") == 1
    assert raw[0, 4:8].view(np.int8).tolist() == [127, 0, 2, -2]
    assert not raw[1].any()
    scales = raw[:, :4].copy().view("<f4")
    assert np.abs(scales * raw[:, 4:].view(np.int8) - rows).max(1)[2] <= 1e-44
    assert raw[3, 4:6].view(np.int8).tolist() == [127, -127]


def test_every_float_of_sixteen_bits_and_its_neighbours_in_bf16() -> None:
    high = np.arange(65536, dtype=np.uint32) << 16
    values = np.stack([high + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    with np.errstate(all="ignore"):
        wanted = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    found = encode._bf16(values)
    numbers = ~np.isnan(values)
    assert np.array_equal(found[numbers], wanted[numbers])
    assert np.isnan(found[~numbers].view(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_numbers_that_int8_has_no_scale_for_are_refused(tmp_path: Path) -> None:
    sizes = Sizes(layers=1)
    weights = {"blk.0.ffn_up.weight": Weight((sizes.ffn, sizes.width), float("inf"))}
    model = open_model(tiny_model(tmp_path / "n.gguf", "gemma3", sizes, weights=weights))
    with pytest.raises(InputError, match=r"'blk.0.ffn_up.weight' has numbers that are not finite.*--keep blk.0.ffn_up"):
        archive_of(model, tmp_path / "w.irpa", "int8")
    archive_of(model, tmp_path / "w.irpa", "int8", ("blk.0.ffn_up.weight",))


@pytest.mark.parametrize(
    ("weights", "keep", "said"),
    [
        ("int9", (), "no encoding 'int9'.*did you mean 'int8'"),
        ("irpa", ("token_embd*",), "nothing to choose with --keep"),
        ("gguf", ("token_embd*",), "nothing to choose with --keep"),
        ("int8", ("token_embed.weight",), "no matrix is called 'token_embed.weight'; near: token_embd.weight"),
        ("int8", ("output_norm.weight",), "no matrix is called 'output_norm.weight'"),
    ],
)
def test_words_that_mean_nothing(weights: str, keep: tuple[str, ...], said: str, mixed: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        ggufc.export(mixed.file.path, tmp_path / "out", weights=weights, keep=keep)
    assert list(tmp_path.iterdir()) == []


GROWTH = """
import sys
from pathlib import Path
from ggufc.backends.bundles import encode
from ggufc.graph.model import open_model

def kilobytes(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

model = open_model(Path(sys.argv[1]))
target = encode.begin(model, Path(sys.argv[2]), "int8")
small = open_model(Path(sys.argv[3]))
encode.fill(small.file, encode.begin(small, Path(sys.argv[4]), "int8").file, 1)
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from now on
before = kilobytes("VmRSS")
encode.fill(model.file, target.file, 1)
print(kilobytes("VmHWM") - before)
"""
"""Prints by how many kilobytes a process grows at most while it encodes a model, once it has encoded a smaller one."""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system tells no peak of memory")
def test_memory_is_bounded_by_some_rows(tmp_path: Path) -> None:
    paths = []
    for name, ffn in (("large", 65536), ("small", 96)):
        paths += [tiny_gemma3(tmp_path / f"{name}.gguf", layers=1, ffn=ffn), tmp_path / f"{name}.irpa"]
    run = subprocess.run([sys.executable, "-c", GROWTH, *map(str, paths)], check=True, capture_output=True, text=True)
    assert int(run.stdout) << 10 < paths[0].stat().st_size / 2
    assert paths[0].stat().st_size > 50e6


def test_a_full_disk_leaves_nothing(mixed: Model, tmp_path: Path) -> None:
    """A limit on the size of files stands for it: writing past it fails in the same place, with another reason."""
    assert sum(v.nbytes for v in values_of(mixed.file.path).values()) > 1 << 16
    words = [sys.executable, "-m", "ggufc", "export", str(mixed.file.path), "-o", "out", "--weights", "f32"]
    command = f"ulimit -f 64; exec {shlex.join(words)}"
    run = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert run.stderr.count("\n") == 1
    assert "can't be written: File too large" in run.stderr
    assert list(tmp_path.iterdir()) == []
