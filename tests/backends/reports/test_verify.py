"""What verify makes of llama.cpp, its judge: opened as it must be, and told of where it can't be run."""

import json
from collections.abc import Mapping
from pathlib import Path

import ggufc
import numpy as np
import pytest
from click.testing import CliRunner, Result
from ggufc.backends.reports import verify as verification
from ggufc.backends.reports.agreement import EXACT, JUDGE, EmbeddingRow, Row, compare, compare_embeddings
from ggufc.backends.reports.bench.speed import bench
from ggufc.backends.reports.llama_cpp import LlamaCpp
from ggufc.backends.reports.verify import LLAMA_CPP, Verdict, context_as_chosen
from ggufc.cli import main
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.graph.model import open_model

from ...test_user_architectures import write_swan
from ...tiny_models import Sizes, Weight, tiny_gemma3, tiny_model
from ...tiny_models.variants import DECODERS, ENCODERS

IDS = [2, *range(40, 60)]


@pytest.mark.parametrize("name", ["phi3", "phi3-short", "llama-longrope", "llama-longrope-short", "gemma3"])
def test_llama_cpp_takes_the_factors_that_the_definition_takes(name: str, tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp's package is not installed")
    path = DECODERS[name].write(tmp_path / "model.gguf")
    engine = LlamaCpp(path, 1, context_as_chosen(open_model(path), len(IDS)))
    reference = ggufc.load(path, "native", threads=1, exact=True)
    assert compare(LLAMA_CPP, "native", engine.prefill(IDS)[None], reference.prefill(IDS)[None], JUDGE).ok
    engine.close()


def test_the_context_is_no_longer_than_the_choice_needs(tmp_path: Path) -> None:
    trained, positions = 256, 35
    for name, wanted in (("phi3", trained + 1), ("phi3-short", positions), ("phi3-plain", positions)):
        assert context_as_chosen(open_model(DECODERS[name].write(tmp_path / f"{name}.gguf")), positions) == wanted


def test_caches_that_find_no_room_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(DECODERS["phi3"].write(tmp_path / "model.gguf"))
    monkeypatch.setattr(verification, "free_memory", lambda: 1 << 10)
    with pytest.raises(UnsupportedError, match=r"caches of 257 tokens.* GB are free"):
        verification._llama_cpp(model, 1, 35)


def test_llama_cpp_says_why_it_does_not_load_a_file(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="llama.cpp's package is not installed")
    for _ in range(2):  # the log of one file is not told of the next
        with pytest.raises(InputError, match=r"doesn't load it: unknown model architecture: 'swan'$"):
            LlamaCpp(write_swan(tmp_path / "swan.gguf"), 1, 64)
        (tmp_path / "no.gguf").write_bytes(b"x" * 99)
        with pytest.raises(InputError, match="doesn't load it: invalid magic"):
            LlamaCpp(tmp_path / "no.gguf", 1, 64)


@pytest.mark.parametrize(
    ("ok", "missing", "code"), [(True, {}, 0), (True, {LLAMA_CPP: "no\nway"}, 3), (False, {LLAMA_CPP: "no\nway"}, 1)]
)
def test_the_table_is_printed_without_llama_cpp_too(
    ok: bool, missing: Mapping[str, str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("iree", "native exact", 0.1, 1e-6, 1.0, 0.0, 48, "random ids", ok, "rounding")
    monkeypatch.setattr(verification, "verify", lambda *_, **__: Verdict((row,), missing))

    def verify(*words: str) -> Result:
        return CliRunner().invoke(main, ["verify", "model.gguf", "--against", "llama.cpp", *words])

    done = verify()
    assert done.exit_code == code
    assert done.stdout.splitlines()[1].startswith("iree")
    assert done.stdout.splitlines()[2:] == ["llama.cpp is not available: no\\nway"] * bool(missing)
    found = json.loads(verify("--json").stdout)
    assert (found["ok"], found["rows"][0]["fed"], found["not_available"]) == (ok, "random ids", missing)


def test_embeddings_are_printed_by_their_angle(monkeypatch: pytest.MonkeyPatch) -> None:
    row = EmbeddingRow("iree", "native", 0.25, 0.75, 0.5, 4, "text", False, "rounding", worst_text=2)
    monkeypatch.setattr(verification, "verify", lambda *_, **__: Verdict((row,), {}))
    done = CliRunner().invoke(main, ["verify", "model.gguf"])
    assert done.exit_code == 1
    head, line = done.stdout.splitlines()
    assert head.split()[3] == "cosine"
    assert line.split()[2:7] == ["2.5e-01", "0.750000", "5.0e-01", "text", "3"]


def reranker(path: Path) -> Path:
    shapes = {"cls.weight": (64, 64), "cls.output.weight": (1, 64), "cls.output.bias": (1,)}
    weights = {name: Weight(shape, 0.3, 0.1) for name, shape in shapes.items()}
    return tiny_model(path, "bert", Sizes(head_dim=16), metadata={"pooling_type": 4}, weights=weights)


WRITERS = {name: ENCODERS[name].write for name in ("bert", "bert-none", "qwen3-last")} | {"a reranker": reranker}


@pytest.mark.parametrize("name", WRITERS)
def test_llama_cpp_gives_what_a_model_gives(name: str, tmp_path: Path) -> None:
    """Embeddings, pooled or not; logits beside them; a reranker's scores."""
    pytest.importorskip("xllamacpp", reason="llama.cpp's package is not installed")
    model = open_model(WRITERS[name](tmp_path / "model.gguf"))
    prompts, continuations = [IDS, IDS[::-1]], []
    wanted = verification._everything(ggufc.load(model.file.path, "native", exact=True), model, prompts, continuations)
    found = verification._everything(verification._llama_cpp(model, 1, 40), model, prompts, continuations)
    rows = verification._compared(LLAMA_CPP, "native", found, wanted, JUDGE, prompts, "text")
    kinds = [Row, EmbeddingRow] if name == "qwen3-last" else [EmbeddingRow]
    assert [type(row) for row in rows] == kinds and all(row.ok for row in rows)


@pytest.mark.slow
def test_every_executor_of_an_encoder_is_compared(tmp_path: Path) -> None:
    bundle = ggufc.export(reranker(tmp_path / "model.gguf"), tmp_path / "bundle")
    verdict = verification.verify(bundle.path, threads=1, layers=True)
    assert verdict.ok and len(verdict.checks) > 4
    assert [row.executor for row in verdict.rows] == ["native", "iree", "iree", "xla"]
    assert {row.first_layer for row in verdict.rows} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("exported", ["f16", "q8_0", None])
def test_caches_that_are_rounded_are_no_fault(
    exported: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quantized model's caches are rounded by default, the reference's are not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = DECODERS["qwen3"].write(tmp_path / "model.gguf", types={"*": "q8_0"}, large=True)
    if exported:
        model = ggufc.export(model, tmp_path / "bundle", kv=exported).path
    rows = verification.verify(model, threads=1).rows
    assert all(row.ok for row in rows), rows


@pytest.mark.slow
def test_a_model_trained_further_runs_on_the_code_that_was_compiled_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same header, other weights: one entry of the cache serves both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before, after = (tiny_gemma3(tmp_path / f"{seed}.gguf", layers=1, seed=seed) for seed in (1, 2))
    wanted = ggufc.load(after, "native", threads=1).prefill(IDS)
    assert np.abs(ggufc.load(before, threads=1).prefill(IDS) - wanted).max() > 0.1
    assert verification.verify(after, threads=1).ok
    assert bench(after, threads=[1], prompts=[4], tokens=[4], rounds=1)["decode_tok_s"] > 0
    assert len(list((tmp_path / "cache" / "ggufc").glob("*/manifest.json"))) == 1


@pytest.mark.slow
def test_the_other_executors_are_compared_where_llama_cpp_does_not_load_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ...test_user_architectures import SWAN, directory

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, archdefs = write_swan(tmp_path / "swan.gguf"), directory(tmp_path / "archdefs", SWAN)
    verdict = verification.verify(model, llama_cpp=True, archdefs=[archdefs])
    assert len(verdict.rows) == 4 and all(row.ok for row in verdict.rows)
    assert "unknown model architecture" in verdict.not_available[LLAMA_CPP]


def test_the_worst_position_is_named() -> None:
    reference = np.zeros((6, 4), np.float32)
    logits = reference.copy()
    logits[2, 1], logits[4, 3] = 0.1, 0.2
    row = compare("iree", "native", logits, reference, JUDGE, per_text=3)
    assert (row.worst_text, row.worst_position) == (1, 1)
    assert row.worst_kl > row.mean_kl > 0


def test_embeddings_are_judged_by_the_worst() -> None:
    reference = np.eye(4, dtype=np.float32)
    found = reference.copy()
    found[2] *= 1.00005
    row = compare_embeddings("iree", "native", found, reference, EXACT, texts=2)
    assert row.ok and (row.worst_text, row.embeddings) == (1, 4)
    assert row.cosine > 0.9999
    found[1, 1] = np.nan
    assert not compare_embeddings("iree", "native", found, reference, EXACT).ok
