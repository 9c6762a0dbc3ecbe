"""Every rule against the formula in plain numpy float64, and every quantized type against gguf-py."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType
from ggufc.backends.jax.dequantize import dequantize
from ggufc.backends.jax.ops import RULES
from ggufc.frontend.ggml_types import by_name
from ggufc.graph.ops import OPS, WEIGHT_TYPES

from ...tiny_models import Weight, random_tensor
from ..native.blocks import QUANTIZED, dequantized, random_weight, with_every_scale

Array = npt.NDArray[Any]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def rule(name: str, *operands: Array, factors: Array | None = None, **attributes: Any) -> Array:
    """What a rule gives; attributes of attention and rope that are not given are 0, and rope's magnitude 1."""
    if name in ("attention", "rope"):
        attributes = dict.fromkeys(OPS[name].attributes, 0) | {"magnitude": 1.0} | attributes
        attributes = {key: value for key, value in attributes.items() if key in OPS[name].attributes}
    named = {} if factors is None else {"factors": jnp.asarray(factors)}
    function = jax.jit(partial(RULES[name], **attributes))
    return np.asarray(function(*map(jnp.asarray, operands), **named))


def at(position: int) -> Array:
    return np.asarray(position, np.int32)


def close(found: Array, wanted: Array, tolerance: float = 1e-5) -> None:
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def raw_weight(name: str, rows: int, columns: int) -> Array:
    """A random weight as the module holds it: float32, or the bytes of its blocks."""
    raw = random_tensor(RNG, Weight((rows, columns), 0.5), GGMLQuantizationType[name.upper()])
    return raw if name == "f32" else raw.view(np.uint8)


def float_weight(raw: Array, name: str) -> Array:
    """What gguf-py makes of it."""
    return raw if name == "f32" else dequantized(raw, name).astype(np.float64)


# ------------------------------------------------------------------------------------------ weights


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_dequantize_is_gguf_pys_to_the_bit(name: str) -> None:
    raw = raw_weight(name, 7, 512)
    assert name == "f32" or raw.shape == (7, by_name(name).nbytes(512))
    found = np.asarray(dequantize(raw, name))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, raw if name == "f32" else dequantized(raw, name))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_sixteen_bit_float(name: str) -> None:
    raw = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(256, 512)
    found = np.asarray(jax.jit(partial(dequantize, type_name=name))(raw))
    np.testing.assert_array_equal(found, dequantized(raw, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", QUANTIZED)
def test_every_scale(name: str) -> None:
    """Subnormal, infinite and NaN scales too, before any bits at all."""
    raw = with_every_scale(random_weight(RNG, name, 256, 256), name)
    with np.errstate(all="ignore"):
        wanted = dequantized(raw, name)
    found = np.asarray(jax.jit(partial(dequantize, type_name=name))(raw))
    # XLA takes subnormal numbers for zero, and two of MXFP4's scales are subnormal as float32
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-123 if name == "mxfp4" else 0)


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_linear(name: str) -> None:
    raw, x = raw_weight(name, 6, 256), normal(3, 2, 128)
    wanted = x.reshape(3, 256).astype(np.float64) @ float_weight(raw, name).T
    close(rule("linear", x, raw, type_name=name, shape=(2, 3)), wanted.reshape(3, 2, 3), 1e-4)


@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_embed_and_ids_outside_the_table(name: str) -> None:
    raw = raw_weight(name, 6, 256)
    ids = np.array([5, 0, 3, -1, 99], np.int32)
    close(rule("embed", ids, raw, type_name=name), float_weight(raw, name)[[5, 0, 3, 0, 5]], 1e-6)


def test_bias_of_rows_with_a_shape() -> None:
    x, weight = normal(3, 2, 4), normal(8)
    close(rule("bias", x, weight), x + weight.reshape(2, 4))


# ------------------------------------------------------------------------------------------ elementwise


@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(weighted: bool) -> None:
    x, weight = 3 * normal(3, 2, 8), normal(8)
    mean = (x.astype(np.float64) ** 2).mean(-1, keepdims=True)
    wanted = x / np.sqrt(mean + 0.1) * (weight if weighted else 1)
    close(rule("rms_norm", x, *([weight] if weighted else []), eps=0.1), wanted)


WIDE = np.linspace(-8, 8, 65, dtype=np.float32).reshape(5, 13)
DEEP = WIDE.astype(np.float64)


@pytest.mark.parametrize(
    ("name", "attributes", "wanted"),
    [
        ("scale", {"by": -2.5}, -2.5 * DEEP),
        ("gelu", {}, 0.5 * DEEP * (1 + np.tanh(np.sqrt(2 / np.pi) * (DEEP + 0.044715 * DEEP**3)))),
        ("silu", {}, DEEP / (1 + np.exp(-DEEP))),
        ("softcap", {"cap": 3.0}, 3 * np.tanh(DEEP / 3)),
        ("relu", {}, np.maximum(DEEP, 0)),
        ("tanh", {}, np.tanh(DEEP)),
    ],
)
def test_functions_of_one_value(name: str, attributes: dict[str, Any], wanted: Array) -> None:
    close(rule(name, WIDE, **attributes), wanted, 2e-6)


def test_add_and_mul() -> None:
    a, b = normal(3, 4), normal(3, 4)
    close(rule("add", a, b), a + b)
    close(rule("mul", a, b), a * b)


def test_a_row_without_a_finite_maximum_has_no_argmax() -> None:
    rows = np.array([[1, 3, 3], [np.nan, 1, 2], [0, np.inf, 1], [-np.inf, -np.inf, 0], [-np.inf] * 3], np.float32)
    np.testing.assert_array_equal(rule("argmax", rows), [1, -1, -1, 2, -1])


def test_last_row_is_a_row() -> None:
    x = normal(3, 2, 4)
    np.testing.assert_array_equal(rule("last_row", x), x[2:])


# ------------------------------------------------------------------------------------------ rope


@pytest.mark.parametrize("style", ["neox", "norm"])
@pytest.mark.parametrize("dims", [12, 8])
@pytest.mark.parametrize("position", [None, 0, 150])
@pytest.mark.parametrize("factors", [False, True])
def test_rope_turns_pairs(style: str, dims: int, position: int | None, factors: bool) -> None:
    """Pair i of row t turns by (position + t) base^(-2i/dims) scale / factor_i; what is beyond `dims` stays."""
    x = normal(4, 2, 12)
    divisors = RNG.uniform(1, 4, dims // 2).astype(np.float32) if factors else np.ones(dims // 2, np.float32)
    turns = 500.0 ** (-2 * np.arange(dims // 2) / dims) * 0.25 / divisors
    angles = ((position or 0) + np.arange(4))[:, None, None] * turns
    wanted = x.astype(np.float64)
    half = dims // 2
    first, second = (slice(0, half), slice(half, dims)) if style == "neox" else (slice(0, dims, 2), slice(1, dims, 2))
    a, b = x[..., first], x[..., second]
    wanted[..., first] = a * np.cos(angles) - b * np.sin(angles)
    wanted[..., second] = a * np.sin(angles) + b * np.cos(angles)
    positions = [] if position is None else [at(position)]
    given = divisors if factors else None
    found = rule("rope", x, *positions, factors=given, base=500.0, dims=dims, scale=0.25, style=style)
    close(found, wanted, 1e-4)


def test_yarn_slows_the_slow_pairs_alone() -> None:
    """ggml_rope_yarn: what turns less than once in the trained context is slowed, what turns 32 times is not."""
    dims, base, context, scale = 64, 10000.0, 4096, 0.25
    pair = np.arange(dims // 2)
    low, high = (dims * np.log(context / (n * 2 * np.pi)) / (2 * np.log(base)) for n in (32, 1))
    fast = 1 - np.clip((pair - np.floor(low)) / (np.ceil(high) - np.floor(low)), 0, 1)
    turns = base ** (-2 * pair / dims) * (fast + (1 - fast) * scale)
    x = np.concatenate([np.ones((5, 1, 32), np.float32), np.zeros((5, 1, 32), np.float32)], -1)
    angles = (70 + np.arange(5))[:, None, None] * turns
    wanted = 1.5 * np.concatenate([np.cos(angles), np.sin(angles)], -1)
    found = rule("rope", x, at(70), base=base, dims=dims, scale=scale, style="neox", yarn=context, magnitude=1.5)
    close(found, wanted, 2e-4)


# ------------------------------------------------------------------------------------------ caches and attention


@pytest.mark.parametrize(("position", "rows"), [(0, [0, 1, 2]), (4, [4, 5, 0]), (6 * 50 + 5, [5, 0, 1])])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_kv_update_goes_round_the_ring(position: int, rows: list[int], dtype: type) -> None:
    cache, new = normal(6, 2, 4).astype(dtype), normal(3, 2, 4)
    wanted = cache.copy()
    wanted[rows] = new
    found = rule("kv_update", cache, new, at(position))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, wanted)


def ring(history: Array, rows: int) -> Array:
    """The keys of every position in a ring of so many rows; what no position has reached holds something large."""
    found = np.full((rows, *history.shape[1:]), 1e3, np.float32)
    for position, row in enumerate(history):
        found[position % rows] = row
    return found


def attention_reference(q: Array, keys: Array, values: Array, window: int, scale: float, cap: float) -> Array:
    """The last `len(q)` positions of a sequence attend to it; every loop as the definition says it."""
    start = len(keys) - len(q)
    group = q.shape[1] // keys.shape[1]
    result = np.zeros((*q.shape[:2], values.shape[-1]))
    for t, head in np.ndindex(*q.shape[:2]):
        seen = slice(max(0, start + t - window + 1) if window else 0, start + t + 1)
        scores = keys[seen, head // group].astype(np.float64) @ q[t, head] * scale
        if cap:
            scores = cap * np.tanh(scores / cap)
        weights = np.exp(scores - scores.max())
        result[t, head] = weights / weights.sum() @ values[seen, head // group]
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "tokens", "rows", "window"),
    [
        (5, 5, 5, 0),  # a whole sequence
        (5, 5, 32, 0),  # the ring is longer than the sequence
        (29, 1, 32, 0),  # decode
        (29, 3, 32, 0),  # a chunk
        (5, 5, 8, 4),  # the window is shorter than the call
        (3, 3, 8, 4),  # the sequence is shorter than the window
        (4, 1, 4, 4),  # the first position leaves the window with the next token
        (5, 1, 4, 4),  # it has left
        (29, 1, 4, 4),  # the ring is no longer than the window, and wrapped
        (29, 3, 6, 4),  # a chunk in a wrapped ring with no row to spare
        (32, 3, 8, 4),  # the end of the ring lies within the chunk
        (33, 3, 8, 4),
        (29, 3, 32, 1),  # each position sees itself alone
    ],
)
@pytest.mark.parametrize("cap", [0.0, 2.0])
def test_attention_over_a_ring(length: int, tokens: int, rows: int, window: int, cap: float) -> None:
    q, keys, values = normal(tokens, 4, 8), normal(length, 2, 8), normal(length, 2, 6)
    wanted = attention_reference(q, keys, values, window, 0.7, cap)
    position = at(length - tokens)
    found = rule("attention", q, ring(keys, rows), ring(values, rows), position, cap=cap, scale=0.7, window=window)
    close(found, wanted, 2e-5)
    if length == tokens == rows:
        close(rule("attention", q, keys, values, cap=cap, scale=0.7, window=window), wanted, 2e-5)


def test_attention_that_looks_ahead() -> None:
    """An encoder's attention sees the later positions too, within the window to both sides if it has one."""
    q, keys, values = normal(7, 4, 8), normal(7, 2, 8), normal(7, 2, 6)
    scores = np.einsum("tgrd,sgd->tgrs", q.reshape(7, 2, 2, 8).astype(np.float64), keys) * 0.7
    distance = np.arange(7) - np.arange(7)[:, None]
    for window, ahead, seen in ((0, 7, distance < 8), (3, 2, np.abs(distance) < 3)):
        weights = np.where(seen[:, None, None], np.exp(scores), 0)
        weights /= weights.sum(-1, keepdims=True)
        wanted = np.einsum("tgrs,sgd->tgrd", weights, values).reshape(7, 4, 6)
        close(rule("attention", q, keys, values, scale=0.7, window=window, ahead=ahead), wanted, 2e-5)


# ------------------------------------------------------------------------------------------ convolutions


def test_a_short_convolution_goes_on_from_its_state() -> None:
    x, kernel = normal(7, 5), normal(5, 4)
    padded = np.concatenate([np.zeros((3, 5)), x])
    wanted = np.stack([(padded[t : t + 4].T * kernel).sum(1) for t in range(7)])
    close(np.asarray(RULES["short_conv"](jnp.asarray(x), kernel=jnp.asarray(kernel))), wanted)
    state, found = np.zeros((3, 5), np.float32), []
    for start, end in ((0, 1), (1, 2), (2, 7)):  # calls shorter and longer than the state
        found.append(rule("short_conv", x[start:end], state, kernel))
        state = rule("conv_update", state, x[start:end])
        np.testing.assert_array_equal(state, padded[end : end + 3])
    close(np.concatenate(found), wanted)


# ------------------------------------------------------------------------------------------ experts


def test_route_and_mix() -> None:
    logits, x = 2 * normal(3, 6), normal(3, 2, 4)
    experts = np.argsort(-logits, axis=-1, kind="stable")[:, :2].astype(np.int32)
    np.testing.assert_array_equal(rule("top_k", logits, k=2), experts)
    chosen = np.take_along_axis(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), experts, -1)
    close(rule("route", logits, experts, by=2.5, normalize=0), 2.5 * chosen)
    shares = rule("route", logits, experts, by=1.0, normalize=1)
    close(shares, chosen / chosen.sum(-1, keepdims=True))
    close(rule("mix", x, shares), (x * shares[..., None]).sum(1))


def test_equal_logits_choose_the_lower_expert() -> None:
    logits = np.array([[1, 2, 2, 0, 2]], np.float32)
    np.testing.assert_array_equal(rule("top_k", logits, k=2), [[1, 2]])


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHT_TYPES)
def test_expert_linear_of_rows_or_of_each_experts_own(name: str) -> None:
    raw = raw_weight(name, 4 * 3, 256).reshape(4, 3, -1)
    matrices = float_weight(raw.reshape(12, -1), name).reshape(4, 3, 256)
    experts = np.array([[3, 0], [1, 1]], np.int32)
    shared, own = normal(2, 256), normal(2, 2, 256)
    wanted = np.einsum("tc,tkrc->tkr", shared.astype(np.float64), matrices[experts])
    close(rule("expert_linear", shared, experts, raw, type_name=name), wanted, 1e-4)
    wanted = np.einsum("tkc,tkrc->tkr", own.astype(np.float64), matrices[experts])
    close(rule("expert_linear", own, experts, raw, type_name=name), wanted, 1e-4)
    gains = normal(4)
    close(rule("expert_gain", own, experts, gains), own * gains[experts][..., None])


# ------------------------------------------------------------------------------------------ the rest


def test_layer_norm() -> None:
    x, weight, bias = 3 * normal(3, 8) + 5, normal(8), normal(8)
    deep = x.astype(np.float64)
    wanted = (deep - deep.mean(-1, keepdims=True)) / np.sqrt(deep.var(-1, keepdims=True) + 0.1) * weight
    close(rule("layer_norm", x, weight, eps=0.1), wanted)
    close(rule("layer_norm", x, weight, bias, eps=0.1), wanted + bias)


def test_parts_gains_and_rows() -> None:
    x, weight, table = normal(3, 12), normal(12), normal(2, 12)
    np.testing.assert_array_equal(rule("half", x, number=0), x[:, :6])
    np.testing.assert_array_equal(rule("half", x, number=1), x[:, 6:])
    np.testing.assert_array_equal(rule("part", x, start=4, shape=(3, 2)), x[:, 4:10].reshape(3, 3, 2))
    close(rule("gain", x, weight), x * weight)
    close(rule("gain", x, weight[:1]), x * weight[0])
    close(rule("gain", x.reshape(3, 3, 4), weight[:4]), x.reshape(3, 3, 4) * weight[:4])
    close(rule("add_row", x, table, row=1), x + table[1])


def test_pool() -> None:
    x = normal(5, 4)
    close(rule("pool", x, kind=1), x.astype(np.float64).mean(0, keepdims=True))
    np.testing.assert_array_equal(rule("pool", x, kind=2), x[:1])
    np.testing.assert_array_equal(rule("pool", x, kind=3), x[4:])


def test_positions() -> None:
    tokens = np.array([9, 9, 9], np.int32)
    np.testing.assert_array_equal(rule("positions", tokens), [0, 1, 2])
    np.testing.assert_array_equal(rule("positions", tokens, at(7)), [7, 8, 9])


def test_every_operation_of_the_graph_has_a_rule() -> None:
    assert set(RULES) == set(OPS)
