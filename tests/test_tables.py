"""The tables that know every operation and every type, held against each other: what one was forgotten in is named."""

from ggufc.backends.caches import KV_TYPES
from ggufc.backends.jax.dequantize import TYPES as DEQUANTIZED
from ggufc.backends.jax.ops import RULES
from ggufc.backends.jax.trace import COMPOSITES
from ggufc.backends.native.kernels.types import TYPES as KERNEL_TYPES
from ggufc.backends.native.program import EXACT, OWN
from ggufc.backends.native.rules import RULES as KERNELS
from ggufc.frontend.ggml_types import BY_NAME
from ggufc.frontend.operations import OPERATIONS
from ggufc.graph.ops import OPS, OWN_TYPES, WEIGHT_TYPES
from ggufc.graph.types import CACHE_DTYPES

OF_PASSES = {
    *("kv_update", "conv_update", "last_row", "bias", "positions", "argmax"),
    *("norm_linear", "glu", "norm_glu", "norm_add", "norm_rope"),
}
"""Operations that the builder and passes make; a definition doesn't name them."""


def test_every_operation_has_a_meaning_and_kernels() -> None:
    assert set(RULES) == set(OPS)
    assert set(KERNELS) | set(OWN) == set(OPS)
    assert not set(KERNELS) & set(OWN)
    assert set(EXACT) <= set(KERNELS)


def test_a_definition_can_name_every_operation_but_those_of_passes() -> None:
    assert set(OPERATIONS) - {"copy"} == set(OPS) - OF_PASSES


def test_every_composite_has_a_kernel() -> None:
    assert set(COMPOSITES) <= set(KERNELS)


def test_every_weight_type_is_known_to_every_backend() -> None:
    assert {*WEIGHT_TYPES, *OWN_TYPES} == set(KERNEL_TYPES) == set(DEQUANTIZED)
    assert {*WEIGHT_TYPES, *OWN_TYPES} <= set(BY_NAME)


def test_every_type_of_caches_has_an_array() -> None:
    assert tuple(KV_TYPES) == CACHE_DTYPES
