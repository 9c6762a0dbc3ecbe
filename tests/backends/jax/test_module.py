"""The portable module, read back: weights once, caches of any length, operations with their meaning."""

import re
from collections.abc import Iterator

import pytest
from ggufc.passes.pipeline import ENTRIES
from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from ..conftest import TinyCase


@pytest.fixture(scope="module", params=["tiny_f32", "tiny_quantized"])
def case(request: pytest.FixtureRequest) -> TinyCase:
    return request.getfixturevalue(request.param)


@pytest.fixture
def module(case: TinyCase) -> Iterator[ir.Module]:
    with make_ir_context(), ir.Location.unknown():
        yield ir.Module.parse(case.text)


def functions(module: ir.Module) -> dict[str, func.FuncOp]:
    return {op.name.value: op for op in module.body.operations if isinstance(op, func.FuncOp)}


def visibility(function: func.FuncOp) -> str:
    return ir.StringAttr(function.attributes["sym_visibility"]).value


def shape(type_: ir.Type) -> list[int | None]:
    tensor = ir.RankedTensorType(type_)
    return [None if tensor.is_dynamic_dim(axis) else tensor.get_dim_size(axis) for axis in range(tensor.rank)]


def operations(module: ir.Module, name: str) -> list[ir.Operation]:
    found = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == name:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def test_the_module_parses_and_has_the_entries_of_the_graphs(case: TinyCase, module: ir.Module) -> None:
    assert module.operation.verify()
    assert {n for n, f in functions(module).items() if visibility(f) == "public"} == set(case.graphs)


def test_every_tensor_of_the_file_is_declared_once_in_its_own_type(case: TinyCase, module: ir.Module) -> None:
    declared = {name: function for name, function in functions(module).items() if function.is_external}
    assert set(declared) == set(case.model.file.tensors)
    for name, tensor in case.model.file.tensors.items():
        assert visibility(declared[name]) == "private"
        found = ir.RankedTensorType(declared[name].type.results[0])
        if tensor.type.name == "f32":
            assert (tuple(found.shape), str(found.element_type)) == (tensor.shape, "f32")
        else:
            rows = tensor.shape[0]
            assert (tuple(found.shape), str(found.element_type)) == ((rows, tensor.nbytes // rows), "ui8")
        assert len(re.findall(rf'func\.func private @"?{re.escape(name)}"?\(\)', case.text)) == 1


@pytest.mark.parametrize("entry", ENTRIES)
def test_caches_have_no_fixed_length_anywhere(case: TinyCase, module: ir.Module, entry: str) -> None:
    graph, function = case.graphs[entry], functions(module)[entry]
    tokens, position, *caches = map(shape, function.type.inputs)
    assert tokens == [None if entry == "prefill" else 1]
    assert position == []
    head = [2, ir.RankedTensorType(function.type.inputs[2]).get_dim_size(2)]
    assert caches == [[None, *head]] * 2 * len(case.model.hyperparameters.layers)
    result, *updated = map(shape, function.type.results)
    assert result == ([1] if entry == "decode_greedy" else [1, case.model.vocabulary])
    assert updated == caches
    aliases = [ir.DictAttr(notes) for notes in function.arg_attrs]
    given = [ir.IntegerAttr(a["tf.aliasing_output"]).value if "tf.aliasing_output" in a else None for a in aliases]
    assert given == [None, None, *range(1, len(graph.results))]


def test_no_weight_is_a_constant(module: ir.Module) -> None:
    for constant in operations(module, "stablehlo.constant"):
        type_ = ir.RankedTensorType(constant.results[0].type)
        size = 1
        for dim in type_.shape:
            size *= dim
        assert size * 4 <= 4096, f"a constant of type {type_}"


def test_every_composite_has_its_meaning_in_the_module(module: ir.Module) -> None:
    composites = operations(module, "stablehlo.composite")
    names = {ir.StringAttr(c.attributes["name"]).value for c in composites}
    fused = ("norm_linear", "norm_glu", "norm_rope", "norm_add")
    assert names == {f"ggufc.{n}" for n in ("embed", "scale", "linear", *fused, "attention", "kv_update", "argmax")}
    known = functions(module)
    for composite in composites:
        meaning = known[ir.FlatSymbolRefAttr(composite.attributes["decomposition"]).value]
        assert not meaning.is_external
        assert visibility(meaning) == "private"
        assert list(meaning.type.inputs) == [operand.type for operand in composite.operands]
        assert list(meaning.type.results) == [result.type for result in composite.results]


def test_a_composite_says_what_it_needs(case: TinyCase, module: ir.Module) -> None:
    """The attributes of each attention are those of its layer: a window in local layers, none in the global one."""
    windows = []
    for composite in operations(module, "stablehlo.composite"):
        if ir.StringAttr(composite.attributes["name"]).value == "ggufc.attention":
            attributes = ir.DictAttr(composite.attributes["composite_attributes"])
            windows.append(ir.IntegerAttr(attributes["window"]).value)
    local = [8 if layer.kinds[0] == "local" else 0 for layer in case.model.hyperparameters.layers]
    assert windows == local * len(ENTRIES)
