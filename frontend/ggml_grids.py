"""The grids of the IQ1, IQ2 and IQ3 types: the few groups of weights that a block can name, as gguf-py has them."""

from __future__ import annotations

import functools


@functools.cache
def grid(name: str) -> tuple[int, ...]:
    """The entries of the type's grid as 16-bit numbers, the first weight lowest.

    An entry holds eight weights of 2 bits (IQ1, IQ2) or four of 4 bits (IQ3), which are indices of `levels`.
    """
    packed = bytes.fromhex(_quant(name).grid_hex.decode())
    return tuple(int.from_bytes(packed[i : i + 2], "little") for i in range(0, len(packed), 2))


@functools.cache
def levels(name: str) -> tuple[int, ...]:
    """What the numbers in the entries of the type's grid stand for."""
    return tuple(_quant(name).grid_map)


def _quant(name: str):
    import gguf.quants  # here: only who meets such a type needs it

    return getattr(gguf.quants, name.upper())
