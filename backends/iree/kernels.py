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
from ..native.kernels.attention import attention_many, attention_one
from ..native.kernels.embed import embed
from ..native.kernels.kv_update import kv_update
from ..native.kernels.linear_many import linear_many
from ..native.kernels.linear_one import linear_one, rows_per_group

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
    rows = ir.RankedTensorType(table.type).shape[0]
    cols = ir.RankedTensorType(result).shape[1]
    kernel = embed(attributes["type_name"])
    scalars = {"tokens": at.size(tokens, 0), "rows": rows, "cols": cols}
    return at.dispatch(kernel, [tokens, at.weight(table)], scalars, result)


def _linear(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    x, weight = operands
    type_name = attributes["type_name"]
    shape = ir.RankedTensorType(x.type).shape
    cols = prod(shape[1:])
    rows = ir.RankedTensorType(weight.type).shape[0]
    w = at.weight(weight)
    if shape[0] == 1:
        kernel = linear_one(type_name, rows_per_group(rows))
        return at.dispatch(kernel, [w, x], {"rows": rows, "cols": cols}, result)
    tokens = at.size(x, 0)
    if type_name != "f32":
        wide = at.tensor([None, activation_width(cols)], "i16")
        scalars = {"tokens": tokens, "cols": cols}
        activations = x
        x = at.once(("quantize", x), lambda: at.dispatch(quantize_rows(), [activations], scalars, wide))
    return at.dispatch(linear_many(type_name), [w, x], {"tokens": tokens, "rows": rows, "cols": cols}, result)


def _kv_update(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    cache, x, _ = operands
    shape = ir.RankedTensorType(cache.type).shape
    scalars = {"tokens": at.size(x, 0), "rows": at.size(cache, 0), "row": prod(shape[1:])}
    return at.dispatch(kv_update(_element(cache)), operands, scalars, result, tied=0)


def _attention(at: Dispatcher, operands: list[ir.Value], attributes: dict[str, Any], result: ir.Type) -> ir.Value:
    q, k, v, _ = operands
    tokens, heads, head_dim = ir.RankedTensorType(q.type).shape
    kv_heads, value_dim = ir.RankedTensorType(v.type).shape[1:]
    scalars = {
        "rows": at.size(k, 0),
        "heads": heads,
        "kv_heads": kv_heads,
        "window": attributes["window"],
        "scale": attributes["scale"],
        "cap": attributes["cap"],
    }
    if tokens == 1:
        return at.dispatch(attention_one(_element(k), head_dim, value_dim), operands, scalars, result)
    kernel = attention_many(_element(k), head_dim, value_dim)
    return at.dispatch(kernel, operands, scalars | {"tokens": at.size(q, 0)}, result)


def _element(value: ir.Value) -> str:
    return str(ir.RankedTensorType(value.type).element_type)


LOWERINGS: dict[str, Lowering] = {
    "ggufc.embed": _embed,
    "ggufc.linear": _linear,
    "ggufc.kv_update": _kv_update,
    "ggufc.attention": _attention,
}
