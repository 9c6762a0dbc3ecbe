"""What decoding a token reads: counted, and as the kernel of the operating system saw it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ggufc.backends.reports.bench.speed import bench
from ggufc.backends.reports.costs import decode_bytes, weight_bytes
from ggufc.backends.reports.inspect import describe
from ggufc.graph.model import Model, open_model

from ...tiny_models import Sizes, tiny_model

LAYERS, EXPERTS, USED = 1, 8, 3


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen3moe whose experts are most of the file, of 512 KiB each."""
    path = tmp_path_factory.mktemp("models") / "qwen3moe.gguf"
    return tiny_model(path, "qwen3moe", Sizes(layers=LAYERS, width=4096), mixture=EXPERTS)


def sizes_of(model: Model, part: str) -> list[int]:
    """Bytes of the tensors with `part` in their names."""
    return [t.nbytes for name, t in model.file.tensors.items() if part in name]


def test_a_token_reads_its_own_experts_alone(mixture: Path) -> None:
    model = open_model(mixture)
    experts = sizes_of(model, "_exps")
    assert len(experts) == 3 * LAYERS and len(set(experts)) == 1
    (embedding,) = sizes_of(model, "token_embd")
    rest = sum(sizes_of(model, "")) - sum(experts) - embedding
    row = embedding // model.vocabulary
    assert weight_bytes(model) == sum(experts) * USED // EXPERTS + row + rest
    assert describe(model, "f32")["decode_bytes"]["weights"] == weight_bytes(model)


def test_a_tied_head_reads_the_whole_table(tmp_path: Path) -> None:
    model = open_model(tiny_model(tmp_path / "tied.gguf", "qwen3moe", Sizes(layers=1), tied=True))
    experts = sum(sizes_of(model, "_exps"))
    assert weight_bytes(model) == sum(sizes_of(model, "")) - experts * (EXPERTS - USED) // EXPERTS


@pytest.mark.slow
def test_bench_counts_the_same(mixture: Path) -> None:
    model = open_model(mixture)
    report = bench(mixture, prompts=[4], tokens=[2], threads=[1], backend="native", rounds=1)
    assert report["decode_bytes"] == decode_bytes(model, "f32", 5) == weight_bytes(model) + 5 * 2 * 2 * 32 * 4
    assert report["decode_gb_s"] == pytest.approx(report["decode_tok_s"] * report["decode_bytes"] / 1e9)


MAPPED = """\
import re, sys
from pathlib import Path
import ggufc

session = ggufc.load(sys.argv[1], backend=sys.argv[2], threads=1)
session.decode(9)
maps = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
print(max(int(re.search(r"Rss: +(\\d+)", m)[1]) << 10 for m in maps if sys.argv[1] in m))
"""


@pytest.fixture
def in_memory(mixture: Path) -> Iterator[Path]:
    """The model in a file system that maps single pages: others map all of what they read at once, up to 2 MiB."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and Path("/proc/self/smaps").exists()):
        pytest.skip("this system doesn't tell which pages of a file a process has read")
    with TemporaryDirectory(dir=memory) as folder:
        yield Path(shutil.copy(mixture, folder))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "iree"])
def test_no_other_page_of_the_file_is_read(
    backend: str, in_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = open_model(in_memory)
    command = [sys.executable, "-c", MAPPED, str(in_memory), backend]
    mapped = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    reads = len(model.file.tensors) + 3 * LAYERS * USED
    edges = 65536 * (reads + 1)  # Linux maps the aligned 64 KiB around a page that is read; 1: the file's header
    assert weight_bytes(model) <= mapped <= weight_bytes(model) + edges < model.file.size * 3 // 4
