"""F16: IEEE half precision."""

from ..emit import Emitter
from .plain import PlainType

F16 = PlainType("f16", 2, Emitter.half_to_float)
