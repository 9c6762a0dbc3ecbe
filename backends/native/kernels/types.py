"""The quantized types by name."""

from __future__ import annotations

from .q4_k import Q4_K
from .q5_0 import Q5_0
from .q6_k import Q6_K
from .q8_0 import Q8_0
from .quant import QuantType

QUANT_TYPES: dict[str, QuantType] = {t.name: t for t in (Q8_0, Q5_0, Q4_K, Q6_K)}
"""Every quantized type that the kernels can read; float32 ("f32") needs no description."""
