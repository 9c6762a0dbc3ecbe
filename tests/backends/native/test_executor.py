"""Graphs on the native kernels, judged by llama.cpp and XLA; and that no result depends on how tokens were fed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from ggufc.backends.jax.module import portable_module
from ggufc.backends.jax.ops import RULES
from ggufc.backends.jax.trace import weight_spec
from ggufc.backends.jax.xla import XlaModule
from ggufc.backends.native.executor import NativeExecutor
from ggufc.backends.sessions.session import Facts, Session
from ggufc.graph.ir import Graph, Op, Operand, Value, Weight
from ggufc.graph.model import Model, open_model
from ggufc.graph.ops import MATRIX_READERS, OPS, make
from ggufc.graph.types import TensorType
from ggufc.passes import pipeline

from ...oracle import Reference, dequantized_copy, kl_divergence, log_softmax
from ...prompts import documentation
from ...tiny_models import TOKENS, tiny_gemma3
from .blocks import TYPES, block_size, random_weight

Floats = npt.NDArray[np.float32]

MIXED = {"*attn_v*": "q8_0", "*attn_output*": "q4_k", "*ffn_down*": "q6_k", "token_embd*": "q8_0", "*": "q5_0"}
"""The types of a Q4_K_M file, each where it has it."""
WINDOW = 8

DECODER = frozenset(("prefill", "decode"))


@pytest.fixture(scope="module")
def mixed_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows are whole blocks of every type, and whose rings (window and 512) wrap within its context."""
    path = tmp_path_factory.mktemp("native") / "mixed.gguf"
    return tiny_gemma3(path, width=256, heads=4, kv_heads=2, head_dim=64, ffn=512, window=WINDOW, types=MIXED)


def executor(model: Model, *, exact: bool, threads: int = 2, kv: str = "f32") -> NativeExecutor:
    graph = model.graph
    graphs = (pipeline.forward(graph), pipeline.prefill(graph, kv), pipeline.decode(graph, kv))
    graphs = graphs if exact else tuple(pipeline.fused(g) for g in graphs)
    return NativeExecutor({g.name: g for g in graphs}, model.file.tensor_bytes, threads, exact)


def session(model: Model, native: NativeExecutor) -> Session:
    def no_tokenizer():
        raise AssertionError("these tests feed ids")

    return Session(native, Facts(model.context_length, model.vocabulary, DECODER, False), no_tokenizer)


def on_xla(graph: Graph, weights: Callable[[str], np.ndarray], ids: npt.NDArray[np.int32]) -> Floats:
    arrays = {}
    for name, weight in graph.weights().items():
        spec = weight_spec(weight)
        arrays[name] = weights(name).view(spec.dtype).reshape(spec.shape)
    return np.asarray(XlaModule(portable_module([graph]), arrays).call(graph.name, [ids])[0])


def by_the_rules(graph: Graph, weights: Callable[[str], np.ndarray], ids: npt.NDArray[np.int32]) -> Floats:
    """The first result of a graph without caches, operation by operation as JAX defines them."""
    known: dict[Operand, Any] = {graph.arguments[0]: jnp.asarray(ids)}
    for weight in graph.weights().values():
        spec = weight_spec(weight)
        known[weight] = jnp.asarray(weights(weight.name).view(spec.dtype).reshape(spec.shape))
    for op in graph.ops:
        absent = [None] * (OPS[op.name].values[1] - len(op.values))
        typed = {"type_name": op.weights[-1].type.dtype} if op.name in MATRIX_READERS else {}
        operands = [known[o] for o in op.values] + absent + [known[o] for o in op.weights]
        known[op.result] = RULES[op.name](*operands, **dict(op.attributes), **typed)
    return np.asarray(known[graph.results[0]])


def random_ids(count: int, vocabulary: int = len(TOKENS), seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, vocabulary, count).astype(np.int32)


def fed(to: Session, ids: npt.NDArray[np.int32], chunk: int) -> Floats:
    """The logits after ids that were fed in chunks; a chunk of 0 is token by token through decode."""
    to.reset()
    if not chunk:
        return [to.decode(token) for token in ids.tolist()][-1]
    return [to.prefill(ids[at : at + chunk].tolist()) for at in range(0, len(ids), chunk)][-1]


# One operation after another


class Chain:
    """A graph `@forward` made by hand, with random float32 weights."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.tokens = Value("tokens", TensorType("i32", ("T",)))
        self.ops: list[Op] = []
        self.weights: dict[str, np.ndarray] = {}

    def weight(self, *shape: int) -> Weight:
        name = f"w{len(self.weights)}"
        self.weights[name] = self.rng.uniform(0.5, 1.5, shape).astype(np.float32)
        if len(shape) > 1:
            self.weights[name] *= self.rng.choice((np.float32(-1), np.float32(1)), shape)
        return Weight(name, TensorType("f32", shape))

    def blocks(self, type_name: str, *shape: int) -> Weight:
        """A weight of any GGML type, its rows whole blocks."""
        name = f"w{len(self.weights)}"
        *rows, cols = shape
        size = cols // block_size(type_name)[0]
        self.weights[name] = random_weight(self.rng, type_name, int(np.prod(rows)), size)
        return Weight(name, TensorType(type_name, shape))

    def add(self, name: str, *operands: Operand, **attributes: Any) -> Value:
        self.ops.append(make(name, operands, str(len(self.ops)), **attributes))
        return self.ops[-1].result

    def graph(self) -> Graph:
        return Graph("forward", (self.tokens,), tuple(self.ops), (self.ops[-1].result,))

    def bytes_of(self, name: str) -> np.ndarray:
        return self.weights[name].reshape(-1).view(np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize(("style", "dims"), [("neox", 2), ("neox", 22), ("norm", 22), ("norm", 48)])
def test_every_operation_means_what_it_means_by_the_rules(style: str, dims: int) -> None:
    """Sizes are no multiples of a vector; heads are longer than what is rotated."""
    chain = Chain()
    x = chain.add("embed", chain.tokens, chain.weight(50, 37))
    x = chain.add("rms_norm", x, eps=1e-5)
    x = chain.add("bias", x, chain.weight(37))
    y = chain.add("silu", chain.add("scale", x, by=-2.5))
    x = chain.add("add", x, chain.add("mul", y, chain.add("gelu", x)))
    x = chain.add("rms_norm", x, chain.weight(37), eps=1e-5)
    q = chain.add("linear", x, chain.weight(4 * 48, 37), shape=(4, 48))
    k = chain.add("linear", x, chain.weight(2 * 48, 37), shape=(2, 48))
    v = chain.add("linear", x, chain.weight(2 * 40, 37), shape=(2, 40))
    q = chain.add("rms_norm", q, chain.weight(48), eps=1e-5)
    turn = {"base": 1e4, "dims": dims, "style": style}
    q = chain.add("rope", q, **turn, scale=0.5, magnitude=1.0, yarn=0)
    k = chain.add("rope", k, chain.weight(dims // 2), **turn, scale=0.25, magnitude=1.5, yarn=64)
    a = chain.add("attention", q, k, v, cap=5.0, scale=0.02, window=3, ahead=0)
    x = chain.add("rms_norm", chain.add("linear", a, chain.weight(37, 160), shape=(37,)), eps=1e-5)
    chain.add("softcap", x, cap=0.7)
    native = NativeExecutor({"forward": chain.graph()}, chain.bytes_of, 2, exact=True)
    for count in (1, 70):
        ids = random_ids(count, 50)
        np.testing.assert_allclose(
            native.forward(ids), by_the_rules(chain.graph(), chain.bytes_of, ids), rtol=0, atol=3e-5
        )


@pytest.mark.parametrize(("kind", "ahead"), [(1, 2), (2, 2**31 - 1), (3, 2)])
def test_operations_of_encoders_mean_what_they_mean_by_the_rules(kind: int, ahead: int) -> None:
    chain = Chain()
    x = chain.add("embed", chain.tokens, chain.weight(50, 48))
    x = chain.add("add", x, chain.add("embed", chain.add("positions", chain.tokens), chain.weight(80, 48)))
    x = chain.add("layer_norm", chain.add("add_row", x, chain.weight(3, 48), row=1), chain.weight(48), eps=1e-5)
    qkv = chain.add("linear", x, chain.weight(8 * 24, 48), shape=(8 * 24,))
    q = chain.add("part", qkv, start=0, shape=(4, 24))
    k, v = (chain.add("part", qkv, start=24 * at, shape=(2, 24)) for at in (4, 6))
    a = chain.add("attention", q, k, v, cap=0.0, scale=0.05, window=5 if ahead < 5 else 0, ahead=ahead)
    x = chain.add("tanh", chain.add("relu", chain.add("linear", a, chain.weight(37, 96), shape=(37,))))
    x = chain.add("layer_norm", x, chain.weight(37), chain.weight(37), eps=1e-5)
    x = chain.add("gain", chain.add("gain", x, chain.weight(37)), chain.weight(1))
    chain.add("pool", x, kind=kind)
    native = NativeExecutor({"forward": chain.graph()}, chain.bytes_of, 2, exact=True)
    for count in (1, 70):
        ids = random_ids(count, 50)
        np.testing.assert_allclose(
            native.forward(ids), by_the_rules(chain.graph(), chain.bytes_of, ids), rtol=0, atol=3e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize(("type_name", "normalize"), [(name, n % 2) for n, name in enumerate(TYPES)])
def test_mixtures_of_experts_mean_what_they_mean_by_the_rules(type_name: str, normalize: int) -> None:
    chain = Chain()
    x = chain.add("embed", chain.tokens, chain.weight(50, 256))
    x = chain.add("rms_norm", x, eps=1e-5)
    logits = chain.add("scale", chain.add("linear", x, chain.weight(9, 256), shape=(9,)), by=0.05)
    experts = chain.add("top_k", logits, k=3)
    shares = chain.add("route", logits, experts, normalize=normalize, by=1.5)
    y = chain.add("expert_linear", x, experts, chain.blocks(type_name, 9, 256, 256))
    y = chain.add("expert_gain", y, experts, chain.weight(9))
    y = chain.add("expert_linear", y, experts, chain.blocks(type_name, 9, 70, 256))
    chain.add("rms_norm", chain.add("mix", y, shares), eps=1e-5)
    for exact, atol in ((True, 5e-5), (False, 5e-3)):
        native = NativeExecutor({"forward": chain.graph()}, chain.bytes_of, 2, exact)
        for count in (1, 9):
            ids = random_ids(count, 50)
            wanted = by_the_rules(chain.graph(), chain.bytes_of, ids)
            np.testing.assert_allclose(native.forward(ids), wanted, rtol=0, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("type_name", ["f32", "q4_k", "q8_0"])
@pytest.mark.parametrize(("style", "act"), [("neox", "gelu"), ("norm", "silu")])
def test_fused_operations_mean_what_they_mean_by_the_rules(type_name: str, style: str, act: str) -> None:
    """Rows of more than one panel of a product, and a number of rows that no work group divides."""
    chain, width = Chain(), 8704
    x = chain.add("embed", chain.tokens, chain.weight(50, width))
    shape, norm = {"shape": (4, 48), "eps": 1e-5}, chain.weight(width)
    q = chain.add("norm_linear", x, norm, chain.blocks(type_name, 4 * 48, width), **shape)
    turn = {"base": 1e4, "dims": 22, "style": style, "scale": 0.5, "magnitude": 1.0, "yarn": 0}
    q = chain.add("norm_rope", q, chain.weight(48), chain.weight(11), eps=1e-5, **turn)
    y = chain.add("linear", q, chain.weight(256, 4 * 48), shape=(256,))
    y = chain.add("rms_norm", y, eps=1e-5)
    for name, operands in (("glu", ()), ("norm_glu", (chain.weight(256),))):
        rows = 77 if operands else 256
        pair = [chain.blocks(type_name, rows, 256) for _ in range(2)]
        eps = {"eps": 1e-5} if operands else {}
        y = chain.add("rms_norm", chain.add(name, y, *operands, *pair, act=act, shape=(rows,), **eps), eps=1e-5)
    chain.add("norm_add", y, chain.add("scale", y, by=-0.5), chain.weight(77), eps=1e-5)
    native = NativeExecutor({"forward": chain.graph()}, chain.bytes_of, 2, exact=False)
    for count in (1, 9):
        ids = random_ids(count, 50)
        wanted = by_the_rules(chain.graph(), chain.bytes_of, ids)
        atol = 1e-4 if type_name == "f32" else 5e-3
        np.testing.assert_allclose(native.forward(ids), wanted, rtol=0, atol=atol)


def test_convolution_goes_on_from_its_state() -> None:
    """In chunks shorter and longer than the state, as without one."""
    chain = Chain()
    x = chain.add("embed", chain.tokens, chain.weight(50, 37))
    x = chain.add("linear", chain.add("rms_norm", x, eps=1e-5), chain.weight(37, 37), shape=(37,))
    x = chain.add("short_conv", x, chain.weight(37, 4))
    whole, ids = chain.graph(), random_ids(20, 50)
    native = NativeExecutor(
        {"forward": whole, "prefill": pipeline.prefill(whole, "f32"), "decode": pipeline.decode(whole, "f32")},
        chain.bytes_of,
        threads=2,
        exact=True,
    )
    wanted = native.forward(ids)
    np.testing.assert_allclose(wanted, by_the_rules(whole, chain.bytes_of, ids), rtol=0, atol=3e-5)
    buffers: list[object] = [native.allocate(spec, spec.rows) for spec in native.caches]
    rows, at = [spec.rows for spec in native.caches], 0
    for count in (1, 2, 3, 7, 1, 6):
        entry = "prefill" if count > 1 else "decode"
        logits = native.run(entry, ids[at : at + count], at, buffers, rows)
        at += count
        np.testing.assert_array_equal(logits, wanted[at - 1])


# Whole models


@pytest.mark.parametrize("options", [{}, {"rope_scaling": 4.0, "softcap": 5.0, "tied": False, "window": None}])
def test_exact_mode_agrees_with_llama_cpp_and_xla(tmp_path: Path, options: dict[str, float]) -> None:
    path = tiny_gemma3(tmp_path / "model.gguf", **options)  # type: ignore[arg-type]
    model, ids = open_model(path), random_ids(40)
    native = executor(model, exact=True)
    logits = native.forward(ids)
    np.testing.assert_allclose(
        logits, on_xla(pipeline.forward(model.graph), model.file.tensor_bytes, ids), rtol=0, atol=2e-4
    )
    with Reference(path) as reference:
        wanted = reference.logits(ids, len(ids))
    # llama.cpp's GELU is a table of float16
    assert np.abs(logits - wanted).max() < 5e-2
    assert kl_divergence(wanted, logits).mean() < 1e-5


def test_quantized_model_agrees_with_its_dequantized_copy_in_both_modes(mixed_path: Path, tmp_path: Path) -> None:
    model, ids = open_model(mixed_path), random_ids(60)
    dequantized_copy(mixed_path, tmp_path / "f32.gguf")
    with Reference(tmp_path / "f32.gguf") as reference:
        wanted = reference.logits(ids, len(ids))
    exact, fast = (executor(model, exact=exact).forward(ids) for exact in (True, False))
    np.testing.assert_allclose(
        exact, on_xla(pipeline.forward(model.graph), model.file.tensor_bytes, ids), rtol=0, atol=1e-3
    )
    assert kl_divergence(wanted, exact).mean() < 1e-5
    assert kl_divergence(wanted, fast).mean() < 2e-5
    assert kl_divergence(exact, fast).mean() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_exact_logits_do_not_depend_on_the_chunks(mixed_path: Path, kv: str) -> None:
    """Past the window of 8 and past the ring of 520 rows, not even in the last bit."""
    model, ids = open_model(mixed_path), random_ids(700)
    native = executor(model, exact=True, kv=kv)
    whole = fed(session(model, native), ids, len(ids))
    for chunk in (0, 1, 7, 64):
        np.testing.assert_array_equal(fed(session(model, native), ids, chunk), whole, err_msg=f"chunks of {chunk}")
    if kv == "f32":
        np.testing.assert_array_equal(native.forward(ids)[-1], whole)
    else:
        assert np.abs(native.forward(ids)[-1] - whole).max() < 0.1


def test_tiles_of_weights_change_nothing(mixed_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact mode holds a part of a matrix at a time; here there are many parts, the last one shorter."""
    model, ids = open_model(mixed_path), random_ids(30)
    whole = executor(model, exact=True).forward(ids)
    monkeypatch.setattr("ggufc.backends.native.program._TILE_BYTES", 50_000)
    parts = executor(model, exact=True)
    np.testing.assert_array_equal(parts.forward(ids), whole)
    np.testing.assert_array_equal(session(model, parts).prefill(ids.tolist()), whole[-1])


def test_fast_logits_hardly_depend_on_the_chunks(mixed_path: Path) -> None:
    model, ids = open_model(mixed_path), random_ids(700)
    native = executor(model, exact=False)
    whole = fed(session(model, native), ids, len(ids))
    for chunk in (0, 1, 7, 64):
        assert kl_divergence(whole, fed(session(model, native), ids, chunk)) < 1e-5, f"chunks of {chunk}"


@pytest.mark.parametrize("exact", [True, False])
def test_reset_and_rewind_leave_no_trace(mixed_path: Path, exact: bool) -> None:
    model, ids = open_model(mixed_path), random_ids(600)
    native = executor(model, exact=exact)
    first, other = session(model, native), session(model, native)
    wanted = [first.prefill(ids[:300].tolist()), first.prefill(ids[300:550].tolist()), first.decode(7)]
    other.prefill(random_ids(590, seed=1).tolist())
    other.rewind(5)
    other.reset()
    np.testing.assert_array_equal(other.prefill(ids[:300].tolist()), wanted[0])
    other.prefill(ids[100:200].tolist())  # within what the rings hold
    other.rewind(100)
    np.testing.assert_array_equal(other.prefill(ids[300:550].tolist()), wanted[1])
    np.testing.assert_array_equal(other.decode(7), wanted[2])
    np.testing.assert_array_equal(first.decode(9), other.decode(9))  # both sessions go on, over one executor


@pytest.mark.parametrize("threads", [1, 3, 16])
def test_threads_change_nothing(mixed_path: Path, threads: int) -> None:
    """More threads than cores too: one that comes late must not touch the next run."""
    model, ids = open_model(mixed_path), random_ids(150)
    one, many = (session(model, executor(model, exact=False, threads=n)) for n in (2, threads))
    np.testing.assert_array_equal(fed(many, ids, 50), fed(one, ids, 50))
    for token in ids.tolist():
        np.testing.assert_array_equal(many.decode(token), one.decode(token))


def test_results_stay_as_they_were(mixed_path: Path) -> None:
    """Logits are the caller's, and a call of another size moves no cache."""
    model, ids = open_model(mixed_path), random_ids(300)
    native = executor(model, exact=True)
    some = session(model, native)
    logits = some.prefill(ids[:5].tolist())
    kept = logits.copy()
    for count in range(1, 20):  # more sizes than programs are kept
        session(model, native).prefill(ids[:count].tolist())
    native.forward(ids)
    np.testing.assert_array_equal(logits, kept)
    np.testing.assert_array_equal(some.decode(int(ids[5])), native.forward(ids[:6])[-1])


# The real model


@pytest.fixture(scope="module")
def real_f32(real_model: Path) -> Path:
    """Its dequantized copy (1.1 GB), made once beside it."""
    path = real_model.with_suffix(".f32.gguf")
    if not path.exists():
        dequantized_copy(real_model, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    return path


@pytest.mark.slow
def test_real_model_is_near_the_reference(real_model: Path, real_f32: Path) -> None:
    model = open_model(real_model)
    with Reference(real_f32) as reference:
        ids = np.array(reference.tokenize(documentation(400)), np.int32)
        wanted = reference.logits(ids, len(ids))
    exact, fast = (executor(model, exact=exact).forward(ids) for exact in (True, False))
    xla = on_xla(pipeline.forward(model.graph), model.file.tensor_bytes, ids)
    assert np.abs(exact - xla).max() < 1e-3
    assert np.abs(log_softmax(exact) - log_softmax(wanted)).max() < 5e-2
    assert kl_divergence(wanted, exact).mean() < 1e-5
    assert kl_divergence(exact, fast).mean() < 1e-5


@pytest.mark.slow
def test_real_model_past_the_window_and_the_ring(real_model: Path, real_f32: Path) -> None:
    model = open_model(real_model)
    with Reference(real_f32) as reference:
        ids = np.array(reference.tokenize(documentation(8000))[:1100], np.int32)
        wanted = reference.logits(ids)
    exact, fast = (session(model, executor(model, exact=exact)) for exact in (True, False))
    whole = fed(exact, ids, len(ids))
    assert kl_divergence(wanted, whole) < 1e-4
    np.testing.assert_array_equal(fed(exact, ids, 64), whole)
    for chunk in (512, 7):
        assert kl_divergence(whole, fed(fast, ids, chunk)) < 1e-4
