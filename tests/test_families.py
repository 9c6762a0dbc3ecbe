"""Every family of models: llama.cpp's logits, on every executor, however the tokens are fed.

Weights are F32, llama.cpp's cache too, and its flash attention is off, so what differs is the order of sums: below
1e-4 on logits that spread over several nats. Where a model has a GELU, llama.cpp reads it from a float16 table, which
moves its logits by up to a few hundredths. Such a model is tried twice: as it is, and with gates so large that the
table's error vanishes, where the tight bound holds again.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ggufc
import numpy as np
import numpy.typing as npt
import pytest
from ggufc.backends.native.executor import NativeExecutor
from ggufc.frontend.errors import UnsupportedError
from ggufc.graph.ir import Graph, Op
from ggufc.graph.model import open_model
from ggufc.passes import pipeline

from .oracle import POOLINGS, Reference, dequantized_copy, kl_divergence
from .tiny_models import ARCHITECTURES, LINEAR, TOKENS, YARN, Sizes, Types
from .tiny_models.variants import DECODERS, DEEP, ENCODERS, Variant
from .tiny_models.vocabulary import vocabulary
from .tiny_models.writer import write_gguf

Floats = npt.NDArray[np.float32]
Write = Callable[..., Path]

IDS = [2, *np.random.default_rng(1).integers(3, len(TOKENS), 40).tolist()]
"""Several times the window of the tiny models."""
EXACT = 1e-4
FAR = 5e-4
"""The same after hundreds of positions, where angles and sums are longer, or dozens of layers."""
TABLE, TABLE_KL = 5e-2, 1e-5
"""What llama.cpp's float16 GELU moves logits by, at most and in mean KL."""

WINDOWED = ["gemma2", "gemma3", "gemma4", "lfm2-window", "olmo2-window"]
ONE_OF_EACH = list({variant.architecture: name for name, variant in reversed(DECODERS.items())}.values())[::-1]
ROUTED = ["llama-experts", "gemma4-experts"]
OTHER_GRAPHS = [
    *("llama-biases", "llama-rope-freqs", "llama-longrope", "gemma3-scaled", "gemma4-one-shared", "gemma4-plain"),
    *("gemma4-experts-apart", "phi3-apart", "glm4-nextn", "lfm2-window", "olmo2-window", "granite-no-rope"),
]
"""Those whose graph has other operations than their family's first; the rest differs in numbers and sharing alone."""
WITH_GELU = [name for name, variant in DECODERS.items() if variant.gelu]
SCALINGS: dict[str, dict[str, Any]] = {
    "yarn": YARN | {"rope.freq_base_swa": 30000.0},
    "none": LINEAR | {"rope.scaling.type": "none"},
    "old": {"rope.scale_linear": 4.0, "rope.scaling.attn_factor": 1.1},
}
LARGE: Types = {
    "per_layer_token_embd*": "q8_0",  # rows that are no whole blocks of 256
    "blk.*.proj*": "q8_0",
    "*_exps*": "q8_0",
    "*attn_v*": "q6_k",
    "token_embd*": "q8_0",
    "*": "q4_k",
}
"""The types of a Q4_K_M file, or what such a file has where a row is too short."""


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes a variant of the tables once: (name, options of `Variant.write`) to its path."""
    folder = tmp_path_factory.mktemp("families")

    @cache
    def one(name: str, **options: Any) -> Path:
        return variant_of(name).write(folder / f"{name}{'.'.join(options)}.gguf", **options)

    return one


def variant_of(name: str) -> Variant:
    return (DECODERS | DEEP | ENCODERS)[name]


@cache
def judged(path: Path, last: int = len(IDS)) -> Floats:
    """llama.cpp's logits at the last positions of IDS, in a context of the length that the model is made for."""
    with Reference(path, n_ctx=open_model(path).context_length) as reference:
        return reference.logits(IDS, last)


def native(path: Path, *, exact: bool = True) -> ggufc.Session:
    return ggufc.load(path, backend="native", exact=exact)


def decoded(session: ggufc.Session, ids: list[int]) -> Floats:
    """The logits (tokens, vocabulary) at every position, fed one by one."""
    return np.stack([session.decode(token).copy() for token in ids])


def difference(found: Floats, wanted: Floats) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max())


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
@pytest.mark.parametrize("name", DECODERS)
def test_logits_at_every_position(name: str, exact: bool, write: Write) -> None:
    path = write(name)
    logits = decoded(native(path, exact=exact), IDS)
    if variant_of(name).gelu:
        assert difference(logits, judged(path)) < TABLE
        assert kl_divergence(judged(path), logits).mean() < TABLE_KL
    else:
        assert difference(logits, judged(path)) < EXACT


@pytest.mark.parametrize("name", WITH_GELU)
def test_logits_with_saturated_gates(name: str, write: Write) -> None:
    path = write(name, saturated=True)
    assert difference(decoded(native(path), IDS), judged(path)) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEP)
def test_logits_of_deep_models(name: str, write: Write) -> None:
    path = write(name, saturated=True)
    assert difference(decoded(native(path, exact=False), IDS), judged(path)) < FAR


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gemma", "granite"])
def test_heads_of_a_file_that_does_not_say_their_size(architecture: str, tmp_path: Path) -> None:
    """The width over the heads, rounded down."""
    sizes = Sizes(layers=2, width=60, heads=7, kv_heads=1, head_dim=8)
    metadata, weights = ARCHITECTURES[architecture](sizes)
    silent = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    given = {f"{architecture}.{key}": value for key, value in metadata.items() if key not in silent}
    path = write_gguf(tmp_path / "model.gguf", architecture, vocabulary() | given, weights, "f32", 0)
    assert difference(decoded(native(path), IDS), judged(path)) < (TABLE if architecture == "gemma" else EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_scaled_rotation(name: str, scaling: str, tmp_path: Path) -> None:
    """Keys that any family may have, whether or not a known model has them."""
    variant = variant_of(name)
    variant = replace(variant, metadata=variant.metadata | SCALINGS[scaling])
    path = variant.write(tmp_path / "model.gguf", saturated=variant.gelu)
    assert difference(decoded(native(path), IDS), judged(path)) < EXACT


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_scaling_that_llama_cpp_does_not_know_is_refused(name: str, tmp_path: Path) -> None:
    """It aborts on such a file (src/llama-model.cpp)."""
    variant = variant_of(name)
    variant = replace(variant, metadata=variant.metadata | {"rope.scaling.type": "foo"})
    with pytest.raises(UnsupportedError, match=r"rope\.scaling\.type' is 'foo'"):
        open_model(variant.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3", "lfm2"])
def test_partial_rotation(name: str, tmp_path: Path) -> None:
    """Families whose models turn whole heads, of which llama.cpp reads the key all the same."""
    variant = variant_of(name)
    variant = replace(variant, metadata=variant.metadata | {"rope.dimension_count": variant.sizes.head_dim // 2})
    path = variant.write(tmp_path / "model.gguf", saturated=variant.gelu)
    assert difference(decoded(native(path), IDS), judged(path)) < EXACT


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3moe", "granite", "olmo2", "smollm3"])
def test_heads_that_turn_in_part_where_llama_cpp_takes_none_are_refused(name: str, tmp_path: Path) -> None:
    """It throws for `llama` (src/llama-model.cpp), and the others assert that n_rot is the head's size."""
    variant = variant_of(name)
    variant = replace(variant, metadata=variant.metadata | {"rope.dimension_count": variant.sizes.head_dim // 2})
    said = rf"key '{name}\.rope\.dimension_count' is 16; .*/{name}\.archdef can do 32 alone"
    with pytest.raises(UnsupportedError, match=said):
        open_model(variant.write(tmp_path / "model.gguf"))


@pytest.mark.slow
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
@pytest.mark.parametrize("name", DECODERS)
def test_however_tokens_are_fed(name: str, exact: bool, write: Write) -> None:
    """One piece, chunks across the window's edge, token by token; after a reset and after a rewind."""
    session = native(write(name), exact=exact)
    wanted = decoded(session, IDS)
    for chunks in ([41], [1, 40], [2, 6, 1, 32], [8, 33], [9, 1, 1, 30], [39, 2]):
        session.reset()
        for size in chunks:
            logits = session.prefill(IDS[session.position : session.position + size])
            assert difference(logits, wanted[session.position - 1]) < EXACT
    for kept in (30, 11, 1, 0):
        session.rewind(session.position - kept)
        assert difference(session.decode(IDS[kept]), wanted[kept]) < EXACT
        assert difference(session.prefill(IDS[kept + 1 :]), wanted[-1]) < EXACT
    session.reset()
    session.prefill(IDS[::-1])
    session.rewind(len(IDS))
    assert difference(session.decode(IDS[0]), wanted[0]) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWED)
def test_a_ring_goes_round(name: str, write: Write) -> None:
    """More tokens than the ring of a sliding window has rows; a rewind to what it has overwritten feeds again."""
    path = write(name, saturated=variant_of(name).gelu)
    ids = np.random.default_rng(2).integers(3, len(TOKENS), 900).tolist()
    with Reference(path, n_ctx=1024) as reference:
        wanted = reference.logits(ids, last=400)
    session = native(path, exact=False)
    assert difference(session.prefill(ids), wanted[-1]) < FAR
    for back in (5, 300):
        session.rewind(back)
        assert difference(session.decode(ids[-back]), wanted[-back]) < FAR
        session.prefill(ids[-back + 1 :])
    session.reset()
    for at in range(0, 897, 299):
        session.prefill(ids[at : at + 299])
    assert difference(decoded(session, ids[897:]), wanted[-3:]) < FAR


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [*((n, "iree") for n in ONE_OF_EACH + ROUTED + OTHER_GRAPHS), *((n, "xla") for n in ONE_OF_EACH + ROUTED)],
)
def test_executors_agree(
    name: str, backend: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where a model that is run as it is gets compiled to
    path = write(name)
    wanted = decoded(native(path), IDS)
    session = ggufc.load(path, backend=backend)
    assert difference(decoded(session, IDS[:10]), wanted[:10]) < EXACT
    session.reset()
    assert difference(session.prefill(IDS), wanted[-1]) < EXACT
    session.rewind(38)
    assert difference(session.prefill(IDS[3:]), wanted[-1]) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize(("types", "large"), [("q8_0", False), (LARGE, True)], ids=["q8_0", "q4_k"])
@pytest.mark.parametrize("name", ONE_OF_EACH + ROUTED)
def test_quantized_weights(name: str, types: Types, large: bool, write: Write, tmp_path: Path) -> None:
    """Exact arithmetic gives what llama.cpp makes of the dequantized weights; the kernels stay near that."""
    variant = variant_of(name)
    path = variant.write(tmp_path / "quantized.gguf", types=types, large=large, saturated=variant.gelu)
    dequantized_copy(path, tmp_path / "exact.gguf")
    wanted = judged(tmp_path / "exact.gguf")
    assert difference(decoded(native(path), IDS), wanted) < 2 * EXACT
    assert kl_divergence(wanted, decoded(native(path, exact=False), IDS)).mean() < 1e-2


# Gemma 4's own


def test_followers_read_the_keys_and_values_of_their_owner(write: Write) -> None:
    """Three blocks, the last without K and V of its own: two caches of each, a product for each projection there is."""
    model = open_model(write("gemma4-one-shared"))
    for graph in (pipeline.prefill(model.graph, "f32"), pipeline.decode(model.graph, "f32")):
        assert [cache.name for cache in graph.caches()] == ["k.0", "v.0", "k.1", "v.1"]
        products = {op.weights[0].name for op in graph.ops if op.name == "linear"}
        used = [(i, part) for i, parts in enumerate(("qkv", "qk", "q")) for part in parts]
        assert {name for name in products if ".attn_" in name and "output" not in name} == {
            f"blk.{i}.attn_{part}.weight" for i, part in used
        }
        first, _, follower = attentions(graph)
        assert follower.values[1:] == first.values[1:]


def attentions(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.name == "attention"]


@pytest.mark.slow
def test_gemma4_generates_the_same_without_a_cache(write: Write) -> None:
    path = write("gemma4")
    model = open_model(path)
    whole = NativeExecutor({"forward": pipeline.forward(model.graph)}, model.file.tensor_bytes, 2, exact=True)
    ids = IDS[:5]
    for _ in range(64):
        ids = [*ids, int(whole.forward(np.array(ids, np.int32))[-1].argmax())]
    assert list(native(path).generate_ids(IDS[:5], max_tokens=64, stop=())) == ids[5:]
    assert len(set(ids[5:])) > 16


# Encoders


def embeddings_of(path: Path, pooling: str, texts: list[list[int]]) -> list[Floats]:
    with Reference(path, n_ctx=128, pooling=pooling) as reference:
        return [reference.embeddings(ids) for ids in texts]


def pooling_of(path: Path) -> str:
    model = open_model(path)
    kind = model.file.metadata.get(f"{model.definition.name}.pooling_type", 0)
    return next(word for word, number in POOLINGS.items() if number == kind)


TEXTS = [IDS, IDS[:9], IDS[:2], IDS[:1]]


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "fast"])
@pytest.mark.parametrize("name", ENCODERS)
def test_embeddings(name: str, exact: bool, write: Write) -> None:
    for saturated in {False, variant_of(name).gelu}:
        path = write(name, saturated=saturated)
        session = native(path, exact=exact)
        bound = TABLE if variant_of(name).gelu and not saturated else EXACT
        for ids, wanted in zip(TEXTS, embeddings_of(path, pooling_of(path), TEXTS), strict=True):
            assert difference(session.embed(ids), wanted) < bound


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xla", "iree"])
@pytest.mark.parametrize("name", ENCODERS)
def test_executors_agree_on_embeddings(
    name: str, backend: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write(name)
    session, other = native(path), ggufc.load(path, backend=backend)
    for ids in TEXTS:
        assert difference(other.embed(ids), session.embed(ids)) < EXACT
