# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""Which kernel does the work of which composite, with the numbers that it takes.

A lowering gets the composite's operands (without the sizes that its decomposition reads) and its attributes, and calls
`Dispatcher.dispatch` as often as it needs; the kernels are those of the native backend.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Protocol

from iree.compiler import ir

from ..native.kernel import Kernel
from ..native.kernels.activations import activation_width, quantize_rows
from ..native.kernels.attention import attention_many, attention_one, shared_heads
from ..native.kernels.embed import embed
from ..native.kernels.experts import expert_gain, expert_linear, mix, route, top_k
from ..native.kernels.kv_update import kv_update
from ..native.kernels.linear_many import linear_many
from ..native.kernels.linear_one import linear_one, rows_per_group
from ..native.kernels.norm import layer_norm
from ..native.kernels.rows import conv_update, copy_rows, short_conv
from ..native.kernels.types import QUANT_TYPES

Scalar = int | float | ir.Value
"""A number known now, or an index value of the program (the size of a dynamic dimension)."""


class Dispatcher(Protocol):
    """What a lowering may do with the program it stands in."""

    def dispatch(
        self,
        kernel: Kernel,
        operands: list[ir.Value],
        scalars: Mapping[str, Scalar],
        result: ir.Type,
        tied: int | None = None,
    ) -> ir.Value:
        """Calls the kernel; the result is a new tensor, or operand number `tied`, updated in place."""
        ...

    def size(self, value: ir.Value, axis: int) -> Scalar:
        """The size of one axis of a tensor."""
        ...

    def times(self, value: Scalar, factor: int) -> Scalar:
        """The product of a number and a constant."""
        ...

    def zero(self) -> ir.Value:
        """A position of 0, as a tensor."""
        ...

    def tensor(self, shape: list[int | None], element: str) -> ir.Type:
        """A tensor type; None is a dynamic size."""
        ...

    def weight(self, value: ir.Value) -> ir.Value:
        """The bytes of a weight, as a kernel takes them."""
        ...

    def once(self, key: tuple[object, ...], make: Callable[[], ir.Value]) -> ir.Value:
        """The value made for this key before, or a new one."""
        ...


Lowering = Callable[[Dispatcher, list[ir.Value], dict[str, Any], ir.Type], ir.Value]


def _embed(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    tokens, table = operands
    rows, cols = _shape(table)[0], _shape(result)[1]
    kernel = embed(attributes["type_name"])
    scalars = {"tokens": at.size(tokens, 0), "rows": rows, "cols": cols}
    return at.dispatch(kernel, [tokens, at.weight(table)], scalars, result)


def _linear(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    x, weight = operands
    type_name = attributes["type_name"]
    shape, rows = _shape(x), _shape(weight)[0]
    cols = prod(shape[1:])
    w = at.weight(weight)
    if shape[0] == 1:
        kernel = linear_one(type_name, rows_per_group(rows))
        return at.dispatch(kernel, [w, x], {"rows": rows, "cols": cols}, result)
    tokens = at.size(x, 0)
    if type_name in QUANT_TYPES:
        wide = at.tensor([None, activation_width(cols)], "i16")
        scalars = {"tokens": tokens, "cols": cols}
        activations = x
        x = at.once(("quantize", x), lambda: at.dispatch(quantize_rows(), [activations], scalars, wide))
    return at.dispatch(linear_many(type_name), [w, x], {"tokens": tokens, "rows": rows, "cols": cols}, result)


def _kv_update(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    cache, x, _ = operands
    scalars = {"tokens": at.size(x, 0), "rows": at.size(cache, 0), "row": prod(_shape(cache)[1:])}
    return at.dispatch(kv_update(_element(cache)), operands, scalars, result, tied=0)


def _attention(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    q, k, v, *position = operands
    tokens, heads, head_dim = _shape(q)
    kv_heads, value_dim = _shape(v)[1:]
    operands = [q, k, v, *(position or [at.zero()])]
    scalars = {"rows": at.size(k, 0), "heads": heads, "kv_heads": kv_heads} | attributes
    if tokens == 1:
        kernel = attention_one(_element(k), head_dim, value_dim, shared_heads(heads, kv_heads))
    else:
        kernel = attention_many(_element(k), head_dim, value_dim)
    return at.dispatch(kernel, operands, scalars | {"tokens": at.size(q, 0)}, result)


def _layer_norm(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    _, *inner, row = _shape(operands[0])
    scalars = {"rows": at.times(at.size(operands[0], 0), prod(inner)), "row": row, "eps": attributes["eps"]}
    return at.dispatch(layer_norm(len(operands) - 1), operands, scalars, result)


def _part(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    (x,) = operands
    row, taken = prod(_shape(x)[1:]), prod(_shape(result)[1:])
    scalars = {"tokens": at.size(x, 0), "row": taken, "start": attributes["start"], "from": row, "to": taken}
    return at.dispatch(copy_rows(), operands, scalars, result)


def _half(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    (x,) = operands
    _, *inner, size = _shape(x)
    rows, half = at.times(at.size(x, 0), prod(inner)), size // 2
    scalars = {"tokens": rows, "row": half, "start": half * attributes["number"], "from": size, "to": half}
    return at.dispatch(copy_rows(), operands, scalars, result)


def _short_conv(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    row, taps = _shape(operands[-1])
    scalars = {"tokens": at.size(operands[0], 0), "row": row, "taps": taps}
    return at.dispatch(short_conv(len(operands) == 3), operands, scalars, result)


def _conv_update(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    state, x = operands
    rows, row = _shape(state)
    return at.dispatch(conv_update(), [x, state], {"tokens": at.size(x, 0), "rows": rows, "row": row}, result, tied=1)


def _top_k(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    (x,) = operands
    scalars = {"tokens": at.size(x, 0), "count": _shape(x)[1], "k": attributes["k"]}
    return at.dispatch(top_k(), operands, scalars, result)


def _route(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    x, experts = operands
    scalars = {"tokens": at.size(x, 0), "count": _shape(x)[1], "k": _shape(experts)[1], "by": attributes["by"]}
    return at.dispatch(route(bool(attributes["normalize"])), operands, scalars, result)


def _expert_linear(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    x, experts, weight = operands
    k, cols = _shape(experts)[1], _shape(x)[-1]
    share = k if len(_shape(x)) == 2 else 1
    scalars = {"pairs": at.times(at.size(x, 0), k), "rows": _shape(weight)[1], "cols": cols, "share": share}
    kernel = expert_linear(attributes["type_name"])
    return at.dispatch(kernel, [at.weight(weight), x, experts], scalars, result)


def _expert_gain(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    _, k, *row = _shape(operands[0])
    return at.dispatch(
        expert_gain(), operands, {"pairs": at.times(at.size(operands[0], 0), k), "row": prod(row)}, result
    )


def _mix(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    _, k, row = _shape(operands[0])
    return at.dispatch(mix(), operands, {"tokens": at.size(operands[0], 0), "k": k, "row": row}, result)


def _shape(value: ir.Value | ir.Type) -> list[int]:
    """Sizes of a tensor; those that are dynamic mean nothing."""
    return ir.RankedTensorType(value if isinstance(value, ir.Type) else value.type).shape


def _element(value: ir.Value) -> str:
    return str(ir.RankedTensorType(value.type).element_type)


LOWERINGS: dict[str, Lowering] = {
    "ggufc.embed": _embed,
    "ggufc.linear": _linear,
    "ggufc.kv_update": _kv_update,
    "ggufc.attention": _attention,
    "ggufc.layer_norm": _layer_norm,
    "ggufc.part": _part,
    "ggufc.half": _half,
    "ggufc.short_conv": _short_conv,
    "ggufc.conv_update": _conv_update,
    "ggufc.top_k": _top_k,
    "ggufc.route": _route,
    "ggufc.expert_linear": _expert_linear,
    "ggufc.expert_gain": _expert_gain,
    "ggufc.mix": _mix,
}

COMPILED = frozenset(("ggufc.rms_norm", "ggufc.rope"))
"""Composites that stay: the compiler fuses their decompositions with what stands around them."""
