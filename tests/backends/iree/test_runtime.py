"""The compiled module at work: as near to XLA as arithmetic allows, and on the file's own bytes."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc.backends.iree.runtime import IreeExecutor
from ggufc.backends.sessions import rings
from ggufc.frontend.errors import InputError

from ...oracle import kl_divergence
from ..conftest import TinyCase

IDS = [2, *range(265, 305), 17, 40, 5, *range(280, 300)]


@pytest.fixture
def short_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of at most 16 tokens, so that the rings of the window of 8 have 24 rows and go round more than once."""
    monkeypatch.setattr(rings, "CHUNK", 16)
    monkeypatch.setattr(rings, "FIRST_ROWS", 64)


BOTH = ["tiny_f32", pytest.param("tiny_quantized", marks=pytest.mark.slow)]
TOLERANCE = {"tiny_f32": 1e-4, "tiny_quantized": 2e-2}
"""Kernels of quantized types round their activations to 15 bits; everything else is the same arithmetic."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_logits_are_near_those_of_xla(name: str, request: pytest.FixtureRequest, short_rings: None) -> None:
    case: TinyCase = request.getfixturevalue(name)
    session, judge = case.session("iree"), case.session("xla")
    found = [session.prefill(IDS[:40]), *(session.decode(token) for token in IDS[40:])]
    wanted = [judge.prefill(IDS[:40]), *(judge.decode(token) for token in IDS[40:])]
    assert np.abs(np.stack(found) - np.stack(wanted)).max() < TOLERANCE[name]
    assert kl_divergence(np.stack(wanted), np.stack(found)).max() < 1e-5


@pytest.mark.parametrize("name", BOTH)
def test_the_way_tokens_are_fed_changes_nothing(name: str, request: pytest.FixtureRequest, short_rings: None) -> None:
    case: TinyCase = request.getfixturevalue(name)
    whole = case.session("iree").prefill(IDS)
    session = case.session("iree")
    chunked = [session.prefill(IDS[start:end]) for start, end in pairwise([0, 1, 3, 14, 30, 47, 64])]
    session = case.session("iree")
    decoded = [session.decode(token) for token in IDS]
    np.testing.assert_allclose(chunked[-1], whole, atol=TOLERANCE[name])
    np.testing.assert_allclose(decoded[-1], whole, atol=TOLERANCE[name])


def test_caches_grow_without_forgetting(tiny_f32: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny_f32.session("iree").prefill(IDS)
    monkeypatch.setattr(rings, "FIRST_ROWS", 4)
    session = tiny_f32.session("iree")
    decoded = [session.decode(token) for token in IDS]
    np.testing.assert_allclose(decoded[-1], whole, atol=1e-4)


def test_a_call_leaves_earlier_logits_alone(tiny_f32: TinyCase) -> None:
    session = tiny_f32.session("iree")
    first = session.prefill(IDS[:5])
    kept = first.copy()
    session.decode(7)
    np.testing.assert_array_equal(first, kept)


def executor(case: TinyCase, vmfb: Path, weights: Path) -> IreeExecutor:
    return IreeExecutor(vmfb, [weights], case.bundle.parameters, case.bundle.caches, tuple(case.graphs), 1)


def test_a_file_that_is_too_short_is_refused(tiny_f32: TinyCase, tmp_path: Path) -> None:
    short = tmp_path / "short.gguf"
    short.write_bytes(tiny_f32.path.read_bytes()[:-100])
    (target,) = tiny_f32.bundle.manifest["targets"].values()
    for weights, message in ((short, "ends at byte"), (tmp_path / "none", "can't be mapped"), (tmp_path, "can't be")):
        with pytest.raises(InputError, match=message):
            executor(tiny_f32, tiny_f32.bundle.file(target["file"]), weights)


MEASURE = """
import re, sys
from pathlib import Path
import ggufc

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1)) * 1024

session = ggufc.load(sys.argv[1], threads=1)
before = anonymous()
session.prefill(list(range(2, 18)))
session.decode(5)
print(before, anonymous())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read RssAnon from")
def test_weights_are_mapped_not_copied(real_model: Path, tmp_path: Path) -> None:
    """RssAnon counts what a process holds beside its mapped files: caches and activations, and no weights."""
    ggufc.export(real_model, tmp_path / "gemma")
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "gemma")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after - before < 64 << 20
    assert after < 160 << 20 < real_model.stat().st_size
