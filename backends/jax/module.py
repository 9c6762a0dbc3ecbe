"""The portable module: every entry point, the weights once, operations as composites.

A weight is a private function without a body, `func.func private @blk.0.attn_q.weight() -> tensor<1024x440xui8>`:
one symbol of the module, whatever the number of its uses and entry points, that the program which runs the module
binds to the tensor of that name. An operation that a backend may replace by a kernel of its own is a
`stablehlo.composite` with its meaning in StableHLO as decomposition.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from jax._src.interpreters.mlir import make_ir_context  # the context in which jax.export's text parses
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo

from ...graph.ir import Graph, Weight
from .trace import Traced, trace, weight_spec

_INNER, _OUTER = "_wrapped_jax_export_main", "main"


def portable_module(graphs: Iterable[Graph]) -> str:
    """One StableHLO module with a public function for each graph, as text.

    Arguments and results are those of the graph, in its order; caches carry `tf.aliasing_output`, the number of the
    result that is their new value.
    """
    traces = [trace(graph) for graph in graphs]
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["sym_name"] = ir.StringAttr.get("ggufc")
        with ir.InsertionPoint(module.body):
            _declare_weights(traces)
        for traced in traces:
            _add_entry(module, traced)
        module.operation.verify()
        return str(module.operation.get_asm(enable_debug_info=False))


def portable_artifact(text: str) -> bytes:
    """The portable module as StableHLO's versioned artifact, which its consumers of the last 12 weeks read, and later
    ones for years."""
    oldest = stablehlo.StablehloCompatibilityRequirement.WEEK_12
    return stablehlo.serialize_portable_artifact_str(text, stablehlo.get_version_from_compatibility_requirement(oldest))


def _declare_weights(traces: Iterable[Traced]) -> None:
    weights = {w.name: w for traced in traces for w in traced.weights}
    for name, weight in weights.items():
        declaration = func.FuncOp(name, ir.FunctionType.get([], [_weight_type(weight)]))
        declaration.attributes["sym_visibility"] = ir.StringAttr.get("private")


def _weight_type(weight: Weight) -> ir.Type:
    spec = weight_spec(weight)
    element = ir.F32Type.get() if spec.dtype == np.float32 else ir.IntegerType.get_unsigned(8)
    return ir.RankedTensorType.get(spec.shape, element)


def _add_entry(module: ir.Module, traced: Traced) -> None:
    """Moves a traced graph's functions into the module, with its weights called for and its composites named."""
    source = ir.Module.parse(traced.text)
    functions = {f.name.value: f for f in source.body.operations if isinstance(f, func.FuncOp)}
    entry = functions.pop(_INNER, None) or functions[_OUTER]
    aliases = _aliases(functions.pop(_OUTER), len(traced.graph.arguments))
    _bind_sizes_and_weights(entry, traced)
    prefix = traced.graph.name
    read = {name: _drop_unread_arguments(function) for name, function in functions.items()}
    for op in list(entry.entry_block.operations):
        if isinstance(op, func.CallOp) and op.callee.value in functions:
            _to_composite(op, read[op.callee.value], traced)
    for name, function in functions.items():
        _sign(function, _decomposition(prefix, name), "private")
        module.body.append(function)
    _sign(entry, prefix, "public", aliases)
    module.body.append(entry)


def _bind_sizes_and_weights(entry: func.FuncOp, traced: Traced) -> None:
    """Replaces the arguments before the graph's, sizes that jax.export puts there, and those behind, its weights."""
    block = entry.entry_block
    arguments = len(traced.graph.arguments)
    dims = len(block.arguments) - arguments - len(traced.weights)
    symbols = [ir.StringAttr(notes["jax.global_constant"]).value for notes in _notes(entry)[:dims]]
    with ir.InsertionPoint.at_block_begin(block):
        for n, symbol in enumerate(symbols):
            block.arguments[n].replace_all_uses_with(_size(traced.graph, symbol, block.arguments, dims))
        for n, weight in enumerate(traced.weights):
            argument = block.arguments[dims + arguments + n]
            loaded = func.CallOp([argument.type], ir.FlatSymbolRefAttr.get(weight.name), [])
            argument.replace_all_uses_with(loaded.result)
    for n in reversed([*range(dims), *range(dims + arguments, len(block.arguments))]):
        block.erase_argument(n)


def _sign(function: func.FuncOp, name: str, visibility: str, arguments: list[ir.DictAttr] | None = None) -> None:
    """Sets a function's name and visibility, and its type to that of its body."""
    block = function.entry_block
    type_ = ir.FunctionType.get([a.type for a in block.arguments], function.type.results)
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    function.attributes["sym_name"] = ir.StringAttr.get(name)
    function.attributes["sym_visibility"] = ir.StringAttr.get(visibility)
    for notes in ("arg_attrs", "res_attrs"):
        if notes in function.attributes:
            del function.attributes[notes]
    if arguments is not None:
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)


def _aliases(outer: func.FuncOp, count: int) -> list[ir.DictAttr]:
    """What the exported wrapper says of donated arguments."""
    key = "tf.aliasing_output"
    return [ir.DictAttr.get({key: a[key]} if key in a else {}) for a in _notes(outer)[:count]]


def _notes(function: func.FuncOp) -> list[ir.DictAttr]:
    """The attributes of each argument."""
    return [ir.DictAttr(notes) for notes in function.arg_attrs]


def _size(graph: Graph, symbol: str, arguments: Sequence[ir.Value], skip: int) -> ir.Value:
    """The size of a symbolic dimension, read from the first argument that has it."""
    for n, argument in enumerate(graph.arguments):
        if symbol in argument.type.shape:
            axis = argument.type.shape.index(symbol)
            return stablehlo.GetDimensionSizeOp(arguments[skip + n], axis).result
    raise AssertionError(f"no argument of @{graph.name} has the dimension {symbol}")


def _decomposition(entry: str, symbol: str) -> str:
    return f"{entry}.{symbol.removeprefix('ggufc.')}"


def _drop_unread_arguments(function: func.FuncOp) -> list[int]:
    """Erases the arguments that a decomposition never reads (sizes, mostly); gives the numbers of those that stay."""
    block = function.entry_block
    read = [n for n, argument in enumerate(block.arguments) if list(argument.uses)]
    for n in reversed(range(len(block.arguments))):
        if n not in read:
            block.erase_argument(n)
    return read


def _to_composite(call: func.CallOp, read: list[int], traced: Traced) -> None:
    """Replaces the call of an inner function by a composite of the operands that its decomposition reads."""
    symbol = call.callee.value
    name, attributes = traced.composites[_registered(symbol, traced)]
    operands = [call.operands[n] for n in read]
    with ir.InsertionPoint(call):
        composite = stablehlo.CompositeOp(
            [r.type for r in call.results],
            operands,
            name=ir.StringAttr.get(name),
            decomposition=ir.FlatSymbolRefAttr.get(_decomposition(traced.graph.name, symbol)),
            composite_attributes=ir.DictAttr.get({k: _attribute(v) for k, v in attributes.items()}),
        )
    for old, new in zip(call.results, composite.results, strict=True):
        old.replace_all_uses_with(new)
    call.erase()


def _registered(symbol: str, traced: Traced) -> str:
    """jit adds _N to the name of an inner function that it needs for other shapes too."""
    return symbol if symbol in traced.composites else re.sub(r"_\d+$", "", symbol)


def _attribute(value: object) -> ir.Attribute:
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get_f64(value)
    if isinstance(value, tuple):
        return ir.DenseI64ArrayAttr.get(value)
    return ir.StringAttr.get(str(value))
