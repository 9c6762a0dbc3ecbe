"""The closed set of operations: what each takes, and the type of what it gives.

The first axis of every value is rows (tokens); an operation is *row-wise* where row t of its result depends on row t
of its operands alone, which is what lets a pass compute only the rows that somebody reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from .ir import Attribute, Op, Operand, Value, Weight
from .types import CACHE_DTYPES, VALUE_DTYPES, TensorType

WEIGHT_TYPES = (
    *("f32", "f16", "bf16"),
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0"),
    *("q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"),
    *("iq4_nl", "iq4_xs", "mxfp4", "tq1_0", "tq2_0"),
)
"""The GGML types that every backend computes with."""
OWN_TYPES = ("int8",)
"""Those that no GGUF has, of re-encoded weights."""

GATES = ("gelu", "silu", "relu", "tanh")
"""Operations on elements that `glu` can gate with."""
_CACHE_WANTED = f"{', '.join(CACHE_DTYPES[:-1])} or {CACHE_DTYPES[-1]}"


class RuleError(Exception):
    """An operation's operands or attributes break its rule; the message says how.

    Attributes:
        weight: the one that is to blame, where one is.
    """

    def __init__(self, message: str, weight: Weight | None = None) -> None:
        super().__init__(message)
        self.weight = weight


@dataclass(frozen=True)
class Domain:
    """The values that an attribute may have, and how an error names them."""

    holds: Callable[[Attribute], bool]
    wanted: str


MAX_WHOLE = 2**31 - 1
"""Positions, sizes and counts are int32 in every backend."""
_F32_MAX, _F32_TINY = 2.0**128 - 2.0**104, 2.0**-126  # the largest float32, and the least that has all its bits


def _whole(least: int) -> Domain:
    return Domain(lambda value: _is_whole(value, least), f"a whole number from {least} to {MAX_WHOLE}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_WHOLE


def _number(least: float, most: float, wanted: str) -> Domain:
    def holds(value: Attribute) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most

    return Domain(holds, wanted)


_COUNT = _whole(0)
_FACTOR = _number(_F32_TINY, 2.0**31, "a number above 0 and up to 2147483648")
_NOT_NEGATIVE = _number(0, _F32_MAX, "a finite number from 0")
DOMAINS: dict[str, Domain] = {
    "act": Domain(lambda value: value in GATES, ", ".join(GATES)),
    "ahead": _COUNT,
    # base 1 would turn all pairs alike, and has no logarithm to divide by
    "base": _number(1 + 2.0**-23, _F32_MAX, "a finite number above 1"),
    "by": _number(-_F32_MAX, _F32_MAX, "a finite number"),
    "cap": _NOT_NEGATIVE,
    "dims": _COUNT,
    "eps": _NOT_NEGATIVE,
    "k": _COUNT,
    "kind": _COUNT,
    "magnitude": _FACTOR,
    "normalize": _COUNT,
    "number": _COUNT,
    "row": _COUNT,
    "scale": _FACTOR,
    "shape": Domain(
        lambda value: isinstance(value, tuple) and bool(value) and all(_is_whole(d, 1) for d in value),
        f"whole numbers from 1 to {MAX_WHOLE}",
    ),
    "start": _COUNT,
    "style": Domain(lambda value: value in ("neox", "norm"), "neox or norm"),
    "window": _COUNT,
    "yarn": _COUNT,
}
"""What each attribute may be, so that no backend overflows or gives NaN on it; all numbers are float32 or int32."""


@dataclass(frozen=True)
class Rule:
    """`values` and `weights` are the numbers of operands it takes (least, most); `result` infers the result's type.

    `matrices`: its last weights are matrices, which may have any type; other weights are f32.
    """

    name: str
    values: tuple[int, int]
    weights: tuple[int, int]
    attributes: tuple[str, ...]
    result: Callable[[tuple[Value, ...], tuple[Weight, ...], dict[str, Attribute]], TensorType]
    row_wise: bool = True
    matrices: bool = False


_Values = tuple[Value, ...]
_Weights = tuple[Weight, ...]
_Attributes = dict[str, Attribute]
_POSITION = TensorType("i32", ())


def _need(condition: bool, message: str, weight: Weight | None = None) -> None:
    if not condition:
        raise RuleError(message, weight)


def _f32(value: Value) -> TensorType:
    _need(value.type.dtype == "f32", f"{value} is {value.type}, wanted f32")
    return value.type


def _embed(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    tokens, table = values[0].type, weights[0].type
    _need(tokens.dtype == "i32" and len(tokens.shape) == 1, f"token ids are {tokens}, wanted i32[T]")
    _need(len(table.shape) == 2, f"has shape {list(table.shape)}, wanted a table of two dimensions", weights[0])
    return TensorType("f32", (tokens.shape[0], table.shape[1]))


def _linear(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, w = _f32(values[0]), weights[0].type
    shape = attributes["shape"]
    assert isinstance(shape, tuple)
    _need(
        w.shape == (prod(shape), x.row_size),
        f"has shape {list(w.shape)}, wanted [{prod(shape)}, {x.row_size}]",
        weights[0],
    )
    return TensorType("f32", (x.shape[0], *shape))


def _norm_linear(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    return _linear((_normed(values, weights),), weights[1:], attributes)


def _normed(values: _Values, weights: _Weights) -> Value:
    """The operand of a product whose first weight is the norm's."""
    x = values[0]
    _need(len(x.type.shape) == 2, f"takes [T, width], found {x.type}")
    _rms_norm(values, weights[:1], {})
    return x


def _glu(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    gate, up = weights
    _need(gate.type == up.type, f"the gate is {gate.type} and what it gates {up.type}")
    return _linear(values, weights[1:], attributes)


def _norm_glu(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    return _glu((_normed(values, weights),), weights[1:], attributes)


def _norm_add(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    return _rms_norm((Value(values[0].name, _same(values, (), {})),), weights, attributes)


def _norm_rope(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    _rms_norm(values, weights[:1], attributes)
    return _rope(values, weights[1:], attributes)


def _bias(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, bias = _f32(values[0]), weights[0].type
    _need(bias.shape == (x.row_size,), f"has shape {list(bias.shape)}, wanted [{x.row_size}]", weights[0])
    _need(bias.dtype == "f32", f"has type {bias.dtype}, wanted f32", weights[0])
    return x


def _rms_norm(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x = _f32(values[0])
    for weight in weights:
        wanted = (x.shape[-1],)
        _need(weight.type.shape == wanted, f"has shape {list(weight.type.shape)}, wanted {list(wanted)}", weight)
        _need(weight.type.dtype == "f32", f"has type {weight.type.dtype}, wanted f32", weight)
    return x


def _layer_norm(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    return _rms_norm(values, weights, attributes)


def _gain(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, w = _f32(values[0]), weights[0].type
    _need(
        w.shape == (1,) or w.shape == x.shape[-len(w.shape) :],
        f"has shape {list(w.shape)}, wanted [1] or {x}'s end",
        weights[0],
    )
    _need(w.dtype == "f32", f"has type {w.dtype}, wanted f32", weights[0])
    return x


def _add_row(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, table, row = _f32(values[0]), weights[0].type, attributes["row"]
    assert isinstance(row, int)
    _need(
        len(table.shape) == 2 and table.shape[1] == x.row_size, f"has rows of {table}, wanted {x.row_size}", weights[0]
    )
    _need(table.dtype == "f32", f"has type {table.dtype}, wanted f32", weights[0])
    _need(row < int(table.shape[0]), f"has {table.shape[0]} rows, wanted row {row}", weights[0])
    return x


def _part(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, start, shape = _f32(values[0]), attributes["start"], attributes["shape"]
    assert isinstance(start, int) and isinstance(shape, tuple)
    end = start + prod(shape)
    _need(end <= x.row_size, f"takes elements {start} to {end} of a row that has {x.row_size}")
    return TensorType("f32", (x.shape[0], *shape))


def _half(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, size = _f32(values[0]), int(values[0].type.shape[-1])
    _need(size % 2 == 0, f"takes an even last axis, found {x}")
    _need(attributes["number"] in (0, 1), f"number is {attributes['number']}, wanted 0 or 1")
    return x.with_shape((*x.shape[:-1], size // 2))


def _top_k(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, k = _f32(values[0]), attributes["k"]
    assert isinstance(k, int)
    _need(len(x.shape) == 2, f"takes [T, experts], found {x}")
    _need(0 < k <= int(x.shape[1]), f"chooses {k} of {x.shape[1]} experts")
    return TensorType("i32", (x.shape[0], k))


def _route(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    logits, experts = _f32(values[0]), _chosen(values[1])
    _need(logits.shape[0] == experts.shape[0], f"logits are {logits} and experts {experts}")
    return TensorType("f32", experts.shape)


def _chosen(value: Value) -> TensorType:
    type_ = value.type
    _need(type_.dtype == "i32" and len(type_.shape) == 2, f"experts are {type_}, wanted i32[T, k]")
    return type_


def _expert_linear(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, experts, w = _f32(values[0]), _chosen(values[1]), weights[0].type
    _need(len(w.shape) == 3, f"has shape {list(w.shape)}, wanted [experts, rows, columns]", weights[0])
    _need(
        x.shape in ((*experts.shape, w.shape[2]), (experts.shape[0], w.shape[2])), f"x is {x} and W is {w}", weights[0]
    )
    return TensorType("f32", (*experts.shape, w.shape[1]))


def _expert_gain(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, experts, w = _f32(values[0]), _chosen(values[1]), weights[0].type
    _need(x.shape[:2] == experts.shape and len(w.shape) == 1 and w.dtype == "f32", f"x is {x} and W is {w}", weights[0])
    return x


def _mix(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, share = _f32(values[0]), _f32(values[1])
    _need(len(x.shape) == 3 and x.shape[:2] == share.shape, f"x is {x} and weights are {share}")
    return TensorType("f32", (x.shape[0], x.shape[2]))


def _short_conv(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, kernel = _f32(values[0]), weights[0].type
    _need(len(x.shape) == 2 and len(kernel.shape) == 2, f"takes [T, width] and [width, taps], found {x} and {kernel}")
    _need(
        kernel.shape[0] == x.shape[1] and kernel.dtype == "f32",
        f"has type {kernel}, wanted f32[{x.shape[1]}, taps]",
        weights[0],
    )
    if len(values) == 2:
        state = values[1].type
        wanted = TensorType("f32", (int(kernel.shape[1]) - 1, x.shape[1]))
        _need(state == wanted, f"the state is {state}, wanted {wanted}")
    return x


def _conv_update(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    state, x = _f32(values[0]), _f32(values[1])
    _need(state.shape[1:] == x.shape[1:], f"the state is {state} and the rows are {x}")
    return state


def _pool(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x, kind = _f32(values[0]), attributes["kind"]
    _need(kind in (1, 2, 3), f"kind is {kind}, wanted 1 (mean), 2 (first) or 3 (last)")
    return x.with_shape((1, *x.shape[1:]))


def _positions(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    tokens = values[0].type
    _need(tokens.dtype == "i32" and len(tokens.shape) == 1, f"token ids are {tokens}, wanted i32[T]")
    _position(values[1:])
    return tokens


def _position(values: _Values) -> None:
    for value in values:
        _need(value.type == _POSITION, f"the position is {value.type}, wanted {_POSITION}")


def _rope(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x = _f32(values[0])
    _need(len(x.shape) == 3, f"takes [T, heads, head_dim], found {x}")
    dims = attributes["dims"]
    head_dim = x.shape[2]
    assert isinstance(dims, int) and isinstance(head_dim, int)
    _position(values[1:])
    _need(0 < dims <= head_dim and dims % 2 == 0, f"rotates {dims} of {head_dim} elements: an even number that fits")
    if weights:
        factors = weights[0].type
        wanted = TensorType("f32", (dims // 2,))
        _need(factors == wanted, f"factors are {factors}, wanted {wanted}", weights[0])
    return x


def _attention(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    q, k, v = _f32(values[0]), values[1].type, values[2].type
    _need({k.dtype, v.dtype} <= set(CACHE_DTYPES), f"k is {k} and v is {v}, wanted {_CACHE_WANTED}")
    _position(values[3:])
    _need(all(len(t.shape) == 3 for t in (q, k, v)), f"takes [rows, heads, head_dim] each, found {q}, {k}, {v}")
    (rows, heads, head_dim), (keys, kv_heads, key_dim), (value_rows, value_heads, value_dim) = q.shape, k.shape, v.shape
    _need(head_dim == key_dim, f"q has heads of {head_dim} elements and k of {key_dim}")
    _need(kv_heads == value_heads and keys == value_rows, f"k is {k} and v is {v}")
    assert isinstance(heads, int) and isinstance(kv_heads, int)
    _need(heads % kv_heads == 0, f"{heads} heads don't divide among {kv_heads} kv_heads")
    return TensorType("f32", (rows, heads, value_dim))


def _same(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    first = _f32(values[0])
    for other in values[1:]:
        _need(other.type == first, f"takes two values of one type, found {first} and {other.type}")
    return first


def _kv_update(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    cache, rows = values[0].type, _f32(values[1])
    _need(cache.shape[1:] == rows.shape[1:], f"the cache is {cache} and the rows are {rows}")
    _need(cache.dtype in CACHE_DTYPES, f"the cache is {cache}, wanted {_CACHE_WANTED}")
    _position(values[2:])
    return cache


def _last_row(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x = _f32(values[0])
    return x.with_shape((1, *x.shape[1:]))


def _argmax(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    x = _f32(values[0])
    _need(len(x.shape) == 2, f"takes [T, count], found {x}")
    return TensorType("i32", x.shape[:1])


def _softcap(values: _Values, weights: _Weights, attributes: _Attributes) -> TensorType:
    _need(attributes["cap"] != 0, "cap is 0, wanted above it")
    return _same(values, weights, attributes)


_ROPE = ("base", "dims", "magnitude", "scale", "style", "yarn")
OPS: dict[str, Rule] = {
    r.name: r
    for r in (
        Rule("embed", (1, 1), (1, 1), (), _embed, matrices=True),
        Rule("linear", (1, 1), (1, 1), ("shape",), _linear, matrices=True),
        Rule("bias", (1, 1), (1, 1), (), _bias),
        Rule("rms_norm", (1, 1), (0, 1), ("eps",), _rms_norm),
        Rule("layer_norm", (1, 1), (0, 2), ("eps",), _layer_norm),
        Rule("add_row", (1, 1), (1, 1), ("row",), _add_row),
        Rule("gain", (1, 1), (1, 1), (), _gain),
        Rule("half", (1, 1), (0, 0), ("number",), _half),
        Rule("part", (1, 1), (0, 0), ("shape", "start"), _part),
        # tokens [, position]: the position of each row
        Rule("positions", (1, 2), (0, 0), (), _positions, row_wise=False),
        # x [, position]; row t stands at position + t, or at t
        Rule("rope", (1, 2), (0, 1), _ROPE, _rope, row_wise=False),
        # q, k, v [, position]. Row t of q stands at position + t, or at t. Keys are a ring: after a call that ends
        # before position e, row s of k holds the latest p < e with p = s (mod rows of k); p < 0: it is empty.
        Rule("attention", (3, 4), (0, 0), ("ahead", "cap", "scale", "window"), _attention, row_wise=False),
        # cache, rows, position: row t goes to row (position + t) mod S
        Rule("kv_update", (3, 3), (0, 0), (), _kv_update, row_wise=False),
        # x [, state]: row t sees the taps - 1 rows before it; those before the call are the state's, or zeros
        Rule("short_conv", (1, 2), (1, 1), (), _short_conv, row_wise=False),
        # state, x: the last rows of the two together
        Rule("conv_update", (2, 2), (0, 0), (), _conv_update, row_wise=False),
        Rule("pool", (1, 1), (0, 0), ("kind",), _pool, row_wise=False),
        Rule("top_k", (1, 1), (0, 0), ("k",), _top_k),
        Rule("route", (2, 2), (0, 0), ("by", "normalize"), _route),
        Rule("expert_linear", (2, 2), (1, 1), (), _expert_linear, matrices=True),
        Rule("expert_gain", (2, 2), (1, 1), (), _expert_gain),
        Rule("mix", (2, 2), (0, 0), (), _mix),
        # x, norm, W: the product of the norm of x; glu: act(x Wgate^T) * (x Wup^T)
        Rule("norm_linear", (1, 1), (2, 2), ("eps", "shape"), _norm_linear, matrices=True),
        Rule("glu", (1, 1), (2, 2), ("act", "shape"), _glu, matrices=True),
        Rule("norm_glu", (1, 1), (3, 3), ("act", "eps", "shape"), _norm_glu, matrices=True),
        # a, x, norm: x plus the norm of a
        Rule("norm_add", (2, 2), (1, 1), ("eps",), _norm_add),
        # x [, position], norm [, factors]: the rotation of the norm of x
        Rule("norm_rope", (1, 2), (1, 2), (*_ROPE, "eps"), _norm_rope, row_wise=False),
        # the number of each row's largest element, of equals the first; -1 where it is no finite number
        Rule("argmax", (1, 1), (0, 0), (), _argmax),
        Rule("last_row", (1, 1), (0, 0), (), _last_row, row_wise=False),
        Rule("add", (2, 2), (0, 0), (), _same),
        Rule("mul", (2, 2), (0, 0), (), _same),
        Rule("scale", (1, 1), (0, 0), ("by",), _same),
        Rule("gelu", (1, 1), (0, 0), (), _same),
        Rule("silu", (1, 1), (0, 0), (), _same),
        Rule("relu", (1, 1), (0, 0), (), _same),
        Rule("tanh", (1, 1), (0, 0), (), _same),
        Rule("softcap", (1, 1), (0, 0), ("cap",), _softcap),
    )
}

MATRIX_READERS = frozenset(rule.name for rule in OPS.values() if rule.matrices)
"""Operations that read matrices, as the blocks that they are."""
PRODUCTS = MATRIX_READERS - {"embed"}
"""Operations that multiply by matrices."""


def infer(name: str, operands: tuple[Operand, ...], attributes: dict[str, Attribute]) -> TensorType:
    """The type of the result of an operation.

    Raises:
        RuleError: no such operation, or operands or attributes that break its rule.
    """
    rule = OPS.get(name)
    _need(rule is not None, f"no operation {name!r}")
    assert rule is not None
    values = tuple(o for o in operands if isinstance(o, Value))
    weights = tuple(o for o in operands if isinstance(o, Weight))
    _need(rule.values[0] <= len(values) <= rule.values[1], f"{name} takes {rule.values[1]} values, found {len(values)}")
    _need(
        rule.weights[0] <= len(weights) <= rule.weights[1],
        f"{name} takes {rule.weights[0]} to {rule.weights[1]} weights, found {len(weights)}",
    )
    wanted, found = sorted(rule.attributes), sorted(attributes)
    _need(wanted == found, f"{name} has attributes {', '.join(wanted) or 'none'}, found {', '.join(found) or 'none'}")
    for key, value in attributes.items():
        _need(DOMAINS[key].holds(value), f"{key} is {_shown(value)}, wanted {DOMAINS[key].wanted}")
    for operand in operands:
        _check_shape(operand)
    return rule.result(values, weights, attributes)


def _shown(value: Attribute) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)


def _check_shape(operand: Operand) -> None:
    """Only the rows of a value may be a symbol; only the position is a scalar."""
    type_ = operand.type
    if isinstance(operand, Value):
        known = type_.dtype in VALUE_DTYPES and (type_ == _POSITION or len(type_.shape) > 0)
        sizes = type_.shape[1:]
    else:
        known, sizes = len(type_.shape) > 0, type_.shape
    _need(known and all(isinstance(d, int) and d > 0 for d in sizes), f"{operand.name} has type {type_}")


def make(name: str, operands: tuple[Operand, ...], result: str, note: str = "", **attributes: Attribute) -> Op:
    """An operation whose result is named `result` and has the inferred type.

    Raises:
        RuleError: as `infer`.
    """
    type_ = infer(name, operands, attributes)
    return Op(name, operands, tuple(sorted(attributes.items())), Value(result, type_), note)
