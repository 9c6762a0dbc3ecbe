"""Lowering a definition over a model: the graph it gives, and what a model that doesn't fit is told."""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

import numpy as np
import pytest
from ggufc.frontend.archdef.parser import parse
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.frontend.ggml_types import by_name
from ggufc.frontend.gguf.file import TensorInfo
from ggufc.frontend.hyperparameters import evaluate
from ggufc.frontend.operations import OPERATIONS, Signature
from ggufc.graph.build import Built, build
from ggufc.graph.ir import Graph
from ggufc.graph.text import print_graph

TOY = """\
arch toy
kind decoder
parameters
  layers n
  width  embedding_length = 32
  cap    capping          = 0
layers
  local  first 1   : factor = 2
  global otherwise : factor = 4
prologue
  x = embed tokens, token_embd.weight
block
  x = rms_norm x, blk.{i}.norm.weight?, eps = 1e-6
  h = linear x, blk.{i}.proj.weight, blk.{i}.proj.bias?, [width]
  h = scale h, factor
  x = add x, h
epilogue
  x = linear x, output.weight | token_embd.weight
  x = softcap x, cap
ignore
  blk.{i}.unused.weight
"""
SHAPES = {"token_embd.weight": (9, 32), "blk.0.proj.weight": (32, 32), "blk.1.proj.weight": (32, 32)}


def lowered(
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    *,
    types: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    text: str = TOY,
) -> Built:
    """What a definition makes of a model with these tensors."""
    definition = parse(text, "toy.archdef")
    hyperparameters = evaluate(definition, {"toy.n": 2} | dict(metadata or {}), lambda name: name in shapes, "toy.gguf")
    named = {name: by_name((types or {}).get(name, "f32")) for name in shapes}
    tensors = {name: TensorInfo(name, named[name], shape, 0, 0) for name, shape in shapes.items()}
    return build(definition, hyperparameters, tensors, "toy.gguf")


def built(*given: Any, **options: Any) -> Graph:
    """The graph alone."""
    return lowered(*given, **options).graph


def test_every_layer_has_every_step_with_the_values_of_its_kind() -> None:
    assert (
        print_graph(built())
        == """\
graph @forward(%tokens: i32[T]) {
  %0: f32[T, 32] = embed(%tokens, @token_embd.weight: f32[9, 32])  # prologue
  %1: f32[T, 32] = linear(%0, @blk.0.proj.weight: f32[32, 32]) {shape = [32]}  # layer 0, local
  %2: f32[T, 32] = scale(%1) {by = 2.0}  # layer 0, local
  %3: f32[T, 32] = add(%0, %2)  # layer 0, local
  %4: f32[T, 32] = linear(%3, @blk.1.proj.weight: f32[32, 32]) {shape = [32]}  # layer 1, global
  %5: f32[T, 32] = scale(%4) {by = 4.0}  # layer 1, global
  %6: f32[T, 32] = add(%3, %5)  # layer 1, global
  %7: f32[T, 9] = linear(%6, @output.weight or @token_embd.weight: f32[9, 32]) {shape = [9]}  # epilogue
  return %7
}
"""
    )


def test_optional_tensors_are_read_where_they_are() -> None:
    """Layer 1 has a norm and a bias; in layer 0 the norm vanishes and the product stays without bias."""
    graph = built(SHAPES | {"blk.1.norm.weight": (32,), "blk.1.proj.bias": (32,)})
    assert [op.name for op in graph.ops if op.note.startswith("layer 0")] == ["linear", "scale", "add"]
    assert [op.name for op in graph.ops if op.note.startswith("layer 1")] == [
        "rms_norm",
        "linear",
        "bias",
        "scale",
        "add",
    ]


def test_without_its_bias_a_norm_is_still_a_norm() -> None:
    text = TOY.replace("rms_norm x, blk.{i}.norm.weight?", "layer_norm x, blk.{i}.norm.weight, blk.{i}.norm.bias?")
    graph = built(
        SHAPES | {"blk.0.norm.weight": (32,), "blk.1.norm.weight": (32,), "blk.1.norm.bias": (32,)}, text=text
    )
    assert [len(op.weights) for op in graph.ops if op.name == "layer_norm"] == [1, 2]


def test_what_vanished_in_one_layer_is_still_missed_in_the_next() -> None:
    """Only layer 0 may do without %b; layer 1 never sets it."""
    text = TOY.replace("  h = scale h, factor\n", "  h = add h, b\n").replace(
        "block\n", "block local\n  b = linear x, blk.{i}.extra.weight?, [width]\nblock\n"
    )
    with pytest.raises(InputError, match=r"toy.archdef:\d+:14: 'b' is read before it is set"):
        built(text=text)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("  x = softcap x, cap\n", "  x = softcap x, cap\n  y = gain x, out.scale?\n", 20),
        ("embed tokens, token_embd.weight", "embed tokens, tok_embd.weight?", 19),
    ],
)
def test_a_result_that_vanished_is_missed(old: str, new: str, line: int) -> None:
    with pytest.raises(
        InputError, match=rf"^toy.archdef:{line}:\d+: '[xy]' is the result, and isn't there: this step, "
    ):
        built(text=TOY.replace(old, new))


def test_a_head_of_its_own_goes_before_the_tied_one() -> None:
    head = built(SHAPES | {"output.weight": (7, 32)}).ops[-1].weights[0]
    assert (head.name, head.tied_to, head.type.shape) == ("output.weight", None, (7, 32))


def test_a_cap_in_the_file_makes_a_step() -> None:
    assert built(metadata={"toy.capping": 30}).ops[-1].attributes == (("cap", 30.0),)


def test_ignored_tensors_may_stay_unread() -> None:
    assert lowered(SHAPES | {"blk.1.unused.weight": (3,)}) == lowered()


@pytest.mark.parametrize("further", [("blk.2.proj.weight",), ("a.b", "c.d"), ("blk.2.unused.weight",)])
def test_other_tensors_that_no_step_reads_are_told(further: tuple[str, ...]) -> None:
    found = lowered(SHAPES | dict.fromkeys(further, (32, 32)))
    assert (found.graph, found.unread) == (built(), further)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"blk.1.proj.weight": (48, 32)},
            "toy.archdef:14:7: linear: tensor 'blk.1.proj.weight' has shape [48, 32], wanted [32, 32]",
        ),
        (
            {"blk.0.norm.weight": (31,)},
            "toy.archdef:13:7: rms_norm: tensor 'blk.0.norm.weight' has shape [31], wanted [32]",
        ),
        (
            {"blk.0.proj.bias": (32, 1)},
            "toy.archdef:14:7: bias: tensor 'blk.0.proj.bias' has shape [32, 1], wanted [32]",
        ),
        ({"token_embd.weight": (9,)}, "toy.archdef:11:7: embed: tensor 'token_embd.weight' "),
        *(({name: ()}, f"toy.gguf: tensor {name!r} has no dimension, wanted a vector or a matrix") for name in SHAPES),
    ],
)
def test_tensors_that_do_not_fit(changed: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError) as error:
        built(SHAPES | changed)
    assert str(error.value).startswith(message)


def test_a_missing_tensor_is_told_with_the_nearest_name() -> None:
    shapes = {name.replace("1.proj", "1.porj"): shape for name, shape in SHAPES.items()}
    with pytest.raises(InputError) as error:
        built(shapes)
    missing = "toy.archdef:14:17: the model has no tensor 'blk.1.proj.weight' (did you mean 'blk.1.porj.weight'?)"
    assert str(error.value) == f"{missing} (model toy.gguf)"


def test_the_nearest_name_is_an_unread_one_of_the_same_layer() -> None:
    """blk.11 has what looks most like it, and blk.1 a tensor of that name that another step reads."""
    shapes = {f"blk.{i}.proj.weight": (32, 32) for i in range(12) if i != 1} | {"token_embd.weight": (9, 32)}
    with pytest.raises(InputError, match=r"no tensor 'blk.1.proj.weight' \(did you mean 'blk.1.prjj.weight'\?\)"):
        built(shapes | {"blk.1.prjj.weight": (32, 32), "blk.1.norm.weight": (32,)}, metadata={"toy.n": 12})


def test_an_attention_that_does_not_fit_is_told_with_its_layer() -> None:
    text = NUMBERS.replace("STEP", "a = linear h, blk.{i}.proj.weight, [2, 16]\n  a = attention q, a, a, scale = 1")
    with pytest.raises(InputError) as error:
        built(text=text, metadata={"toy.key": 1})
    said = "toy.archdef:12:7: attention: q has heads of 8 elements and k of 16 (values of tensor 'blk.0.proj.weight' "
    assert str(error.value) == f"{said}[32, 32]); in layer 0 (model toy.gguf)"


def test_values_that_do_not_fit_are_told_with_the_tensors_that_gave_them() -> None:
    text = TOY.replace(", [width]", "")
    with pytest.raises(InputError) as error:
        built(SHAPES | {"blk.1.proj.weight": (48, 32)}, text=text)
    found = "takes two values of one type, found f32[T, 32] and f32[T, 48] (values of"
    tensors = "tensor 'token_embd.weight' [9, 32] and tensor 'blk.1.proj.weight' [48, 32])"
    assert f"add: {found} {tensors}; in layer 1" in str(error.value)


def test_what_no_part_of_a_value_takes_is_told() -> None:
    """A fused tensor with more rows than its parts need: the others would be left out in silence."""
    parts = "p = linear h, blk.{i}.proj.weight\n  a = part p, 0, [16]\n  b = part p, 24, [8]\n  "
    text = TOY.replace("  x = add x, h\n", f"  {parts}b = scale b, factor\n  a = scale a, factor\n  x = add x, h\n")
    with pytest.raises(InputError) as error:
        built(text=text)
    assert "p = linear: no step takes elements 16 to 24 of the 32 of each row (values of tensor" in str(error.value)
    with pytest.raises(InputError, match="no step takes elements 16 to 32 of the 32 of each row"):
        built(text=text.replace("part p, 24", "part p, 8"))
    assert built(text=text.replace("part p, 24, [8]", "part p, 16, [16]"))
    halves = text.replace("part p, 0, [16]", "half p, 0").replace("part p, 24, [8]", "half p, 0")
    with pytest.raises(InputError, match="p = linear: no step takes half 1 of the last axis"):
        built(text=halves)
    assert built(text=halves.replace("b = half p, 0", "b = half p, 1"))


@pytest.mark.parametrize("step", ["copy tokens", "copy positions", "top_k x, 2", "pool tokens, 0"])
def test_a_result_is_made_of_numbers(step: str) -> None:
    with pytest.raises(InputError, match=r"^toy.archdef:19:7: 'x' is the result, and is i32\[T(, 2)?\], wanted f32"):
        built(text=TOY.replace("x = softcap x, cap", f"x = {step}"))


EVERY_KIND_OF_VALUE = """\
  wide = linear x, blk.{i}.proj.weight, [4, 8]
  chosen = top_k x, k = 2
  weighed = route x, chosen
  each = expert_linear x, chosen, blk.{i}.experts.weight
"""
VALUES = ("tokens", "positions", "x", "wide", "chosen", "weighed", "each")
TENSORS = ("blk.{i}.proj.weight", "blk.{i}.experts.weight", "blk.{i}.norm.weight")


def spellings(signature: Signature) -> Iterator[str]:
    """Steps of an operation over values and tensors of every kind, with and without what may be left out."""
    numbers = [a for a in signature.attributes if a.kind != "word"]
    words = [f"{a.name} = {word}" for a in signature.attributes if a.kind == "word" for word in a.words[:1]]
    for values in product(VALUES, repeat=len(signature.values)):
        for count in range(len(signature.tensors), len(signature.all_tensors) + 1):
            for tensors in product(TENSORS, repeat=count):
                for shape in ("", "[4, 8]", "[32]") if signature.shaped else ("",):
                    for number in (None, 0, 2):
                        given = [f"{a.name} = {number}" for a in numbers if number is not None]
                        given += [f"{a.name} = 1" for a in numbers if number is None and a.default is None]
                        arguments = (*values, *tensors, shape, *words, *given)
                        yield f"{signature.name} {', '.join(filter(None, arguments))}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_an_operation_can_not_take_is_told_with_its_place(operation: str) -> None:
    shapes = SHAPES | {f"blk.{i}.experts.weight": (32, 16, 32) for i in range(2)}
    shapes |= {f"blk.{i}.norm.weight": (32,) for i in range(2)}
    for step in islice(spellings(OPERATIONS[operation]), 2000):
        text = TOY.replace("block\n", f"block\n{EVERY_KIND_OF_VALUE}  made = {step}\n")
        try:
            lowered(shapes, text=text)
        except (InputError, UnsupportedError) as error:
            assert str(error).startswith("toy.archdef:"), step


def test_a_type_without_kernels_is_unsupported_not_wrong() -> None:
    with pytest.raises(UnsupportedError, match=r"^toy.gguf: tensor 'blk.0.proj.weight' has type id 41 \(q1_0\), which"):
        built(types={"blk.0.proj.weight": "q1_0"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("x = add x, h", "x = add x, hh", "toy.archdef:16:14: 'hh' is read before it is set (did you mean 'h'?)"),
        ("[width]", "[width / 5]", "toy.archdef:14:7: a dimension of the shape is 6.4, wanted a whole number from 1"),
        ("[width]", "[width - 32]", "toy.archdef:14:7: a dimension of the shape is 0, wanted a whole number from 1"),
        (
            "[width]",
            "[4, width]",
            "toy.archdef:14:7: linear: tensor 'blk.0.proj.weight' has shape [32, 32], wanted",
        ),
        ("factor = 2", 'factor = "two"', "toy.archdef:15:7: "),
        (
            "embed tokens, token_embd",
            "embed tokens, blk.{i}.embd",
            "toy.archdef:11:21: tensor 'blk.{i}.embd.weight'",
        ),
        ("embed tokens", "embed x", "toy.archdef:11:13: 'x' is read before it is set"),
    ],
)
def test_steps_that_mean_nothing(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        built(text=TOY.replace(old, new))
    assert str(error.value).startswith(message)
    assert str(error.value).endswith("(model toy.gguf)")


def test_the_number_of_operations_is_bounded() -> None:
    text = TOY.replace("  x = add x, h\n", "  x = add x, h\n" + "  x = gelu x\n" * 100)
    shapes = {"token_embd.weight": (9, 32)} | {f"blk.{i}.proj.weight": (32, 32) for i in range(1000)}
    with pytest.raises(InputError, match=r"^toy.archdef:\d+:7: more than 65536 operations in all layers"):
        built(shapes, text=text, metadata={"toy.n": 1000})


@pytest.mark.parametrize("blocks", [3, 4096])
def test_tensors_of_blocks_that_are_not_run_may_stay_unread(blocks: int) -> None:
    assert built(SHAPES | {"blk.2.more.weight": (3,)}, metadata={"toy.block_count": blocks}) == built()


NUMBERS = """\
arch toy
kind decoder
parameters
  layers n
  number key
prologue
  x = embed tokens, token_embd.weight
block
  h = rms_norm x, eps = 1e-6
  q = linear h, blk.{i}.proj.weight, [4, 8]
  STEP
epilogue
  x = linear x, token_embd.weight
"""
WHOLE = "wanted a whole number from 0 to 2147483647"
FACTOR = "wanted a number above 0 and up to 2147483648"
ROPE = "q = rope q, neox, "
ATTENTION = "q = attention q, q, q, "


def numbered(step: str, number: object) -> Graph:
    """The graph of a model whose file gives this number to a step."""
    return built(text=NUMBERS.replace("STEP", step), metadata={"toy.key": number})


@pytest.mark.parametrize(
    ("step", "number", "message"),
    [
        (f"{ATTENTION}scale = 1, window = number", 8.5, f"attention: window is 8.5, {WHOLE}"),
        (f"{ATTENTION}scale = 1, window = number", -8, f"attention: window is -8, {WHOLE}"),
        (f"{ATTENTION}scale = 1, window = number", 2**32 - 1, f"attention: window is 4294967295, {WHOLE}"),
        (f"{ATTENTION}scale = 1, ahead = number", 2**31, f"attention: ahead is 2147483648, {WHOLE}"),
        (f"{ATTENTION}scale = 1, cap = number", -1, "attention: cap is -1.0, wanted a finite number from 0"),
        (f"{ATTENTION}scale = number", 0, f"attention: scale is 0.0, {FACTOR}"),
        (f"{ATTENTION}scale = number", 1e-60, f"attention: scale is 1e-60, {FACTOR}"),
        (f"{ROPE}number", 0, "rope: base is 0.0, wanted a finite number above 1"),
        (f"{ROPE}number", -10000.0, "rope: base is -10000.0, wanted a finite number above 1"),
        (f"{ROPE}number, yarn = 64", 1, "rope: base is 1.0, wanted a finite number above 1"),
        (f"{ROPE}number", 1e300, "rope: base is 1e+300, wanted a finite number above 1"),
        (f"{ROPE}100, scale = number", 0, f"rope: scale is 0.0, {FACTOR}"),
        (f"{ROPE}100, scale = 1 / number", 2.0**-40, f"rope: scale is 1099511627776.0, {FACTOR}"),
        (f"{ROPE}100, magnitude = number", -1, f"rope: magnitude is -1.0, {FACTOR}"),
        (f"{ROPE}100, dims = number", 3, "rope: rotates 3 of 8 elements: an even number that fits"),
        (f"{ROPE}100, dims = number", -1, f"rope: dims is -1, {WHOLE}"),
        (f"{ROPE}100, yarn = number", 0.5, f"rope: yarn is 0.5, {WHOLE}"),
        ("h = rms_norm h, number", -1e-6, "rms_norm: eps is -1e-06, wanted a finite number from 0"),
        ("h = layer_norm h, number", -1, "layer_norm: eps is -1.0, wanted a finite number from 0"),
        ("h = softcap h, number", -30, "softcap: cap is -30.0, wanted a finite number from 0"),
        ("h = scale h, number", 1e39, "scale: by is 1e+39, wanted a finite number"),
        ("h = part h, number, [8]", -1, f"part: start is -1, {WHOLE}"),
        ("h = half h, number", 2, "half: number is 2, wanted 0 or 1"),
        ("h = top_k h, number", 2**40, f"top_k: k is 1099511627776, {WHOLE}"),
        ("h = top_k h, number", 0, "top_k: chooses 0 of 32 experts"),
        ("h = pool h, number", 4, "pool: kind is 4, wanted 1 (mean)"),
        ("q = linear h, blk.{i}.proj.weight, [number]", 32.5, "a dimension of the shape is 32.5, wanted a whole"),
        ("q = copy q@number", 0.5, "number is 0.5, wanted the number of an earlier layer"),
    ],
)
def test_a_number_that_would_overflow_or_give_nan_is_refused_with_its_line(
    step: str, number: object, message: str
) -> None:
    with pytest.raises(InputError) as error:
        numbered(step, number)
    place, _, said = str(error.value).partition(": ")
    assert place.startswith("toy.archdef:11:")
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("step", "name", "number", "value"),
    [
        (f"{ATTENTION}scale = 1, window = number", "window", np.float32(8), 8),
        (f"{ATTENTION}scale = 1, window = number", "window", 2**31 - 1, 2**31 - 1),
        (f"{ROPE}100, dims = number", "dims", np.float64(4), 4),
        (f"{ROPE}number", "base", np.uint32(10000), 10000.0),
        ("q = linear h, blk.{i}.proj.weight, [number, 4]", "shape", np.float32(8), (8, 4)),
        ("h = rms_norm h, number", "eps", 0, 0.0),
    ],
)
def test_numbers_are_whole_or_not_by_what_they_are_for(step: str, name: str, number: object, value: object) -> None:
    op = [op for op in numbered(step, number).ops if op.note == "layer 0"][-1]
    assert op.attribute(name) == value
    assert type(op.attribute(name)) is type(value)
