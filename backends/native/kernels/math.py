"""Elementary functions of float32 vectors as polynomials: no target has them as instructions, no library is at hand.

Both come from e^x = 2^n * e^r, n = round(x / ln 2), |r| <= ln(2) / 2, where seven terms of the Taylor series of e^r - 1
are good to 5e-9 of r. NaN stays NaN.
"""

from __future__ import annotations

import math

from llvmlite import ir

from ..emit import F32, I32, Emitter, Value, const, vec

_LN2_HIGH = 0.693359375  # nine bits: its products with n are exact
_LN2_LOW = math.log(2.0) - _LN2_HIGH
_TERMS = tuple(1.0 / math.factorial(k) for k in range(7, 0, -1))
_ROUND = 12582912.0  # adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the lower mantissa bits
_SMALLEST, _LARGEST = -87.0, 88.72283  # the latter is the largest x whose e^x is finite


def exp(e: Emitter, x: Value) -> Value:
    """e^x, relative error below 2e-7 and exactly 1 at 0; 0 for x < -87, infinity for x > 88.72."""
    too_small = e.fcmp_ordered("<", x, const(x.type, _SMALLEST))
    too_large = e.fcmp_ordered(">", x, const(x.type, _LARGEST))
    held = e.select(too_small, const(x.type, _SMALLEST), e.select(too_large, const(x.type, _LARGEST), x))
    less_one, exponent = _reduced(e, held)
    mantissa = e.fadd(less_one, const(x.type, 1.0))
    result = e.bitcast(e.add(e.bitcast(mantissa, exponent.type), exponent), x.type)
    return e.select(too_small, const(x.type, 0.0), e.select(too_large, const(x.type, math.inf), result))


def tanh(e: Emitter, x: Value) -> Value:
    """tanh x = (e^2x - 1) / (e^2x + 1), relative error below 3e-7: e^2x - 1 is had without cancellation."""
    word = _word(x.type)
    bits = e.bitcast(x, word)
    magnitude = e.bitcast(e.and_(bits, const(word, 0x7FFFFFFF)), x.type)
    twice = e.fadd(magnitude, magnitude)
    is_one = e.fcmp_ordered(">", twice, const(x.type, 20.0))
    less_one, exponent = _reduced(e, e.select(is_one, const(x.type, 20.0), twice))
    power = e.bitcast(e.add(exponent, const(word, 127 << 23)), x.type)
    grown = e.fma_(power, less_one, e.fsub(power, const(x.type, 1.0)))
    result = e.fdiv(grown, e.fadd(grown, const(x.type, 2.0)))
    return e.bitcast(e.or_(e.bitcast(result, word), e.and_(bits, const(word, 0x80000000))), x.type)


def _word(kind: ir.Type) -> ir.Type:
    return vec(I32, kind.count) if isinstance(kind, ir.VectorType) else I32


def _reduced(e: Emitter, x: Value) -> tuple[Value, Value]:
    """e^r - 1, and n in the place of a float32's exponent."""
    kind = x.type
    assert kind == F32 or isinstance(kind, ir.VectorType)
    shifted = e.fma_(x, const(kind, 1.0 / math.log(2.0)), const(kind, _ROUND))
    n = e.fsub(shifted, const(kind, _ROUND))
    r = e.fma_(n, const(kind, -_LN2_LOW), e.fma_(n, const(kind, -_LN2_HIGH), x))
    series = const(kind, _TERMS[0])
    for term in _TERMS[1:]:
        series = e.fma_(series, r, const(kind, term))
    word = _word(kind)
    return e.fmul(series, r), e.shl(e.bitcast(shifted, word), const(word, 23))
