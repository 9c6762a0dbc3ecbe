"""What the grid types share: groups of weights that an index into a grid names, and bits that choose their signs.

The entries of a grid are 16 bits wide (see `frontend.ggml_grids`). A block is handled as 8 i64, one for each 32
weights, in which a multishift finds eight weights of each.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....frontend.ggml_grids import grid, levels
from ..emit import I8, I32, I64, Emitter, Value, const, vec
from .quant import Part, scaled, spread

BLOCK = 256
"""Weights in a block of every grid type."""
OFFSET = 128
"""What is added to the weights of types with signs."""
OFFSET_OF_DELTAS = 9
"""What is added to eight times the weights of types with deltas."""


def parts(scales: int) -> tuple[Part, ...]:
    """Part n holds the n-th eight of each 32 weights, in a block that `scales` lanes scale."""
    starts = [tuple(range(8 * n, BLOCK, 32)) for n in range(4)]
    return tuple(Part(part, spread(*(start * scales // BLOCK for start in part))) for part in starts)


def signed(e: Emitter, name: str, indices: Sequence[Value], signs: Value, spacing: int) -> tuple[Value, ...]:
    """The parts, of a type with signs: bit spacing * n + k of the i64 says that weight k of the n-th eight is negative.

    `indices` are 32 i16 that name eight weights each, or twice 32 that name four, first of the lower 16 of each 32.
    """
    bits = len(indices) + 1
    starts = [[spacing * n + k for k in range(8)] for n in range(4)]
    chosen = [*levels(name), *([0] * (2**bits - len(levels(name))))]
    values = [OFFSET + sign * level for sign in (1, -1) for level in chosen]
    return _parts(e, name, indices, [e.multishift(signs, at, bits) for at in starts], values)


def ternary(e: Emitter, name: str, indices: Value, negative: Sequence[Value]) -> tuple[Value, ...]:
    """The parts, of a type with deltas: bit 2 of the bytes of `negative` is set where the delta is."""
    values = [OFFSET_OF_DELTAS + 8 * level + delta for delta in (1, -1) for level in (*levels(name), 0)]
    return _parts(e, name, [indices], negative, values)


def _parts(
    e: Emitter, name: str, indices: Sequence[Value], choices: Sequence[Value], values: Sequence[int]
) -> tuple[Value, ...]:
    """Each byte is one of `values`: the field in the grid's entry chooses in a half of them, and `choices` the half."""
    width, low = 2 * len(indices), len(values) // 2 - 1
    entries = [e.pick(grid(name), i) for i in indices]
    result: list[Value] = []
    for n, choice in enumerate(choices):
        at = 8 * width * n
        fields = e.multishift(entries[at // 64], [at % 64 + width * k for k in range(8)])
        result.append(e.look_up_modulo(values, e.merge(low, fields, choice)))
    return tuple(result)


def quads(e: Emitter, values: Value) -> Value:
    """Eight numbers as i64."""
    return e.zext(values, vec(I64, 8))


def sevens(e: Emitter, words: Value) -> Value:
    """The four numbers of 7 bits in the lower 28 of each i32, as the bytes of an i32."""
    kind = words.type
    low, high = (e.and_(words, const(kind, mask)) for mask in (0x3FFF, 0x3FFF << 14))
    pairs = e.or_(low, e.shl(high, const(kind, 2)))
    low, high = (e.and_(pairs, const(kind, mask)) for mask in (0x7F007F, 0x7F007F << 7))
    return e.or_(low, e.shl(high, const(kind, 1)))


def even(e: Emitter, signs: Value) -> Value:
    """Words whose bytes hold seven bits, with the eighth that makes the number of set ones even."""
    bytes_ = e.bitcast(signs, vec(I8, signs.type.count * signs.type.element.width // 8))
    return e.bitcast(e.or_(bytes_, e.shl(e.count_bits(bytes_), const(bytes_.type, 7))), signs.type)


def nibbles(e: Emitter, bytes_: Value) -> Value:
    """The low and the high nibble of each byte as neighbours, i32."""
    kind = vec(I32, 2 * bytes_.type.count)
    twice = e.zext(e.take(bytes_, [n // 2 for n in range(kind.count)]), kind)
    return e.and_(e.lshr(twice, const(kind, [0, 4] * bytes_.type.count)), const(kind, 15))


def odd(e: Emitter, numbers: Value) -> Value:
    """2 n + 1: the scale that n stands for."""
    return e.or_(e.shl(numbers, const(numbers.type, 1)), const(numbers.type, 1))


def half(e: Emitter, bits: Value, by: float, lanes: int, factors: Value | None) -> Value:
    """A half times `by`, in so many lanes, times the factors."""
    d = e.half_to_float(bits)
    return scaled(e, e.splat(e.fmul(d, const(d.type, by)), lanes), factors)
