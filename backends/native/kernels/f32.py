"""F32: IEEE single precision."""

from .plain import PlainType, as_float

F32 = PlainType("f32", 4, as_float)
