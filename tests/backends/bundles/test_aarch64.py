"""Bundles on an emulated AArch64 machine: the code that suits its processor gives this machine's tokens."""

import json
from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc.backends.sessions.session import Session

from ...aarch64 import Emulator, aarch64
from ...oracle import kl_divergence
from ...tiny_models import tiny_gemma3
from ..conftest import QUANTIZED

__all__ = ["aarch64"]
pytestmark = pytest.mark.slow
PROGRAM = """
import json, sys
import ggufc
bundle, prompt, fed, logits = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
import numpy as np
session = ggufc.load(bundle, threads=1)
rows = [session.prefill(prompt).copy(), *(session.decode(i).copy() for i in fed)]
greedy = [int(rows[-1].argmax())]
while len(greedy) < int(sys.argv[5]):
    greedy.append(session.decode_greedy(greedy[-1]))
np.save(logits, np.stack(rows))
print(json.dumps([session.facts.target, greedy]))
"""
"""Feeds a prompt, then tokens one by one, and goes on greedily."""


def here(bundle: Path, prompt: list[int], fed: list[int], count: int) -> tuple[np.ndarray, list[int]]:
    """What the program finds, on this machine."""
    session: Session = ggufc.load(bundle, threads=1)
    rows = [session.prefill(prompt).copy(), *(session.decode(i).copy() for i in fed)]
    greedy = [int(rows[-1].argmax())]
    while len(greedy) < count:
        greedy.append(session.decode_greedy(greedy[-1]))
    return np.stack(rows), greedy


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every usual type of weights in a tiny model, for this machine and three of the other kind."""
    folder = tmp_path_factory.mktemp("bundle")
    path = folder / "model.gguf"
    tiny_gemma3(path, layers=2, width=256, head_dim=64, ffn=512, sliding_window_pattern=2, types=QUANTIZED)
    targets = ["host", "aarch64", "aarch64-dotprod", "aarch64-linux-gnu:+dotprod,+i8mm"]
    ggufc.export(path, folder / "bundle", targets=targets)
    return folder / "bundle"


@pytest.mark.parametrize(
    ("cpu", "target"), [("cortex-a72", "aarch64"), ("neoverse-n1", "aarch64-dotprod"), ("max", "aarch64-i8mm")]
)
def test_the_best_code_of_each_processor_gives_the_tokens_of_this_machine(
    cpu: str, target: str, bundle: Path, aarch64: Emulator, tmp_path: Path
) -> None:
    prompt, fed = ([int(i) for i in np.random.default_rng(n).integers(0, 300, 11)] for n in range(2))
    wanted, tokens = here(bundle, prompt, fed, 24)
    arguments = (str(bundle), json.dumps(prompt), json.dumps(fed), str(tmp_path / "logits.npy"), "24")
    assert json.loads(aarch64.python(PROGRAM, *arguments, cpu=cpu)) == [target, tokens]
    found = np.load(tmp_path / "logits.npy")
    assert (found.argmax(1) == wanted.argmax(1)).all()
    assert kl_divergence(wanted, found).max() < 1e-6
