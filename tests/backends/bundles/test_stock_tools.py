"""Bundles with an archive: all commands work on one, and IREE's own tools with the lines that export prints."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ggufc
import numpy as np
import pytest
from click.testing import CliRunner
from ggufc import InputError, UnsupportedError
from ggufc.backends.bundles.bundle import ARCHIVE, METADATA, Bundle, read_bundle
from ggufc.backends.bundles.manifest import sealed
from ggufc.backends.bundles.stock_tools import commands
from ggufc.backends.reports.llama_cpp import LlamaCpp
from ggufc.cli import main

from ...oracle import kl_divergence
from ...tiny_models import tiny_gemma3

IDS = [1, 1, 1, 1]
"""What the printed line feeds."""
KEPT = "*attn_v*"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stock") / "model.gguf"
    return tiny_gemma3(path, layers=2, sliding_window_pattern=2, types={"*attn_v*": "q8_0", "*ffn_down*": "q5_0"})


@pytest.fixture(scope="module")
def printed(model: Path) -> str:
    """What export prints for a bundle in int8, with one kind of matrix kept; the model itself is gone then."""
    words = ["export", str(model), "-o", str(model.with_name("a bundle")), "--weights", "int8", "--keep", KEPT]
    run = CliRunner().invoke(main, [*words, "--kv", "f32"])
    assert run.exit_code == 0, run.output
    model.unlink()
    return run.stdout


@pytest.fixture(scope="module")
def bundle(model: Path, printed: str) -> Bundle:
    return read_bundle(model.with_name("a bundle"))


def tool(line: str) -> list[str]:
    """The words of a line, with the tool of this environment."""
    name, *words = shlex.split(line)
    return [str(Path(sys.executable).with_name(name)), *words]


def test_a_bundle_holds_all_it_needs(bundle: Bundle) -> None:
    assert bundle.has_archive
    assert {ARCHIVE, METADATA} <= {p.name for p in bundle.path.iterdir()}
    assert not any(p.is_symlink() for p in bundle.path.iterdir())
    types = {name: tensor["type"] for name, tensor in bundle.manifest["tensors"].items()}
    assert (types["token_embd.weight"], types["blk.0.attn_v.weight"]) == ("int8", "q8_0")
    offsets = [place.offset for place in bundle.parameters.values()]
    assert not any(offset % 64 for offset in offsets)
    lengths = {name: tensor["nbytes"] for name, tensor in bundle.manifest["tensors"].items()}
    assert {name: place.nbytes for name, place in bundle.parameters.items()} == lengths


def test_every_backend_gives_the_logits_of_xla(bundle: Bundle) -> None:
    ids = np.random.default_rng(4).integers(0, bundle.manifest["vocabulary"], 12).tolist()

    def logits(backend: str, exact: bool = False) -> np.ndarray:
        session = ggufc.load(bundle.path, backend, threads=1, exact=exact)
        return np.stack([session.prefill(ids[:8]).copy(), *(session.decode(i).copy() for i in ids[8:])])

    wanted = logits("xla")
    assert np.abs(logits("native", exact=True) - wanted).max() < 1e-3
    for backend in ("iree", "native"):
        assert kl_divergence(wanted, logits(backend)).max() < 1e-4


def test_iree_run_module_gives_the_sessions_logits(bundle: Bundle) -> None:
    line = commands(bundle)["iree-run-module"]
    command = [*tool(line), "--output=@logits.npy", *["--output="] * len(bundle.caches)]
    subprocess.run(command, check=True, capture_output=True, cwd=bundle.path.parent)
    found = np.load(bundle.path.parent / "logits.npy")[0]
    assert np.array_equal(found, ggufc.load(bundle.path, threads=1).prefill(IDS))


def test_iree_benchmark_module_measures_a_step(bundle: Bundle) -> None:
    command = [*tool(commands(bundle)["iree-benchmark-module"]), "--benchmark_min_time=0.01s"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.search(r"BM_decode\S* +[\d.]+ ms", run.stdout)


def test_iree_dump_parameters_lists_the_tensors(bundle: Bundle) -> None:
    command = [*tool("iree-dump-parameters"), f"--parameters={bundle.path / ARCHIVE}"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = re.findall(r"^ *(\d+) \| +(\d+) \| +(\d+) \| `(.+)`$", run.stdout, re.MULTILINE)
    found = {name: (int(start), int(length)) for start, _, length, name in rows}
    assert found == {name: (t["offset"], t["nbytes"]) for name, t in bundle.manifest["tensors"].items()}


@pytest.mark.parametrize(
    ("words", "holds"),
    [
        (["verify"], lambda found: found["ok"]),
        (["inspect"], lambda found: found["tensors"]["types"]["int8"]["tensors"] == 13),
        (["run", "--prompt-ids", "2,5", "-n", "3"], lambda found: len(found["tokens"]) == 3),
        (["bench", "-p", "8", "-n", "4", "-r", "1"], lambda found: found["decode_tok_s"] > 0),
    ],
)
def test_the_commands(words: list[str], holds: Callable[[dict], bool], bundle: Bundle) -> None:
    run = CliRunner().invoke(main, [words[0], str(bundle.path), *words[1:], "--json"])
    assert run.exit_code == 0, run.output
    assert holds(json.loads(run.stdout))


def test_export_prints_the_lines(bundle: Bundle, printed: str) -> None:
    assert printed.splitlines()[-2:] == list(commands(bundle).values())


def test_llama_cpp_reads_no_archive(bundle: Bundle) -> None:
    with pytest.raises(UnsupportedError, match="an archive, which llama"):
        LlamaCpp(bundle.path / ARCHIVE, 1, 8)


@pytest.mark.parametrize("damage", ["gone", "cut", "header"])
def test_an_archive_that_is_not_the_exported_one_is_refused(damage: str, bundle: Bundle, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    raw = bytearray((copy / ARCHIVE).read_bytes())
    raw[40] ^= 1
    (copy / ARCHIVE).unlink()
    if damage != "gone":
        (copy / ARCHIVE).write_bytes(raw[:-1] if damage == "cut" else raw)
    with pytest.raises(InputError, match=rf"{ARCHIVE}: (not the file that was exported|No such file)"):
        ggufc.load(copy, threads=1)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("type", "int9", "no type 'int9'"),
        ("nbytes", 8, "damaged: .*the tensor lies at"),  # its parameter is longer
        ("shape", [3, 5], "damaged"),
        ("offset", 1 << 40, "damaged"),
        ("offset", -64, "damaged"),
        ("shape", [1 << 40, 64], "damaged"),
    ],
)
def test_a_wrong_table_is_refused(key: str, value: object, said: str, bundle: Bundle, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle.path, tmp_path / "copy"))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["tensors"]["token_embd.weight"][key] = value
    (copy / "manifest.json").write_text(json.dumps(sealed(manifest)) + "\n")
    with pytest.raises(ggufc.GgufcError, match=said):
        ggufc.load(copy, "native", threads=1)


def test_blocks_are_bytes(bundle: Bundle) -> None:
    cache = {"name": "k.0", "type": "q8_0", "shape": ["S8", 2, 64]}
    entries = {name: {**entry, "arguments": [cache]} for name, entry in bundle.manifest["entries"].items()}
    line = commands(replace(bundle, manifest={**bundle.manifest, "entries": entries}))["iree-run-module"]
    assert line.endswith(" --input=4x2x68xi8")


def test_a_gguf_has_no_line(bundle: Bundle) -> None:
    other = replace(bundle, manifest={**bundle.manifest, "encoding": "gguf"})
    with pytest.raises(InputError, match="--weights irpa"):
        commands(other)
