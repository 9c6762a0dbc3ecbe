"""What each operation of the graph computes, in JAX: the meaning that every backend must give.

Rows may be symbolic (`T` tokens, `S` rows of a cache). A rule takes the operands as arrays, then the attributes.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...graph.rope import frequencies
from .dequantize import dequantize, quantize_q8_0

HIGHEST = lax.Precision.HIGHEST


def embed(tokens: Array, table: Array, *, type_name: str) -> Array:
    """Rows of the table; an id out of range reads the nearest row there is."""
    ids = lax.clamp(0, tokens, table.shape[0] - 1)
    return dequantize(table[ids], type_name)


def linear(x: Array, weight: Array, *, type_name: str, shape: tuple[int, ...]) -> Array:
    """`x W^T` with every row of the result in `shape`."""
    rows = x.reshape(x.shape[0], -1)
    y = lax.dot_general(rows, dequantize(weight, type_name), (((1,), (1,)), ((), ())), precision=HIGHEST)
    return y.reshape(x.shape[0], *shape)


def bias(x: Array, weight: Array) -> Array:
    """`x + weight` in every row."""
    return x + lax.broadcast_in_dim(weight.reshape(x.shape[1:]), x.shape, tuple(range(1, x.ndim)))


def rms_norm(x: Array, weight: Array | None = None, *, eps: float) -> Array:
    """Over the last axis."""
    square = jnp.sum(x * x, -1) / x.shape[-1]
    y = x * lax.broadcast_in_dim(lax.rsqrt(square + eps), x.shape, tuple(range(x.ndim - 1)))
    return y if weight is None else y * lax.broadcast_in_dim(weight, x.shape, (x.ndim - 1,))


def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float) -> Array:
    """Over the last axis, with the biased variance."""
    mean = jnp.sum(x, -1) / x.shape[-1]
    rows = tuple(range(x.ndim - 1))
    centred = x - lax.broadcast_in_dim(mean, x.shape, rows)
    variance = jnp.sum(centred * centred, -1) / x.shape[-1]
    y = centred * lax.broadcast_in_dim(lax.rsqrt(variance + eps), x.shape, rows)
    y = y if weight is None else y * lax.broadcast_in_dim(weight, x.shape, (x.ndim - 1,))
    return y if bias is None else y + lax.broadcast_in_dim(bias, x.shape, (x.ndim - 1,))


def add_row(x: Array, table: Array, *, row: int) -> Array:
    """One row of the table added to every row."""
    return bias(x, lax.index_in_dim(table, row, keepdims=False))


def gain(x: Array, weight: Array) -> Array:
    """Times a number, or times a tensor of the shape of a row's end."""
    if weight.shape == (1,):
        return x * lax.broadcast_in_dim(weight.reshape(()), x.shape, ())
    return x * lax.broadcast_in_dim(weight, x.shape, tuple(range(x.ndim - weight.ndim, x.ndim)))


def part(x: Array, *, shape: tuple[int, ...], start: int) -> Array:
    """Elements of each row from `start` on, in a shape."""
    rows = x.reshape(x.shape[0], -1)
    return lax.slice_in_dim(rows, start, start + math.prod(shape), axis=1).reshape(x.shape[0], *shape)


def half(x: Array, *, number: int) -> Array:
    """The first or second half of the last axis."""
    size = x.shape[-1] // 2
    return lax.slice_in_dim(x, number * size, (number + 1) * size, axis=x.ndim - 1)


def positions(tokens: Array, position: Array | None = None) -> Array:
    """The position of each token."""
    found = lax.iota(jnp.int32, tokens.shape[0])
    return found if position is None else found + position


def top_k(logits: Array, *, k: int) -> Array:
    """Numbers of the k largest, largest first, ties to the lower number."""
    numbers = lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    # lax.top_k would leave a function in the module
    _, found = lax.sort_key_val(-logits, numbers, dimension=1, is_stable=True)
    return lax.slice_in_dim(found, 0, k, axis=1)


def route(logits: Array, experts: Array, *, by: float, normalize: int) -> Array:
    """The share of each chosen expert; llama-graph.cpp, build_moe_ffn."""
    shares = _at(jax.nn.softmax(logits, -1), experts)
    if normalize:
        shares = shares / jnp.maximum(jnp.sum(shares, -1, keepdims=True), 6.103515625e-5)
    return shares * by


def expert_linear(x: Array, experts: Array, weight: Array, *, type_name: str) -> Array:
    """`x W^T` for each chosen expert's matrix; what the others give is never mixed in, not even times zero."""
    count, rows = weight.shape[:2]
    flat = dequantize(weight.reshape(count * rows, -1), type_name)
    matrices = flat.reshape(count, rows, flat.shape[-1])
    if x.ndim == 2:
        return _at(jnp.einsum("tc,nrc->tnr", x, matrices, precision=HIGHEST), experts)
    return jax.vmap(_at)(jnp.einsum("tkc,nrc->tknr", x, matrices, precision=HIGHEST), experts)


def _at(values: Array, numbers: Array) -> Array:
    """`values[t, numbers[t]]` for every t; jnp.take_along_axis would leave a function in the module."""
    return jax.vmap(lambda row, number: row[number])(values, numbers)


def expert_gain(x: Array, experts: Array, weight: Array) -> Array:
    """Times each chosen expert's number."""
    return x * weight[experts][:, :, None]


def mix(x: Array, shares: Array) -> Array:
    """The sum over the chosen experts, in their order."""
    total = x[:, 0] * shares[:, :1]
    for n in range(1, x.shape[1]):
        total = total + x[:, n] * shares[:, n : n + 1]
    return total


def short_conv(x: Array, state: Array | None = None, kernel: Array | None = None) -> Array:
    """`y[t, c] = sum_k kernel[c, k] x[t - taps + 1 + k, c]`, rows before the first being the state's, or zeros."""
    assert kernel is not None
    taps = kernel.shape[1]
    before = jnp.zeros((taps - 1, x.shape[1]), x.dtype) if state is None else state
    rows = lax.concatenate([before, x], 0)
    total = jnp.zeros_like(x)
    for k in range(taps):
        column = lax.broadcast_in_dim(kernel[:, k], x.shape, (1,))
        total = total + lax.dynamic_slice_in_dim(rows, k, x.shape[0]) * column
    return total


def conv_update(state: Array, x: Array) -> Array:
    """The last rows of state and x together."""
    return lax.dynamic_slice_in_dim(lax.concatenate([state, x], 0), x.shape[0], state.shape[0])


def pool(x: Array, *, kind: int) -> Array:
    """Mean of all rows (1), the first (2) or the last (3), as an array of one row."""
    if kind == 1:
        return lax.broadcast_in_dim(jnp.sum(x, 0) / x.shape[0], (1, *x.shape[1:]), tuple(range(1, x.ndim)))
    return last_row(x) if kind == 3 else lax.slice_in_dim(x, 0, 1)


def rope(
    x: Array,
    position: Array | None = None,
    factors: Array | None = None,
    *,
    base: float,
    dims: int,
    magnitude: float,
    scale: float,
    style: str,
    yarn: int,
) -> Array:
    """Rotates pairs of the first `dims` elements of each head; ggml/src/ggml-cpu/ops.cpp, rope.

    `neox` pairs element i with i + dims/2, `norm` pairs 2i with 2i + 1.
    """
    half = dims // 2
    positions = lax.iota(jnp.int32, x.shape[0])
    if position is not None:
        positions = positions + position
    turns = jnp.asarray(frequencies(base, dims, scale, yarn))
    if factors is not None:
        turns = turns / factors
    shape = (x.shape[0], x.shape[1], half)
    angles = lax.broadcast_in_dim(positions.astype(jnp.float32), shape, (0,)) * lax.broadcast_in_dim(turns, shape, (2,))
    cos, sin = jnp.cos(angles) * magnitude, jnp.sin(angles) * magnitude
    if style == "neox":
        a, b = lax.slice_in_dim(x, 0, half, axis=2), lax.slice_in_dim(x, half, dims, axis=2)
        turned = [a * cos - b * sin, a * sin + b * cos]
    else:
        a, b = lax.slice_in_dim(x, 0, dims, 2, axis=2), lax.slice_in_dim(x, 1, dims, 2, axis=2)
        # neighbours meet by padding each other's places: an axis can't be split beside a dynamic size
        spread = [[(0, 0, 0), (0, 0, 0), (n, 1 - n, 1)] for n in range(2)]
        zero = jnp.float32(0)
        turned = [lax.pad(a * cos - b * sin, zero, spread[0]) + lax.pad(a * sin + b * cos, zero, spread[1])]
    rest = [lax.slice_in_dim(x, dims, x.shape[2], axis=2)] if dims < x.shape[2] else []
    return lax.concatenate([*turned, *rest], 2)


def norm_linear(x: Array, norm: Array, weight: Array, *, eps: float, shape: tuple[int, ...], type_name: str) -> Array:
    """The product of the norm."""
    return linear(rms_norm(x, norm, eps=eps), weight, shape=shape, type_name=type_name)


def glu(x: Array, gate: Array, up: Array, *, act: str, shape: tuple[int, ...], type_name: str) -> Array:
    """`act(x gate^T) * (x up^T)`; Shazeer, GLU Variants Improve Transformer, 2020."""
    gated = RULES[act](linear(x, gate, shape=shape, type_name=type_name))
    return gated * linear(x, up, shape=shape, type_name=type_name)


def norm_glu(
    x: Array, norm: Array, gate: Array, up: Array, *, act: str, eps: float, shape: tuple[int, ...], type_name: str
) -> Array:
    """`glu` of the norm."""
    return glu(rms_norm(x, norm, eps=eps), gate, up, act=act, shape=shape, type_name=type_name)


def norm_add(a: Array, x: Array, norm: Array, *, eps: float) -> Array:
    """x plus the norm of a."""
    return x + rms_norm(a, norm, eps=eps)


def norm_rope(
    x: Array,
    position: Array | None = None,
    norm: Array | None = None,
    factors: Array | None = None,
    *,
    eps: float,
    **turning: Any,
) -> Array:
    """The rotation of the norm of each head."""
    return rope(rms_norm(x, norm, eps=eps), position, factors, **turning)


def attention(
    q: Array, k: Array, v: Array, position: Array | None = None, *, ahead: int, cap: float, scale: float, window: int
) -> Array:
    """Attention of `q (T, heads, d)` over a ring of keys `(S, kv_heads, d)`.

    Row s of the ring holds the latest position before `position + T` that equals s modulo S; a negative one means that
    the row is empty. `window` 0 sees every earlier position, W the last W with the current one; `ahead` is how many
    later ones are seen.
    """
    tokens, heads, dim = q.shape
    rows, kv_heads, _ = k.shape
    k, v = _cached(k), _cached(v)
    start = jnp.int32(0) if position is None else position
    queries = start + lax.iota(jnp.int32, tokens)
    last = start + tokens - 1
    keys = last - lax.rem(last - lax.iota(jnp.int32, rows) + rows, jnp.int32(rows))
    seen = (keys[None] >= 0) & (keys[None] - queries[:, None] <= ahead)
    if window:
        seen = seen & (keys[None] > queries[:, None] - window)
    q = q.reshape(tokens, kv_heads, heads // kv_heads, dim)
    scores = jnp.einsum("tgrd,sgd->gtrs", q, k, precision=HIGHEST) * scale
    if cap:
        scores = cap * jnp.tanh(scores / cap)
    seen = lax.broadcast_in_dim(seen, scores.shape, (1, 3))
    scores = lax.select(seen, scores, lax.full_like(scores, -jnp.inf))
    weights = jax.nn.softmax(scores, -1)
    out = jnp.einsum("gtrs,sgd->tgrd", weights, v, precision=HIGHEST)
    return out.reshape(tokens, heads, v.shape[-1])


def _cached(rows: Array) -> Array:
    """Rows of a cache as float32; bytes are those of Q8_0 blocks."""
    if rows.dtype != jnp.int8:
        return rows.astype(jnp.float32)
    return dequantize(lax.bitcast_convert_type(rows, jnp.uint8), "q8_0")


def kv_update(cache: Array, rows: Array, position: Array) -> Array:
    """Row t goes to row `(position + t) mod S` of the ring."""
    if cache.dtype == jnp.int8:
        rows = lax.bitcast_convert_type(quantize_q8_0(rows), jnp.int8)
    at = lax.rem(position + lax.iota(jnp.int32, rows.shape[0]), jnp.int32(cache.shape[0]))
    return cache.at[at].set(rows.astype(cache.dtype), mode="promise_in_bounds", unique_indices=True)


def last_row(x: Array) -> Array:
    """The last row alone, as an array of one row."""
    return lax.dynamic_slice_in_dim(x, x.shape[0] - 1, 1)


def argmax(x: Array) -> Array:
    """The number of the largest element of each row, the first of equals; -1 where it is no finite number."""
    numbers = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    # lax.argmax would leave a function in the module
    most = jnp.max(x, 1)
    is_most = x == lax.broadcast_in_dim(most, x.shape, (0,))
    first = jnp.min(lax.select(is_most, numbers, lax.full_like(numbers, x.shape[1])), 1)
    return lax.select(lax.is_finite(most), first, lax.full_like(first, -1))


def gelu(x: Array) -> Array:
    """The tanh form, the only one that llama.cpp's graphs use."""
    return 0.5 * x * (1.0 + jnp.tanh(0.79788456080286535587989211986876 * x * (1.0 + 0.044715 * x * x)))


RULES: dict[str, Callable[..., Any]] = {
    "embed": embed,
    "linear": linear,
    "bias": bias,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "add_row": add_row,
    "gain": gain,
    "part": part,
    "half": half,
    "positions": positions,
    "rope": rope,
    "norm_linear": norm_linear,
    "glu": glu,
    "norm_glu": norm_glu,
    "norm_add": norm_add,
    "norm_rope": norm_rope,
    "attention": attention,
    "kv_update": kv_update,
    "short_conv": short_conv,
    "conv_update": conv_update,
    "pool": pool,
    "top_k": top_k,
    "route": route,
    "expert_linear": expert_linear,
    "expert_gain": expert_gain,
    "mix": mix,
    "last_row": last_row,
    "argmax": argmax,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "scale": lambda x, *, by: x * by,
    "gelu": gelu,
    "silu": lambda x: x * jax.nn.sigmoid(x),
    "relu": lambda x: lax.max(x, jnp.zeros_like(x)),
    "tanh": lambda x: jnp.tanh(x),
    "softcap": lambda x, *, cap: cap * jnp.tanh(x / cap),
}
