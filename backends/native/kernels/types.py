"""The types of weights by name."""

from __future__ import annotations

from .bf16 import BF16
from .f16 import F16
from .f32 import F32
from .int8 import INT8
from .iq1_m import IQ1_M
from .iq1_s import IQ1_S
from .iq2_s import IQ2_S
from .iq2_xs import IQ2_XS
from .iq2_xxs import IQ2_XXS
from .iq3_s import IQ3_S
from .iq3_xxs import IQ3_XXS
from .iq4_nl import IQ4_NL
from .iq4_xs import IQ4_XS
from .mxfp4 import MXFP4
from .plain import PlainType
from .q2_k import Q2_K
from .q3_k import Q3_K
from .q4_0 import Q4_0
from .q4_1 import Q4_1
from .q4_k import Q4_K
from .q5_0 import Q5_0
from .q5_1 import Q5_1
from .q5_k import Q5_K
from .q6_k import Q6_K
from .q8_0 import Q8_0
from .quant import QuantType
from .tq1_0 import TQ1_0
from .tq2_0 import TQ2_0

PLAIN_TYPES: dict[str, PlainType] = {t.name: t for t in (F32, F16, BF16)}
"""The types whose products take float32 activations as they are."""
QUANT_TYPES: dict[str, QuantType] = {
    t.name: t
    for t in (
        *(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0),
        *(Q2_K, Q3_K, Q4_K, Q5_K, Q6_K),
        *(IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S),
        *(IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0),
        INT8,
    )
}
"""The quantized types, whose products round the activations as `activations` says."""
TYPES: dict[str, PlainType | QuantType] = {**PLAIN_TYPES, **QUANT_TYPES}
"""Every type that the kernels can read."""
