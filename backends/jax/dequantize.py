"""The standard StableHLO form of each type: raw block bytes to float32, in `jax.numpy`.

Formulas: ggml/src/ggml-quants.c, `dequantize_row_*`. Every function takes bytes `uint8 (..., blocks, block_bytes)` and
gives `float32 (..., blocks, block_elements)`.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from ...frontend.ggml_grids import grid, levels
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


def _joined(parts: Array, axes: int) -> Array:
    """The last `axes` axes as one."""
    return parts.reshape(*parts.shape[:-axes], -1)


def _look_up(table: tuple[int, ...], index: Array) -> Array:
    return jnp.asarray(table, jnp.float32).at[index.astype(jnp.int32)].get(mode="promise_in_bounds")


def _q4_0(block: Array) -> Array:
    return _half(block, 0) * (_nibbles(block[..., 2:18]).astype(jnp.float32) - 8.0)


def _q4_1(block: Array) -> Array:
    return _half(block, 0) * _nibbles(block[..., 4:20]).astype(jnp.float32) + _half(block, 2)


def _five_bits(fifth: Array, nibbles: Array) -> Array:
    """Numbers of five bits: 4 bytes of fifth bits and 16 of nibbles to 32 float32."""
    bits = (fifth[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
    return (_nibbles(nibbles) | (_joined(bits, 2) << 4)).astype(jnp.float32)


def _q5_0(block: Array) -> Array:
    return _half(block, 0) * (_five_bits(block[..., 2:6], block[..., 6:22]) - 16.0)


def _q5_1(block: Array) -> Array:
    return _half(block, 0) * _five_bits(block[..., 4:8], block[..., 8:24]) + _half(block, 2)


def _q8_0(block: Array) -> Array:
    return _half(block, 0) * _signed(block[..., 2:34])


def _bit_pairs(bytes_: Array) -> Array:
    """64 bytes to 256 numbers: pair j of byte 32n + l is element 128n + 32j + l."""
    halves = bytes_.reshape(*bytes_.shape[:-1], 2, 1, 32)
    return _joined((halves >> jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None]) & 3, 3)


def _grouped(scale: Array, q: Array, minimum: Array | None = None) -> Array:
    """scale * q - minimum, where each scale (and minimum) belongs to as many neighbours as there are for it."""
    scaled = scale[..., None] * q.astype(jnp.float32).reshape(*scale.shape, -1)
    return _joined(scaled if minimum is None else scaled - minimum[..., None], 2)


def _q2_k(block: Array) -> Array:
    scale, minimum = ((block[..., 0:16] >> shift & 15).astype(jnp.float32) for shift in (0, 4))
    return _grouped(_half(block, 80) * scale, _bit_pairs(block[..., 16:80]), _half(block, 82) * minimum)


def _q3_k(block: Array) -> Array:
    third = _joined((block[..., None, 0:32] >> jnp.arange(8, dtype=jnp.uint8)[:, None]) & 1, 2)
    q = (_bit_pairs(block[..., 32:96]) | (third << 2)).astype(jnp.float32) - 4.0
    high = _joined((block[..., None, 104:108] >> jnp.arange(0, 8, 2, dtype=jnp.uint8)[:, None]) & 3, 2)
    scale = (_nibbles(block[..., 96:104]) | (high << 4)).astype(jnp.float32) - 32.0
    return _grouped(_half(block, 108) * scale, q)


def _k_scales(packed: Array) -> tuple[Array, Array]:
    """The 6-bit scales and minimums of Q4_K and Q5_K: 12 bytes to two times 8 numbers."""
    low, high, rest = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scale = jnp.concatenate([low & 63, (rest & 15) | ((low >> 6) << 4)], -1)
    minimum = jnp.concatenate([high & 63, (rest >> 4) | ((high >> 6) << 4)], -1)
    return scale.astype(jnp.float32), minimum.astype(jnp.float32)


def _k_nibbles(bytes_: Array) -> Array:
    """128 bytes to 256 numbers: of each 32 bytes first the low nibbles, then the high ones."""
    return _joined(_nibbles(bytes_.reshape(*bytes_.shape[:-1], 4, 32)), 2)


def _q4_k(block: Array) -> Array:
    scale, minimum = _k_scales(block[..., 4:16])
    return _grouped(_half(block, 0) * scale, _k_nibbles(block[..., 16:144]), _half(block, 2) * minimum)


def _q5_k(block: Array) -> Array:
    scale, minimum = _k_scales(block[..., 4:16])
    fifth = _joined((block[..., None, 16:48] >> jnp.arange(8, dtype=jnp.uint8)[:, None]) & 1, 2)
    q = _k_nibbles(block[..., 48:176]) | (fifth << 4)
    return _grouped(_half(block, 0) * scale, q, _half(block, 2) * minimum)


def _q6_k(block: Array) -> Array:
    low = _joined(_nibbles(block[..., 0:128].reshape(*block.shape[:-1], 2, 64)), 2)
    q = (low | (_bit_pairs(block[..., 128:192]) << 4)).astype(jnp.float32) - 32.0
    return _grouped(_half(block, 208) * _signed(block[..., 192:208]), q)


_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What nibbles stand for: ggml/src/ggml-common.h, kvalues_iq4nl and kvalues_mxfp4 (twice the value)."""


def _iq4_nl(block: Array) -> Array:
    return _half(block, 0) * _look_up(_IQ4, _nibbles(block[..., 2:18]))


def _iq4_xs(block: Array) -> Array:
    low = _joined((block[..., 4:8, None] >> jnp.arange(0, 8, 4, dtype=jnp.uint8)) & 15, 2)
    high = (_sixteen_bits(block, 2) >> jnp.arange(0, 16, 2, dtype=jnp.uint16)) & 3
    scale = (low.astype(jnp.uint16) | (high << 4)).astype(jnp.float32) - 32.0
    nibbles = _nibbles(block[..., 8:136].reshape(*block.shape[:-1], 8, 16))
    return _grouped(_half(block, 0) * scale, _look_up(_IQ4, nibbles))


def _mxfp4(block: Array) -> Array:
    exponent = block[..., 0:1].astype(jnp.uint32)
    subnormal = jnp.uint32(1 << 21) << (exponent & 1)
    bits = lax.select(exponent < 2, subnormal, (exponent - 1) << 23)  # jnp.where would be a call
    return lax.bitcast_convert_type(bits, jnp.float32) * _look_up(_E2M1, _nibbles(block[..., 1:17]))


def _trits(bytes_: Array, count: int) -> Array:
    """The first ternary digits of bytes / 256: all first digits, then all second ones and so on."""
    powers = jnp.asarray([3**n for n in range(count)], jnp.uint8)[:, None]
    fractions = (bytes_[..., None, :] * powers).astype(jnp.uint16)
    return _joined((fractions * 3) >> 8, 2)


def _tq1_0(block: Array) -> Array:
    digits = [_trits(block[..., 0:32], 5), _trits(block[..., 32:48], 5), _trits(block[..., 48:52], 4)]
    return _half(block, 52) * (jnp.concatenate(digits, -1).astype(jnp.float32) - 1.0)


def _tq2_0(block: Array) -> Array:
    return _half(block, 64) * (_bit_pairs(block[..., 0:64]).astype(jnp.float32) - 1.0)


def _numbers(block: Array, at: int, count: int, size: int) -> Array:
    """`count` unsigned numbers of `size` bytes from byte `at` of each block on."""
    dtype = {2: jnp.uint16, 4: jnp.uint32}[size]
    parts = block[..., at : at + count * size].reshape(*block.shape[:-1], count, size).astype(dtype)
    return functools.reduce(jnp.bitwise_or, (parts[..., n] << dtype(8 * n) for n in range(size)))


def _bits(numbers: Array, count: int, width: int, start: int = 0) -> Array:
    """`count` neighbouring fields of `width` bits of each number, lowest first, from bit `start` on."""
    dtype = numbers.dtype
    shifts = jnp.arange(start, start + count * width, width, dtype=dtype)
    return _joined((numbers[..., None] >> shifts) & dtype.type(2**width - 1), 2)


def _entries(name: str, index: Array) -> Array:
    """The weights in the entries of the type's grid, side by side."""
    entry = jnp.asarray(grid(name), jnp.uint16).at[index.astype(jnp.int32)].get(mode="promise_in_bounds")
    width = 2 if len(levels(name)) == 3 else 4
    return _look_up((*levels(name), 0), _bits(entry, 16 // width, width))


def _signed_by(signs: Array, magnitude: Array) -> Array:
    """The magnitudes, negative where their bit in the bytes of signs is set."""
    return (1.0 - 2.0 * _bits(signs, 8, 1).astype(jnp.float32)) * magnitude


def _even(signs: Array) -> Array:
    """Numbers of seven bits with the eighth that makes the number of set ones even."""
    return signs | (lax.population_count(signs) << 7)


def _odd(x: Array, scale: Array) -> Array:
    """x * (2 scale + 1)."""
    return x * (2.0 * scale.astype(jnp.float32) + 1.0)


def _iq2_xxs(block: Array) -> Array:
    groups = block[..., 2:66].reshape(*block.shape[:-1], 8, 8)
    rest = _numbers(_joined(groups[..., 4:8], 2), 0, 8, 4)
    q = _signed_by(_even(_bits(rest, 4, 7)), _entries("iq2_xxs", _joined(groups[..., 0:4], 2)))
    return _grouped(_odd(_half(block, 0) / 8, rest >> 28), q)


def _iq2_xs(block: Array) -> Array:
    words = _numbers(block, 2, 32, 2)
    q = _signed_by(_even(words >> 9), _entries("iq2_xs", words & 511))
    return _grouped(_odd(_half(block, 0) / 8, _bits(block[..., 66:74], 2, 4)), q)


def _iq2_s(block: Array) -> Array:
    index = block[..., 2:34].astype(jnp.uint16) | (_bits(block[..., 66:74], 4, 2).astype(jnp.uint16) << 8)
    q = _signed_by(block[..., 34:66], _entries("iq2_s", index))
    return _grouped(_odd(_half(block, 0) / 8, _bits(block[..., 74:82], 2, 4)), q)


def _iq3_xxs(block: Array) -> Array:
    rest = _numbers(block, 66, 8, 4)
    q = _signed_by(_even(_bits(rest, 4, 7)), _entries("iq3_xxs", block[..., 2:66]))
    return _grouped(_odd(_half(block, 0) / 4, rest >> 28), q)


def _iq3_s(block: Array) -> Array:
    index = block[..., 2:66].astype(jnp.uint16) | (_bits(block[..., 66:74], 8, 1).astype(jnp.uint16) << 8)
    q = _signed_by(block[..., 74:106], _entries("iq3_s", index))
    return _grouped(_odd(_half(block, 0), _bits(block[..., 106:110], 2, 4)), q)


def _eight_and_delta(name: str, index: Array, negative: Array) -> Array:
    """Eight times the weights in the grid's entries with their deltas, of which each serves as many neighbours."""
    q = 8.0 * _entries(name, index)
    delta = 1.0 - 2.0 * negative.astype(jnp.float32)
    return _joined(q.reshape(*delta.shape, -1) + delta[..., None], 2)


def _iq1_s(block: Array) -> Array:
    rest = _numbers(block, 34, 8, 2)
    q = _eight_and_delta("iq1_s", block[..., 2:34].astype(jnp.uint16) | (_bits(rest, 4, 3) << 8), rest >> 15)
    return _grouped(_odd(_half(block, 0) / 8, (rest >> 12) & 7), q)


def _iq1_m(block: Array) -> Array:
    rest, scales = _bits(block[..., 32:48], 2, 4).astype(jnp.uint16), _numbers(block, 48, 4, 2)
    q = _eight_and_delta("iq1_m", block[..., 0:32].astype(jnp.uint16) | ((rest & 7) << 8), rest >> 3)
    d = functools.reduce(jnp.bitwise_or, (scales[..., n : n + 1] >> 12 << 4 * n for n in range(4)))
    d = lax.bitcast_convert_type(d, jnp.float16).astype(jnp.float32)
    return _grouped(_odd(d / 8, _bits(scales, 4, 3)), q)


_DEQUANTIZE: dict[str, Callable[[Array], Array]] = {
    "f16": _f16,
    "bf16": _bf16,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq1_s": _iq1_s,
    "iq1_m": _iq1_m,
    "iq2_xxs": _iq2_xxs,
    "iq2_xs": _iq2_xs,
    "iq2_s": _iq2_s,
    "iq3_xxs": _iq3_xxs,
    "iq3_s": _iq3_s,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "mxfp4": _mxfp4,
    "tq1_0": _tq1_0,
    "tq2_0": _tq2_0,
}


def _int8(rows: Array) -> Array:
    """Whole rows: a float32 scale, then a byte for each weight."""
    return lax.bitcast_convert_type(_numbers(rows, 0, 1, 4), jnp.float32) * _signed(rows[..., 4:])


TYPES = ("f32", *_DEQUANTIZE, "int8")
"""The types that `dequantize` knows."""


def dequantize(raw: Array, type_name: str) -> Array:
    """Raw rows of a weight to float32.

    Args:
        raw: `uint8 (..., row_bytes)`, or for f32 `float32 (..., columns)`, which comes back as it is.
        type_name: the GGML type.

    Returns:
        `float32 (..., columns)`.
    """
    if type_name == "f32":
        return raw
    if type_name == "int8":
        return _int8(raw)
    size = by_name(type_name).block_bytes
    blocks = raw.reshape(*raw.shape[:-1], raw.shape[-1] // size, size)
    return _joined(_DEQUANTIZE[type_name](blocks), 2)


def quantize_q8_0(x: Array) -> Array:
    """Float32 rows, a multiple of 32 long, as the bytes of Q8_0 blocks; ggml-cpu/arch/x86/quants.c, quantize_row_q8_0:
    the scale is kept in float16, the integers are rounded by it in float32, to the nearest and ties to even."""
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // 32, 32)
    most = jnp.max(jnp.abs(blocks), -1, keepdims=True)
    factor = lax.select(most == 0, lax.full_like(most, 0.0), 127.0 / most)
    integers = lax.bitcast_convert_type(
        lax.round(blocks * factor, lax.RoundingMethod.TO_NEAREST_EVEN).astype(jnp.int8), jnp.uint8
    )
    scale = lax.bitcast_convert_type((most / 127.0).astype(jnp.float16), jnp.uint16)
    halves = [(scale >> shift).astype(jnp.uint8) for shift in (0, 8)]
    stored = [*halves, lax.bitcast_convert_type(integers, jnp.uint8)]
    return _joined(lax.concatenate(stored, integers.ndim - 1), 2)
