"""The judge judged: Reference against llama.cpp's own server, dequantized copies, and every tiny model loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader

from .oracle import Reference, dequantized_copy, kl_divergence, log_softmax, margin, server, speed
from .tiny_models import TOKENS, tiny_gemma3, tiny_llama

PROMPT = [2, *range(70, 110)]  # longer than the window of the tiny models
# Rows of 256 hold whole blocks of every type.
WIDE: dict[str, Any] = {"width": 256, "ffn": 256, "heads": 8, "layers": 3, "sliding_window_pattern": 2}
TYPES = ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
TYPES += ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs"]


def test_the_server_gives_the_same_log_probabilities(tiny_gemma3_path: Path) -> None:
    """The two ways into llama.cpp agree, so the structures of oracle.py are laid out as this build's."""
    complete = server(tiny_gemma3_path, threads=2, n_ctx=256)
    request = {"prompt": PROMPT, "max_tokens": 1, "logprobs": len(TOKENS), "logit_bias": [[TOKENS.index("a"), 1e6]]}
    answer = complete(request)["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    with Reference(tiny_gemma3_path, kv="f16", flash_attention=True, n_ctx=256) as reference:
        ids, logprobs = reference.logprobs(PROMPT)
    ours = dict(zip(ids.tolist(), logprobs, strict=True))
    assert {row["id"] for row in answer} == set(ours)
    assert max(abs(row["logprob"] - ours[row["id"]]) for row in answer) < 1e-3


def test_one_batch_and_token_by_token_agree(tiny_gemma3_path: Path) -> None:
    with Reference(tiny_gemma3_path, n_ctx=256) as reference:
        tokens, logits = reference.greedy(PROMPT, 12)
        assert tokens == logits.argmax(-1).tolist()
        np.testing.assert_array_equal(reference.forced(PROMPT, tokens), logits)
        np.testing.assert_allclose(reference.logits(PROMPT + tokens[:-1], last=12), logits, atol=2e-2)
        with pytest.raises(ValueError, match="do not fit"):
            reference.logits([2] * 257)


def test_the_window_of_a_tiny_model_is_seen(tmp_path: Path) -> None:
    """A tiny model must tell right from wrong: without its window, or with another, its logits are others."""
    rows = []
    for window in (8, 9, None):
        with Reference(tiny_gemma3(tmp_path / f"{window}.gguf", window=window), n_ctx=256) as reference:
            rows.append(reference.logits(PROMPT))
    assert min(kl_divergence(rows[0], rows[1])[0], kl_divergence(rows[0], rows[2])[0]) > 1e-3


VARIANTS: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "linear rope scaling": (tiny_gemma3, {"rope_scaling": 8.0}),
    "soft-cap": (tiny_gemma3, {"softcap": 5.0}),
    "untied head": (tiny_gemma3, {"tied": False}),
    "one kv head, every second layer global": (tiny_gemma3, {"kv_heads": 1, "layers": 4, "sliding_window_pattern": 2}),
    "llama": (tiny_llama, {"kv_heads": 1}),
    "mixed types": (tiny_gemma3, WIDE | {"types": {"*ffn_down*": "q6_k", "*attn_output*": "q4_k", "*": "q5_0"}}),
    **{kind: (tiny_gemma3, WIDE | {"types": kind}) for kind in TYPES},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp_runs_every_variant(variant: str, tmp_path: Path) -> None:
    """It loads, its logits spread as a trained model's do, and quantization moves them by little."""
    write, options = VARIANTS[variant]
    path = write(tmp_path / "model.gguf", **options)
    dequantized_copy(path, tmp_path / "exact.gguf")
    with Reference(path, n_ctx=256) as reference, Reference(tmp_path / "exact.gguf", n_ctx=256) as exact:
        logits, wanted = reference.logits(PROMPT, last=30), exact.logits(PROMPT, last=30)
    assert np.isfinite(logits).all()
    assert 1 < logits.std() < 5
    assert np.median(margin(logits)) < 3
    assert kl_divergence(wanted, logits).mean() < (3e-2 if "types" in options else 1e-12)


def test_a_row_is_whole_blocks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a row of 64 is not a whole number of Q4_K blocks of 256"):
        tiny_gemma3(tmp_path / "model.gguf", types="q4_k")


def test_a_dequantized_copy_keeps_all_else(tmp_path: Path) -> None:
    path = tiny_gemma3(tmp_path / "model.gguf", **WIDE, types="q8_0")
    dequantized_copy(path, tmp_path / "exact.gguf")
    before, after = GGUFReader(path), GGUFReader(tmp_path / "exact.gguf")
    assert {tensor.tensor_type for tensor in after.tensors} == {GGMLQuantizationType.F32}
    assert [tensor.name for tensor in after.tensors] == [tensor.name for tensor in before.tensors]
    keys = [key for key in before.fields if not key.startswith("GGUF.")]
    assert [after.fields[key].contents() for key in keys] == [before.fields[key].contents() for key in keys]


def test_tokens_and_text(tiny_gemma3_path: Path) -> None:
    with Reference(tiny_gemma3_path) as reference:
        ids = reference.tokenize("<bos>the an\x07")
        assert [TOKENS[i] for i in ids] == ["<bos>", "<bos>", "t", "he", "▁an", "<0x07>"]
        assert b"".join(map(reference.piece, ids)) == b"the an\x07"
        assert reference.piece(2, special=True) == b"<bos>"
        assert {TOKENS[i] for i in reference.eog_ids()} == {"<eos>", "<end_of_turn>"}


def test_embeddings(tiny_gemma3_path: Path) -> None:
    with Reference(tiny_gemma3_path, pooling="none") as each, Reference(tiny_gemma3_path, pooling="mean") as pooled:
        tokens = each.embeddings(PROMPT)
        assert tokens.shape == (len(PROMPT), 64)
        np.testing.assert_allclose(pooled.embeddings(PROMPT), tokens.mean(0), atol=1e-2)


def test_log_softmax_and_divergence() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], np.float32)) + 7
    np.testing.assert_allclose(np.exp(log_softmax(logits)).sum(-1), 1, rtol=1e-6)
    np.testing.assert_allclose(margin(logits), np.log([2, 8]), rtol=1e-5)
    expected = 0.5 * np.log(0.5 / 0.8) + 2 * 0.25 * np.log(0.25 / 0.1)
    np.testing.assert_allclose(kl_divergence(logits[:1], logits[1:]), expected, rtol=1e-5)


def test_refusals_are_raised(tmp_path: Path) -> None:
    (tmp_path / "not.gguf").write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match="does not load"):
        Reference(tmp_path / "not.gguf")


@pytest.mark.slow
def test_the_real_model_and_its_speed(real_model: Path) -> None:
    with Reference(real_model) as reference:
        tokens, _ = reference.greedy(reference.tokenize("The capital of France is"), 4)
        assert b"".join(map(reference.piece, tokens)) == b" the capital of the"
    measured = speed(real_model, 64, 8, repeats=1)
    assert measured.prefill_tok_s > measured.decode_tok_s > 1
