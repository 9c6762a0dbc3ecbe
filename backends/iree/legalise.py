# The bindings in iree.compiler.ir are a native module without stubs.
# pyright: reportAttributeAccessIssue=false
"""Rewrites the portable module into one that IREE 3.13 compiles: weights as parameters, composites as dispatches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from iree.compiler import ir

from ...graph.types import TensorType
from ..native.kernel import Kernel
from ..native.kernels.linear_many_bytes import rounded_to_bytes
from ..native.rules import RULES
from ..native.target import Target
from .dispatches import Call, Dispatches, Operand
from .executables import RAW, parse_executable, target_attribute
from .parameters import SCOPE, Place

PREFIX = "ggufc."
"""What the name of an operation's composite begins with."""


@dataclass(frozen=True)
class Legal:
    """A module that IREE compiles, with what it needs: kernels to link, parameters to map.

    `parameters` gives the bytes of the files that each parameter of the module is.
    """

    module: ir.Module
    kernels: tuple[Kernel, ...]
    parameters: dict[str, Place]


def legalise(text: str, places: Mapping[str, Place], target: Target, library: str = "", activations: int = 16) -> Legal:
    """The module for IREE, in the caller's context.

    Args:
        text: the portable module.
        places: where each of its weights lies in the files that will be mapped.
        target: the machine that it is compiled for.
        library: the object that its code goes to, where that isn't a part of the compiled module.
        activations: bits that products of many rows round them to, 16 or 8.
    """
    module = ir.Module.parse(text)
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    weights = {_symbol(f): f for f in functions if not _has_body(f)}
    entries = [f for f in functions if _has_body(f) and _visibility(f) == "public"]
    dispatches = Dispatches()
    globals_ = _Globals(places)
    by_bytes = rounded_to_bytes(activations, target)
    rewriters = [_Entry(entry, weights, globals_, dispatches, by_bytes) for entry in entries]
    for rewriter in rewriters:
        rewriter.lower()
    for rewriter in rewriters:  # when it is known which weights kernels take as bytes
        rewriter.load_weights()
    for function in functions:
        if not _has_body(function):
            function.erase()
        else:
            _annotate_broadcasts(function)
    start = ir.InsertionPoint.at_block_begin(module.body)
    executables = (parse_executable(name, run, target, library) for name, run in dispatches.executables.items())
    for operation in [*globals_.declarations(), *executables]:
        start.insert(operation)
    device = f'#hal.device.target<"local", [{target_attribute(target, library)}]> : !hal.device'
    module.operation.attributes["hal.device.targets"] = ir.ArrayAttr.get([ir.Attribute.parse(device)])
    _erase_unused_private(module)
    module.operation.verify()
    return Legal(module, dispatches.kernels, globals_.parameters())


def _symbol(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _visibility(function: ir.Operation) -> str:
    attributes = function.attributes
    return ir.StringAttr(attributes["sym_visibility"]).value if "sym_visibility" in attributes else "public"


def _has_body(function: ir.Operation) -> bool:
    return len(function.regions[0].blocks) > 0


class _Globals:
    """The weights as globals, one for each tensor: bytes if a kernel takes it so, else typed for compiled code.

    IREE maps a parameter without a copy only where its address is a multiple of 64, and a GGUF aligns tensors to 32.
    So the bytes that a kernel takes start at the aligned address before the tensor, and the kernel is given the lead.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.places = places
        self.types: dict[str, ir.Type] = {}

    def load_bytes(self, name: str) -> ir.Value:
        """The tensor's bytes behind its lead, at the current insertion point."""
        return self._load(name, self._byte_type(name))

    def load(self, name: str, type_: ir.Type) -> ir.Value:
        """The tensor as compiled code reads it. Where a kernel takes it as bytes, these are copied into the type."""
        if self.types.get(name) != self._byte_type(name):
            return self._load(name, type_)
        place, tensor = self.places[name], ir.RankedTensorType(type_)
        i8 = ir.IntegerType.get_signless(8)
        width = place.nbytes // prod(tensor.shape)
        limits = {"start_indices": [place.lead], "limit_indices": [place.lead + place.nbytes], "strides": [1]}
        steps = (
            ("stablehlo.slice", [place.nbytes], {k: ir.DenseI64ArrayAttr.get(v) for k, v in limits.items()}),
            ("stablehlo.reshape", [*tensor.shape, *([width] if width > 1 else [])], {}),
        )
        value = self.load_bytes(name)
        for operation, shape, attributes in steps:
            result = ir.RankedTensorType.get(shape, i8)
            value = ir.Operation.create(operation, results=[result], operands=[value], attributes=attributes).results[0]
        return ir.Operation.create("stablehlo.bitcast_convert", results=[type_], operands=[value]).results[0]

    def _load(self, name: str, type_: ir.Type) -> ir.Value:
        assert self.types.setdefault(name, type_) == type_, f"{name} is read under two types"
        symbol = ir.FlatSymbolRefAttr.get(name)
        return ir.Operation.create("util.global.load", results=[type_], attributes={"global": symbol}).results[0]

    def _byte_type(self, name: str) -> ir.Type:
        place = self.places[name]
        return ir.RankedTensorType.get([place.lead + place.nbytes], ir.IntegerType.get_signless(8))

    def parameters(self) -> dict[str, Place]:
        """The bytes of the files that each global is."""
        found = {}
        for name, type_ in self.types.items():
            place = self.places[name]
            lead = place.lead if type_ == self._byte_type(name) else 0
            found[name] = Place(place.offset - lead, place.nbytes + lead, place.file)
        return found

    def declarations(self) -> list[ir.Operation]:
        found = []
        for name, type_ in self.types.items():
            initial = f'#flow.parameter.named<"{SCOPE}"::{_quoted(name)}> : {type_}'
            module = ir.Module.parse("module { util.global private @w : i32 }")
            operation = module.body.operations[0].operation
            operation.attributes["sym_name"] = ir.StringAttr.get(name)
            operation.attributes["type"] = ir.TypeAttr.get(type_)
            operation.attributes["initial_value"] = ir.Attribute.parse(initial)
            operation.detach_from_parent()
            found.append(operation)
        return found


def _quoted(name: str) -> str:
    return str(ir.StringAttr.get(name))


class _Entry:
    """One entry point on its way from composites to dispatches."""

    def __init__(
        self,
        function: ir.Operation,
        weights: Mapping[str, ir.Operation],
        globals_: _Globals,
        dispatches: Dispatches,
        by_bytes: frozenset[str],
    ) -> None:
        """`by_bytes` are the types whose products of many rows round activations to 8 bits."""
        self.by_bytes = by_bytes
        self.function, self.weights, self.globals, self.dispatches = function, weights, globals_, dispatches
        self.block = function.regions[0].blocks[0]
        self.made: dict[object, ir.Value] = {}
        self.names: dict[ir.Value, str] = {}

    def lower(self) -> None:
        """Puts dispatches in the place of the composites that kernels can do."""
        self._scalars_as_scalars()
        for op in list(self.block.operations):
            operation = op.operation
            if operation.name == "func.call":
                name = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
                if name in self.weights:
                    self.names[operation.results[0]] = name
            elif operation.name == "stablehlo.composite":
                self._composite(operation)
        self.dispatches.join(self.block)

    def load_weights(self) -> None:
        """Puts loads of globals in the place of the weights that compiled code reads."""
        for op in list(self.block.operations):
            operation = op.operation
            if operation.name == "func.call" and operation.results[0] in self.names:
                if list(operation.results[0].uses):
                    with ir.InsertionPoint(operation), operation.location:
                        value = operation.results[0]
                        value.replace_all_uses_with(self.globals.load(self.names[value], value.type))
                operation.erase()

    def once(self, key: object, make: Callable[[], ir.Value]) -> ir.Value:
        """The value made for this key before, or a new one."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def _scalars_as_scalars(self) -> None:
        """A rank-0 argument becomes a scalar: a tensor would be staged in device memory at every call."""
        with ir.InsertionPoint.at_block_begin(self.block), ir.Location.unknown():
            for argument in list(self.block.arguments):
                type_ = ir.RankedTensorType(argument.type)
                if type_.rank == 0:
                    argument.set_type(type_.element_type)
                    tensor = ir.Operation.create("tensor.from_elements", results=[type_], operands=[argument])
                    argument.replace_all_uses_except(tensor.results[0], [tensor])
        old = ir.FunctionType(ir.TypeAttr(self.function.attributes["function_type"]).value)
        type_ = ir.FunctionType.get([a.type for a in self.block.arguments], old.results)
        self.function.attributes["function_type"] = ir.TypeAttr.get(type_)

    def _composite(self, operation: ir.Operation) -> None:
        name = ir.StringAttr(operation.attributes["name"]).value.removeprefix(PREFIX)
        given = operation.attributes
        named = ir.DictAttr(given["composite_attributes"]) if "composite_attributes" in given else ()
        attributes = {a.name: _python(a.attr) for a in named}
        operands = list(operation.operands)
        while ir.RankedTensorType(operands[0].type).rank == 0:
            operands.pop(0)  # sizes, which a rule asks for itself
        result = operation.results[0]
        with ir.InsertionPoint(operation), operation.location:
            site = _Site(self, result.type)
            result.replace_all_uses_with(RULES[name](site, operands, attributes, site.shape(result)))
        operation.erase()


Number = int | float | ir.Value
"""A number known now, or an index value of the program (the size of a dynamic dimension)."""


class _Site:
    """The `Site` of one composite, at the current insertion point: dispatches of tensors."""

    def __init__(self, entry: _Entry, result: ir.Type) -> None:
        self._entry, self._result = entry, result

    def shape(self, value: ir.Value) -> list[int]:
        return ir.RankedTensorType(value.type).shape

    def size(self, value: ir.Value, axis: int) -> Number:
        type_ = ir.RankedTensorType(value.type)
        if not type_.is_dynamic_dim(axis):
            return type_.shape[axis]

        def make() -> ir.Value:
            operands = [value, self._number(axis, "i64")]
            return ir.Operation.create("tensor.dim", results=[ir.IndexType.get()], operands=operands).results[0]

        return self._entry.once(("size", value, axis), make)

    def dtype(self, value: ir.Value) -> str:
        element = str(ir.RankedTensorType(value.type).element_type)
        return "q8_0" if element == "i8" else element  # the bytes of a cache's blocks

    def times(self, number: Number, factor: int) -> Number:
        if not isinstance(number, ir.Value):
            return number * factor

        def make() -> ir.Value:
            operands = [number, self._number(factor, "i64")]
            return ir.Operation.create("arith.muli", results=[ir.IndexType.get()], operands=operands).results[0]

        return number if factor == 1 else self._entry.once(("times", number, factor), make)

    def rounds_to_bytes(self, type_name: str) -> bool:
        return type_name in self._entry.by_bytes

    def constant(self, array: np.ndarray) -> ir.Value:
        def make() -> ir.Value:
            element = {"f": ir.F32Type.get(), "i": ir.IntegerType.get_signless(32)}[array.dtype.kind]
            value = ir.DenseElementsAttr.get(array, type=element)
            return ir.Operation.create("arith.constant", results=[value.type], attributes={"value": value}).results[0]

        return self._entry.once(("constant", array.dtype.str, array.shape, array.tobytes()), make)

    def once(self, owner: ir.Value | None, key: object, make: Callable[[], ir.Value]) -> ir.Value:
        return self._entry.once((owner, key), make)

    def dispatch(
        self,
        kernel: Kernel,
        operands: Mapping[str, ir.Value],
        scalars: Mapping[str, Number],
        result: TensorType | None = None,
    ) -> ir.Value:
        buffers: list[Operand | None] = []
        for buffer in kernel.buffers:
            value, lead = operands.get(buffer.name), None
            if value is not None and buffer.dtype == RAW:
                value, before = self._bytes(value)
                lead = self._number(before, "i64")
            buffers.append(None if value is None else Operand(value, self._dynamic_sizes(value), lead))
        type_ = self._type(result) if result else self._result
        output = next(operand for buffer, operand in zip(kernel.buffers, buffers, strict=True) if buffer.output)
        sizes = output.sizes if output else self._result_sizes(type_)
        numbers = tuple(self._number(scalars[s.name], s.dtype) for s in kernel.scalars)
        divided = [scalars[name] for name, _ in kernel.grid]
        is_one = not any(isinstance(n, ir.Value) for n in divided) and prod(kernel.groups(scalars)) == 1
        return self._entry.dispatches.add(Call(kernel, tuple(buffers), numbers, type_, sizes, is_one))

    def _bytes(self, weight: ir.Value) -> tuple[ir.Value, int]:
        """The bytes of a weight, as a kernel takes them, and their lead."""
        globals_, name = self._entry.globals, self._entry.names[weight]
        value = self._entry.once(("weight", name), lambda: globals_.load_bytes(name))
        return value, globals_.places[name].lead

    def _number(self, value: Number, dtype: str) -> ir.Value:
        if isinstance(value, ir.Value):
            return value
        type_ = ir.F32Type.get() if dtype == "f32" else ir.IndexType.get()
        attribute = ir.FloatAttr.get(type_, value) if dtype == "f32" else ir.IntegerAttr.get(type_, int(value))
        return self._entry.once(
            ("number", dtype, value),
            lambda: ir.Operation.create("arith.constant", results=[type_], attributes={"value": attribute}).results[0],
        )

    def _dynamic_sizes(self, value: ir.Value) -> tuple[ir.Value, ...]:
        type_ = ir.RankedTensorType(value.type)
        sizes = [self.size(value, axis) for axis in range(type_.rank) if type_.is_dynamic_dim(axis)]
        return tuple(s for s in sizes if isinstance(s, ir.Value))

    def _result_sizes(self, result: ir.Type) -> tuple[ir.Value, ...]:
        """The only dynamic size of a new tensor is the number of tokens, that of the entry's first argument."""
        type_ = ir.RankedTensorType(result)
        if not any(type_.is_dynamic_dim(axis) for axis in range(type_.rank)):
            return ()
        return (self._number(self.size(self._entry.block.arguments[0], 0), "i64"),)

    def _type(self, type_: TensorType) -> ir.Type:
        """A tensor whose number of tokens is that of the entry point."""
        tokens = ir.RankedTensorType(self._entry.block.arguments[0].type).shape[0]
        sizes = [tokens if isinstance(d, str) else d for d in type_.shape]
        return ir.RankedTensorType.get(sizes, ir.Type.parse(type_.dtype))


def _python(attribute: ir.Attribute) -> Any:
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return tuple(attribute)
    assert isinstance(attribute, (ir.IntegerAttr, ir.FloatAttr, ir.StringAttr))
    return attribute.value


def _annotate_broadcasts(function: ir.Operation) -> None:
    """Says of each dynamic broadcast that no dynamic dimension of its operand expands, which holds of JAX's output."""

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.dynamic_broadcast_in_dim":
            type_ = ir.RankedTensorType(operation.operands[0].type)
            kept = [n for n in range(type_.rank) if type_.is_dynamic_dim(n) or type_.shape[n] != 1]
            operation.attributes["known_nonexpanding_dimensions"] = ir.DenseI64ArrayAttr.get(kept)
        return ir.WalkResult.ADVANCE

    function.walk(visit)


def _erase_unused_private(module: ir.Module) -> None:
    """Decompositions that kernels replaced are read by nobody."""
    used: set[str] = set()

    def visit(operation: ir.Operation) -> ir.WalkResult:
        for key in ("decomposition", "callee"):
            if key in operation.attributes:
                used.add(ir.FlatSymbolRefAttr(operation.attributes[key]).value)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in list(module.body.operations):
        operation = op.operation
        if operation.name != "func.func" or _visibility(operation) != "private":
            continue
        if _symbol(operation) not in used:
            operation.erase()
