"""The standard StableHLO form of each type: raw block bytes to float32, in `jax.numpy`.

Formulas: ggml/src/ggml-quants.c, `dequantize_row_*`. Every function takes bytes `uint8 (..., blocks, block_bytes)` and
gives `float32 (..., blocks, block_elements)`.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from ...frontend.ggml_types import by_name


def _half(block: Array, at: int) -> Array:
    """The float16 at byte `at` of each block, as float32 with a last axis of one."""
    return lax.bitcast_convert_type(_sixteen_bits(block, at), jnp.float16).astype(jnp.float32)


def _sixteen_bits(block: Array, at: int) -> Array:
    """The uint16 at byte `at` of each block, with a last axis of one."""
    # two bytes joined by arithmetic: XLA's shape refinement knows no bitcast that drops an axis
    pair = block[..., at : at + 2].astype(jnp.uint16)
    return pair[..., :1] | (pair[..., 1:] << 8)


def _signed(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.int8).astype(jnp.float32)


def _nibbles(x: Array) -> Array:
    """Low nibbles of all bytes, then high nibbles."""
    return jnp.concatenate([x & 15, x >> 4], -1)


def _f16(block: Array) -> Array:
    return _half(block, 0)


def _bf16(block: Array) -> Array:
    return lax.bitcast_convert_type(_sixteen_bits(block, 0).astype(jnp.uint32) << 16, jnp.float32)


def _q8_0(block: Array) -> Array:
    return _half(block, 0) * _signed(block[..., 2:34])


def _q5_0(block: Array) -> Array:
    bits = (block[..., 2:6, None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
    fifth = bits.reshape(*block.shape[:-1], 32)
    q = _nibbles(block[..., 6:22]) | (fifth << 4)
    return _half(block, 0) * (q.astype(jnp.float32) - 16.0)


def _k_scales(packed: Array) -> tuple[Array, Array]:
    """The 6-bit scales and minimums of Q4_K: 12 bytes to two times 8 numbers."""
    low, high, rest = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = jnp.concatenate([low & 63, (rest & 15) | ((low >> 6) << 4)], -1)
    minimum = jnp.concatenate([high & 63, (rest >> 4) | ((high >> 6) << 4)], -1)
    return scale.astype(jnp.float32), minimum.astype(jnp.float32)


def _q4_k(block: Array) -> Array:
    d, dmin = _half(block, 0), _half(block, 2)
    scale, minimum = _k_scales(block[..., 4:16])
    bytes_ = block[..., 16:144].reshape(*block.shape[:-1], 4, 32)
    q = jnp.stack([bytes_ & 15, bytes_ >> 4], -2).reshape(*block.shape[:-1], 8, 32).astype(jnp.float32)
    value = (d * scale)[..., None] * q - (dmin * minimum)[..., None]
    return value.reshape(*block.shape[:-1], 256)


def _q6_k(block: Array) -> Array:
    low = block[..., 0:128].reshape(*block.shape[:-1], 2, 64)
    high = block[..., 128:192].reshape(*block.shape[:-1], 2, 1, 32)
    low = jnp.concatenate([low & 15, low >> 4], -1).reshape(*block.shape[:-1], 2, 4, 32)
    shifts = jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None]
    q = (low | (((high >> shifts) & 3) << 4)).astype(jnp.float32) - 32.0
    scale = _half(block, 208) * _signed(block[..., 192:208])
    value = scale[..., None] * q.reshape(*block.shape[:-1], 16, 16)
    return value.reshape(*block.shape[:-1], 256)


_DEQUANTIZE: dict[str, Callable[[Array], Array]] = {
    "f16": _f16,
    "bf16": _bf16,
    "q8_0": _q8_0,
    "q5_0": _q5_0,
    "q4_k": _q4_k,
    "q6_k": _q6_k,
}


def dequantize(raw: Array, type_name: str) -> Array:
    """Raw rows of a weight to float32.

    Args:
        raw: `uint8 (rows, row_bytes)`, or for f32 `float32 (rows, columns)`, which comes back as it is.
        type_name: the GGML type.

    Returns:
        `float32 (rows, columns)`.
    """
    if type_name == "f32":
        return raw
    size = by_name(type_name).block_bytes
    blocks = raw.reshape(raw.shape[0], raw.shape[1] // size, size)
    return _DEQUANTIZE[type_name](blocks).reshape(raw.shape[0], -1)
