"""Faults that other programs had in what models mean: window edges, tied heads, routers, pooling.

Each case is a folder with its models and llama.cpp's values for them (F32 cache, no flash attention).
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import numpy.typing as npt
import pytest
from ggufc.backends.jax.module import portable_module
from ggufc.graph.model import open_model
from ggufc.passes.pipeline import entry_graphs

Floats = npt.NDArray[np.float32]

ROOT = Path(__file__).parents[2] / "shared" / "cases"
WINDOW, TIED, ROUTER, POOLING = (
    ROOT / name
    for name in ("14-sliding-window-boundary", "16-tied-output-matrix", "19-moe-router-edges", "21-embedding-pooling")
)
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason=f"no shared cases at {ROOT}")

AGREE = 2e-3
"""What the cases ask of logits."""
TABLE = 1e-2
"""The same where llama.cpp's float16 GELU is in them."""


def names(folder: Path) -> list[str]:
    """What a case has values for."""
    return list(expected(folder)) if folder.is_dir() else []


@cache
def expected(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expect.json").read_text("utf-8"))["cases"]


@cache
def logits_of(folder: Path) -> dict[str, Floats]:
    with np.load(folder / "expect.npz") as arrays:
        return dict(arrays)


@cache
def session(path: Path, exact: bool = True) -> ggufc.Session:
    return ggufc.load(path, backend="native", exact=exact)


def fed(model: ggufc.Session, ids: list[int], chunks: list[int]) -> Floats:
    """The logits after the last of the chunks, which take the first of the ids; a chunk of one is a decode."""
    model.reset()
    logits = np.empty(0, np.float32)
    for size in chunks:
        part = ids[model.position : model.position + size]
        logits = model.decode(part[0]) if size == 1 else model.prefill(part)
    return logits.copy()


both = pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])


# 14: a window of four tokens includes the current one


@both
@pytest.mark.parametrize("name", names(WINDOW))
def test_window_values(name: str, exact: bool) -> None:
    """In one piece, token by token, and in chunks across the edge."""
    model = session(WINDOW / "input" / f"{name.rpartition('-')[0]}.gguf", exact)
    ids, wanted = expected(WINDOW)[name]["ids"], logits_of(WINDOW)[name]
    ways = ([len(ids)], [1] * len(ids), [3, 1, 1], [4, 1], [2, 5], [5, 4], [8, 1])
    for chunks in ways:
        if sum(chunks) <= len(ids):
            assert np.abs(fed(model, ids, chunks) - wanted[sum(chunks) - 1]).max() < TABLE, chunks


@both
@pytest.mark.parametrize("length", [4, 5, 8, 9])
def test_prompts_at_multiples_of_the_window(length: int, exact: bool) -> None:
    """W, W + 1, 2 W and 2 W + 1 tokens at once, then decoding."""
    model = session(WINDOW / "input" / "swa4-l3.gguf", exact)
    ids, wanted = expected(WINDOW)["swa4-l3-T16"]["ids"], logits_of(WINDOW)["swa4-l3-T16"]
    for more in range(7):
        assert np.abs(fed(model, ids, [length] + [1] * more) - wanted[length + more - 1]).max() < TABLE


@both
@pytest.mark.parametrize("decode", [False, True], ids=["prefill", "decode"])
def test_the_first_token_is_seen_by_four(decode: bool, exact: bool) -> None:
    """A single local layer: another token 0 changes position 3, and not a bit of position 4."""
    model = session(WINDOW / "input" / "swa4.gguf", exact)
    ids = expected(WINDOW)["swa4-T16"]["ids"]
    for length, same in ((4, False), (5, True)):
        chunks = [1] * length if decode else [length]
        before, after = fed(model, ids, chunks), fed(model, [ids[1], *ids[1:]], chunks)
        assert np.array_equal(before, after) is same


# 16: without output.weight the head is the embedding table


@both
@pytest.mark.parametrize("name", names(TIED))
def test_tied_and_untied_heads(name: str, exact: bool) -> None:
    model = session(TIED / "input" / f"{name}.gguf", exact)
    ids, wanted = expected(TIED)[name]["ids"], logits_of(TIED)[name]
    # llama.cpp rounds activations to eight bits where weights are quantized, and so do the fast kernels
    bound = 0.5 if name.endswith("q8") else AGREE
    for n in (1, len(ids)):
        assert np.abs(fed(model, ids, [n]) - wanted[n - 1]).max() < bound


@pytest.mark.slow
@pytest.mark.parametrize("name", names(TIED))
def test_a_table_is_stored_once(name: str) -> None:
    """One symbol of the module stands for the table in both entry points and both uses, quantized or not."""
    module = portable_module(entry_graphs(open_model(TIED / "input" / f"{name}.gguf"), "f32").values())
    assert module.count("func.func private @token_embd.weight()") == 1
    assert ("output.weight" in module.replace("attn_output.weight", "")) is name.endswith("untied")


# 19: a router of degenerate sizes, with ties, and with experts that nobody chooses


@both
@pytest.mark.parametrize("name", names(ROUTER))
def test_router_edges(name: str, exact: bool) -> None:
    model = session(ROUTER / "input" / f"{name}.gguf", exact)
    ids, wanted = expected(ROUTER)[name]["ids"], logits_of(ROUTER)[name]
    for chunks in ([len(ids)], [1] * len(ids), [5, 7]):
        logits = fed(model, ids, chunks)
        assert np.isfinite(logits).all()
        assert np.abs(logits - wanted[-1]).max() < AGREE


# 21: pooling as the file says


@both
@pytest.mark.parametrize("name", names(POOLING))
def test_pooling(name: str, exact: bool) -> None:
    """The raw vectors, and as vectors of length 1; nothing of one text is in the next one's."""
    model = session(POOLING / "input" / name, exact)
    for text in expected(POOLING)[name]["texts"]:
        vectors = model.embed(text["ids"])
        if "token_vectors" in text:
            assert vectors.shape[0] == text["token_vectors"]
            np.testing.assert_allclose(vectors[0, :8], text["first_first8"], atol=1e-3)
            np.testing.assert_allclose(vectors[-1, :8], text["last_first8"], atol=1e-3)
        else:
            np.testing.assert_allclose(vectors[:8], text["raw_first8"], atol=1e-3)
            np.testing.assert_allclose(vectors / np.linalg.norm(vectors), text["unit"], atol=2e-4)


@pytest.mark.parametrize("name", names(POOLING))
def test_special_tokens_are_added_once(name: str) -> None:
    """[CLS] and [SEP] around a text that is embedded, which may be given as text or ids."""
    model = session(POOLING / "input" / name)
    for text in expected(POOLING)[name]["texts"]:
        assert model.tokenizer.encode(text["text"]) == text["ids"]
        np.testing.assert_array_equal(model.embed(text["text"]), model.embed(text["ids"]))


@both
def test_lengths_of_a_text(exact: bool) -> None:
    """One token, and as many as the model has positions, are embedded; none, and one too many, are refused, not cut."""
    model = session(POOLING / "input" / "bert-mean.gguf", exact)
    rng = np.random.default_rng(0)
    full = rng.integers(5, model.vocabulary, model.context_length).tolist()
    assert np.isfinite(model.embed(full)).all()
    assert np.isfinite(model.embed(full[:1])).all()
    assert not np.allclose(model.embed(full), model.embed(full[:-1]), atol=1e-4)
    with pytest.raises(ggufc.InputError, match="no tokens"):
        model.embed([])
    with pytest.raises(ggufc.InputError, match=f"exceed the context of {model.context_length}"):
        model.embed([*full, 5])
