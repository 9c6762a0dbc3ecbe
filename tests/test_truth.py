"""How near the executors are to the truth, on the real model.

The truth is the file dequantized to float32 by gguf-py and run by llama.cpp with float32 KV and no flash attention. Two
engines on a quantized file never agree to the token, so llama.cpp's own distance from that reference is the yardstick.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc import Session

from .oracle import Reference, dequantized_copy, kl_divergence, margin
from .prompts import SHORT, documentation

pytestmark = pytest.mark.slow

WHOLE = bool(os.environ.get("GGUFC_WHOLE_TRUTH"))
"""Whether the slowest executor sees every prompt too, and everyone 48 tokens of each; it takes three minutes more."""
STEPS = 48 if WHOLE else 16


@dataclass(frozen=True)
class Case:
    """A prompt, the reference's greedy continuation, and its logits at each step."""

    name: str
    prompt: list[int]
    continuation: list[int]
    logits: np.ndarray


@dataclass(frozen=True)
class Distance:
    """Over all steps: mean KL from the reference, and its margins where the likeliest token is another."""

    mean_kl: float
    margins: list[float]


@pytest.fixture(scope="module")
def reference(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    copy = tmp_path_factory.mktemp("reference") / "f32.gguf"
    dequantized_copy(real_model, copy)
    with Reference(copy, n_ctx=6144) as judge:
        copy.unlink()  # it stays mapped
        yield judge


@pytest.fixture(scope="module")
def cases(reference: Reference) -> list[Case]:
    prompts = {name: reference.tokenize(text) for name, text in SHORT.items()}
    prompts["documentation"] = reference.tokenize(documentation(12_000))[:1500]
    return [Case(name, prompt, *reference.greedy(prompt, STEPS)) for name, prompt in prompts.items()]


@pytest.fixture(scope="module")
def far(reference: Reference) -> Case:
    """A prompt far longer than the window."""
    ids = reference.tokenize(documentation(40_000))[:4400]
    return Case("far", ids, *reference.greedy(ids, 16))


@pytest.fixture(scope="module")
def bundle(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "gemma"
    ggufc.export(real_model, path)
    return path


@pytest.fixture(scope="module")
def exact(real_model: Path) -> Session:
    return ggufc.load(real_model, backend="native", exact=True)


@pytest.fixture(scope="module", params=["iree", "native"])
def fast(request: pytest.FixtureRequest, real_model: Path, bundle: Path) -> Session:
    return ggufc.load(bundle if request.param == "iree" else real_model, backend=request.param)


def forced(session: Session, case: Case) -> np.ndarray:
    """The session's logits at each step of the reference's continuation, (STEPS, vocabulary)."""
    session.reset()
    rows = [session.prefill(case.prompt)]
    rows += [session.decode(token) for token in case.continuation[:-1]]
    return np.stack(rows)


def distance(cases: list[Case], runs: list[np.ndarray]) -> Distance:
    kl = [kl_divergence(case.logits, run) for case, run in zip(cases, runs, strict=True)]
    others = [
        float(m)
        for case, run in zip(cases, runs, strict=True)
        for m in margin(case.logits)[run.argmax(-1) != case.logits.argmax(-1)]
    ]
    return Distance(float(np.concatenate(kl).mean()), others)


def test_exact_arithmetic_gives_the_reference(exact: Session, cases: list[Case]) -> None:
    chosen = cases if WHOLE else cases[::3]  # a step takes a third of a second
    found = distance(chosen, [forced(exact, case) for case in chosen])
    assert found.mean_kl < 1e-5
    assert max(found.margins, default=0) < 0.02


@pytest.fixture(scope="module")
def theirs(cases: list[Case], real_model: Path) -> Distance:
    """What llama.cpp makes of the quantized file."""
    with Reference(real_model, kv="f16", flash_attention=True, n_ctx=2048) as llama:
        return distance(cases, [llama.forced(case.prompt, case.continuation) for case in cases])


def test_fast_kernels_are_ten_times_nearer_than_llama_cpp(fast: Session, cases: list[Case], theirs: Distance) -> None:
    ours = distance(cases, [forced(fast, case) for case in cases])
    assert ours.mean_kl < theirs.mean_kl / 10
    assert len(ours.margins) <= 3
    assert max(ours.margins, default=0) < 0.05


def test_prompts_of_eight_bits_are_nearer_than_llama_cpp(
    real_model: Path, cases: list[Case], theirs: Distance, tmp_path: Path
) -> None:
    ggufc.export(real_model, tmp_path / "gemma", activations=8)
    session = ggufc.load(tmp_path / "gemma")
    ours = distance(cases, [forced(session, case) for case in cases])
    assert ours.mean_kl < theirs.mean_kl / 5


def test_the_compiled_module_and_the_native_kernels_say_the_same(real_model: Path, bundle: Path) -> None:
    """Free running, each executor fed with its own tokens."""
    text = "The lighthouse keeper climbed the stairs every evening and"
    said = [
        list(session.generate_ids(session.tokenizer.encode(text), max_tokens=48, stop=()))
        for session in (ggufc.load(bundle), ggufc.load(real_model, backend="native"))
    ]
    assert said[0] == said[1]


def test_exact_arithmetic_agrees_with_xla(exact: Session, real_model: Path, cases: list[Case]) -> None:
    xla = ggufc.load(real_model, backend="xla", kv="f32")
    for session in (exact, xla):
        session.reset()
    prompt = cases[0].prompt
    np.testing.assert_allclose(exact.prefill(prompt), xla.prefill(prompt), rtol=0, atol=1e-3)
    np.testing.assert_allclose(exact.decode(529), xla.decode(529), rtol=0, atol=1e-3)


def chunked(session: Session, ids: list[int], size: int) -> np.ndarray:
    """The logits after `ids` were fed in chunks; a chunk of one goes through decode."""
    session.reset()
    logits = np.empty(0)
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        logits = session.decode(part[0]) if size == 1 else session.prefill(part)
    return logits


@pytest.mark.parametrize("size", [1, 7, 64])
def test_in_chunks_exact_arithmetic_gives_the_same(exact: Session, cases: list[Case], size: int) -> None:
    ids = cases[-1].prompt[:80]
    np.testing.assert_allclose(chunked(exact, ids, size), chunked(exact, ids, len(ids)), rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_prompt_may_be_fed_in_chunks(fast: Session, cases: list[Case], size: int) -> None:
    ids = cases[-1].prompt[:150]
    whole, parts = chunked(fast, ids, 150), chunked(fast, ids, size)
    assert kl_divergence(whole, parts) < 1e-4
    assert whole.argmax() == parts.argmax() or margin(whole) < 0.1


def test_reset_and_rewind_leave_no_trace(fast: Session, cases: list[Case]) -> None:
    ids = cases[0].prompt
    fast.reset()
    first = [fast.prefill(ids), fast.decode(5)]
    fast.prefill(cases[-1].prompt)
    fast.reset()
    np.testing.assert_array_equal([fast.prefill(ids), fast.decode(5)], first)
    fast.decode(7)
    fast.rewind(2)
    np.testing.assert_array_equal(fast.decode(5), first[1])


def test_far_past_the_window_the_nearness_stays(fast: Session, far: Case) -> None:
    found = distance([far], [forced(fast, far)])
    assert found.mean_kl < 1e-4
    assert max(found.margins, default=0) < 0.05
