"""The grid types' blocks written byte by byte: what the fields mean, in every backend and in gguf-py's words.

Entry 0 of a grid has the least magnitude everywhere, entry 1 another one in its first weight (ggml/src/ggml-common.h).
"""

import jax
import numpy as np
import pytest
from ggufc.backends.jax.dequantize import dequantize
from ggufc.backends.native.target import Target
from ggufc.frontend.ggml_types import by_name

from .backends.native.blocks import dequantized
from .backends.native.test_kernels import each_target, run_embed

ONE = (0x3C00).to_bytes(2, "little")
GROUP = ((3 << 28) | 1).to_bytes(4, "little")
"""The seven signs 0000001 for the first eight weights, of which the eighth is then negative too, and the scale 3."""

# The fields by their offset, and the weights from the first on; all that follow are the last one.
BLOCKS: dict[str, tuple[dict[int, bytes], list[float]]] = {
    "iq2_xxs": ({0: ONE, 2: b"\1", 6: GROUP}, [-0.875 * 43, *[7.0] * 6, -7.0, *[7.0] * 24, 1.0]),
    "iq2_xs": (
        {0: ONE, 2: (1 << 9 | 1).to_bytes(2, "little"), 66: b"\x53"},
        [-0.875 * 43, *[7.0] * 6, -7.0, *[7.0] * 8, *[11.0] * 16, 1.0],
    ),
    "iq2_s": (
        {0: ONE, 2: b"\1", 34: b"\x81", 74: b"\x53"},
        [-0.875 * 43, *[7.0] * 6, -7.0, *[7.0] * 8, *[11.0] * 16, 1.0],
    ),
    "iq3_xxs": ({0: ONE, 2: b"\1", 66: GROUP}, [-1.75 * 20, *[7.0] * 6, -7.0, *[7.0] * 24, 1.0]),
    "iq3_s": (
        {0: ONE, 2: b"\1", 74: b"\x81", 106: b"\x53"},
        [-21.0, *[7.0] * 6, -7.0, *[7.0] * 24, *[11.0] * 32, 1.0],
    ),
    "iq1_s": ({0: ONE, 2: b"\1", 34: b"\x00\xb0"}, [7 * 0.875, *[7 * -1.125] * 31, -0.875]),
    "iq1_m": (
        {0: b"\1", 32: b"\x08", 48: b"\x2b\x00\x00\x00\x00\xc0\x00\x30"},
        [7 * 0.875, *[7 * -1.125] * 7, *[7 * -0.875] * 8, *[11 * -0.875] * 16, -0.875],
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
@each_target
def test_what_the_bytes_of_a_block_mean(name: str, target: Target) -> None:
    fields, weights = BLOCKS[name]
    block = bytearray(by_name(name).block_bytes)
    for at, value in fields.items():
        block[at : at + len(value)] = value
    raw = np.frombuffer(bytes(block), np.uint8).reshape(1, -1)
    wanted = np.array([[*weights, *[weights[-1]] * (256 - len(weights))]], np.float32)
    assert np.array_equal(dequantized(raw, name), wanted)
    assert np.array_equal(run_embed(name, raw, np.zeros(1), target), wanted)
    assert np.array_equal(jax.jit(lambda block: dequantize(block, name))(raw), wanted)
