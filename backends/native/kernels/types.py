"""The types of weights by name."""

from __future__ import annotations

from .bf16 import BF16
from .f16 import F16
from .f32 import F32
from .plain import PlainType
from .q4_k import Q4_K
from .q5_0 import Q5_0
from .q6_k import Q6_K
from .q8_0 import Q8_0
from .quant import QuantType

PLAIN_TYPES: dict[str, PlainType] = {t.name: t for t in (F32, F16, BF16)}
"""The types whose products take float32 activations as they are."""
QUANT_TYPES: dict[str, QuantType] = {t.name: t for t in (Q8_0, Q5_0, Q4_K, Q6_K)}
"""The quantized types, whose products round the activations as `activations` says."""
TYPES: dict[str, PlainType | QuantType] = {**PLAIN_TYPES, **QUANT_TYPES}
"""Every type that the kernels can read."""
