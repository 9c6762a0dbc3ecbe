"""Runs the portable module on XLA's CPU client: the text is read back, bound to weights and sizes, and compiled."""

import io
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jax._src.interpreters.mlir import make_ir_context  # the context in which the module's text parses
from jax.extend.mlir import refine_polymorphic_shapes
from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]  (a native module without stubs)
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo


def specialize(text: str, entry: str, shapes: Sequence[tuple[int, ...]]) -> tuple[bytes, list[str]]:
    """One entry point of a portable module as a module of its own that XLA compiles.

    Args:
        text: the module, as `portable_module` writes it.
        entry: the name of a public function.
        shapes: the shape of each of its arguments, with every size known.

    Returns:
        MLIR bytecode with `@main(arguments..., weights...)`, and the names of the weights in order.
    """
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        functions = {f.name.value: f for f in module.body.operations if isinstance(f, func.FuncOp)}
        chosen = functions[entry]
        aliases = _take_argument_notes(chosen)
        weights = _weights_to_arguments(chosen)
        _composites_to_calls(chosen)
        for function in functions.values():
            if function.is_external or (_is_public(function) and function is not chosen):
                function.operation.erase()
        chosen.attributes["sym_visibility"] = ir.StringAttr.get("private")
        with ir.InsertionPoint(module.body):
            _add_main(chosen, shapes, aliases)
        refined = refine_polymorphic_shapes(
            mlir_module=_bytecode(module), enable_shape_assertions=True, validate_static_shapes=True
        )
        return refined, weights


def _composites_to_calls(function: func.FuncOp) -> None:
    """Shape refinement goes into calls, not into the decompositions of composites."""
    for op in list(function.entry_block.operations):
        if op.operation.name == "stablehlo.composite":
            with ir.InsertionPoint(op):
                call = func.CallOp([r.type for r in op.results], op.attributes["decomposition"], list(op.operands))
            for old, new in zip(op.results, call.results, strict=True):
                old.replace_all_uses_with(new)
            op.operation.erase()


def _is_public(function: func.FuncOp) -> bool:
    return function.attributes["sym_visibility"] == ir.StringAttr.get("public")


def _take_argument_notes(function: func.FuncOp) -> list[ir.DictAttr]:
    if "arg_attrs" not in function.attributes:
        return [ir.DictAttr.get({})] * len(function.type.inputs)
    notes = [ir.DictAttr(given) for given in function.arg_attrs]
    del function.attributes["arg_attrs"]
    return notes


def _add_main(chosen: func.FuncOp, shapes: Sequence[tuple[int, ...]], aliases: list[ir.DictAttr]) -> None:
    """`@main` of known shapes that calls the chosen entry point; refinement carries the shapes into it."""
    inner = chosen.type.inputs
    outer = [
        ir.RankedTensorType.get(shape, ir.RankedTensorType(type_).element_type)
        for shape, type_ in zip(shapes, inner, strict=False)
    ]
    main = func.FuncOp("main", ir.FunctionType.get([*outer, *inner[len(outer) :]], chosen.type.results))
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([*aliases, *[ir.DictAttr.get({})] * (len(inner) - len(outer))])
    with ir.InsertionPoint(main.add_entry_block()):
        arguments = [
            argument if argument.type == type_ else stablehlo.ConvertOp(type_, argument).result
            for argument, type_ in zip(main.arguments, inner, strict=True)
        ]
        call = func.CallOp(chosen.type.results, ir.FlatSymbolRefAttr.get(chosen.name.value), arguments)
        func.ReturnOp(list(call.results))


def _weights_to_arguments(main: func.FuncOp) -> list[str]:
    """Every call of a weight's symbol reads a new argument instead, one for each weight."""
    block = main.entry_block
    arguments: dict[str, ir.Value] = {}
    for op in list(block.operations):
        if isinstance(op, func.CallOp):
            name = op.callee.value
            if name not in arguments:
                arguments[name] = block.add_argument(op.results[0].type, ir.Location.unknown())
            op.results[0].replace_all_uses_with(arguments[name])
            op.erase()
    type_ = ir.FunctionType.get([a.type for a in block.arguments], main.type.results)
    main.attributes["function_type"] = ir.TypeAttr.get(type_)
    return list(arguments)


def _bytecode(module: ir.Module) -> bytes:
    output = io.BytesIO()
    module.operation.write_bytecode(output)
    return output.getvalue()


class XlaModule:
    """Compiles an entry point once for each set of shapes, and calls it."""

    def __init__(self, text: str, weights: Mapping[str, np.ndarray]) -> None:
        """`weights` in the shapes that the module declares: float32, or uint8 rows of raw blocks."""
        self.text, self.weights = text, weights
        self.client = jax.devices("cpu")[0].client
        self.on_device: dict[str, jax.Array] = {}
        self.compiled: dict[tuple[object, ...], tuple[_jax.LoadedExecutable, list[jax.Array]]] = {}

    def call(self, entry: str, arguments: Sequence[np.ndarray | jax.Array]) -> list[jax.Array]:
        """The results of an entry point; the arrays of donated arguments must not be used again."""
        arrays = [a if isinstance(a, jax.Array) else jax.device_put(a) for a in arguments]
        key = (entry, *(a.shape for a in arrays))
        if key not in self.compiled:
            self.compiled[key] = self._compile(entry, [a.shape for a in arrays])
        executable, weights = self.compiled[key]
        results = executable.execute_sharded([*arrays, *weights])
        return [shards[0] for shards in results.disassemble_into_single_device_arrays()]

    def _compile(self, entry: str, shapes: Sequence[tuple[int, ...]]) -> tuple[_jax.LoadedExecutable, list[jax.Array]]:
        module, names = specialize(self.text, entry, shapes)
        devices = _jax.DeviceList(tuple(self.client.local_devices()[:1]))
        executable = self.client.compile_and_load(module, devices)
        for name in names:
            if name not in self.on_device:
                self.on_device[name] = jax.device_put(self.weights[name])
        return executable, [self.on_device[n] for n in names]
