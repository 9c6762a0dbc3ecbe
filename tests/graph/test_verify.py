"""The rules of the IR: a sound graph, and each way to break it."""

import pytest
from ggufc.graph.ir import Value
from ggufc.graph.text import parse_graph
from ggufc.graph.types import TensorType
from ggufc.graph.verify import VerifyError, verify

SOUND = """\
graph @f(%tokens: i32[T], %position: i32[], %k.0: f16[S, 1, 4]) {
  %0: f32[T, 4] = embed(%tokens, @table: q8_0[9, 4])
  %1: f32[T, 1, 4] = linear(%0, @k: f32[4, 4]) {shape = [1, 4]}
  %2: f16[S, 1, 4] = kv_update(%k.0, %1, %position)
  %3: f32[T, 4] = rms_norm(%0, @n: f32[4]) {eps = 0.0}
  %4: f32[T, 4] = add(%0, %3)
  return %2
}
"""


def test_a_sound_graph_comes_back() -> None:
    graph = parse_graph(SOUND)
    assert verify(graph) is graph


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%4: f32[T, 4] =", "%0: f32[T, 4] =", "%0 = add: the name is set twice"),
        ("%3: f32[T, 4] =", "%3: f32[T, 5] =", "%3 = rms_norm: the result is f32[T, 5], its operands give f32[T, 4]"),
        ("@n: f32[4]", "@n: f32[5]", "%3 = rms_norm: has shape [5], wanted [4]"),
        ("@n: f32[4]", "@n: q8_0[4]", "%3 = rms_norm: has type q8_0, wanted f32"),
        ("{eps = 0.0}", "", "%3 = rms_norm: rms_norm has attributes eps, found none"),
        ("{eps = 0.0}", "{eps = 0.0, by = 1}", "%3 = rms_norm: rms_norm has attributes eps, found by, eps"),
        ("add(%0, %3)", "add(%0, %1)", "%4 = add: takes two values of one type, found f32[T, 4] and f32[T, 1, 4]"),
        ("add(%0, %3)", "add(%0)", "%4 = add: add takes 2 values, found 1"),
        ("add(%0, %3)", "ad(%0, %3)", "%4 = ad: no operation 'ad'"),
        ("add(%0, %3)", "gelu(%2)", "%4 = gelu: %2 is f16[S, 1, 4], wanted f32"),
        ("{eps = 0.0}", "{eps = -1.0}", "%3 = rms_norm: eps is -1.0, wanted a finite number from 0"),
        ("{eps = 0.0}", "{eps = inf}", "%3 = rms_norm: eps is 'inf', wanted a finite number from 0"),
        ("{eps = 0.0}", "{eps = [1]}", "%3 = rms_norm: eps is [1], wanted a finite number from 0"),
        ("[1, 4]}", "3}", "%1 = linear: shape is 3, wanted whole numbers from 1 to 2147483647"),
        ("[1, 4]}", "[]}", "%1 = linear: shape is [], wanted whole numbers"),
        ("[1, 4]}", "[-1, -4]}", "%1 = linear: shape is [-1, -4], wanted whole numbers"),
        ("[1, 4]}", "wide}", "%1 = linear: shape is 'wide', wanted whole numbers"),
        ("add(%0, %3)", "half(%0) {number = 0.0}", "%4 = half: number is 0.0, wanted a whole number"),
        ("add(%0, %3)", "softcap(%0) {cap = 0}", "%4 = softcap: cap is 0, wanted above it"),
        ("add(%0, %3)", "last_row(%position)", "%4 = last_row: %position is i32[], wanted f32"),
        ("add(%0, %3)", "positions(%position)", "%4 = positions: token ids are i32[], wanted i32[T]"),
        ("%tokens: i32[T]", "%tokens: i32[T], %x: f32[]", "%4 = last_row: x has type f32[]"),
        ("@k: f32[4, 4]", "@k: f32[4, N]", "%1 = linear: k has type f32[4, N]"),
        ("@n: f32[4]", "@table: f32[4]", "%3 = rms_norm: @table is f32[4] here, q8_0[9, 4] before"),
        ("%1, %position", "%1, %tokens", "%2 = kv_update: the position is i32[T], wanted i32[]"),
        ("f16[S, 1, 4]", "f16[S, 2, 4]", "%2 = kv_update: the cache is f16[S, 2, 4] and the rows are f32[T, 1, 4]"),
    ],
)
def test_a_broken_rule_is_named(old: str, new: str, message: str) -> None:
    text = SOUND.replace(old, new)
    if "%x" in new:
        text = text.replace("add(%0, %3)", "last_row(%x)")
    with pytest.raises(VerifyError) as error:
        verify(parse_graph(text))
    assert str(error.value).startswith(f"@f: {message}")


def test_a_value_of_another_type_than_its_definition_is_refused() -> None:
    graph = parse_graph(SOUND)
    strange = Value("0", TensorType("f32", ("T", 5)))
    op = graph.ops[-1].with_operands(lambda operand: strange)
    broken = type(graph)(graph.name, graph.arguments, (*graph.ops[:-1], op), graph.results)
    with pytest.raises(VerifyError, match=r"%0: f32\[T, 5\] is read"):
        verify(broken)


def test_a_result_that_nobody_sets_is_refused() -> None:
    graph = parse_graph(SOUND)
    broken = type(graph)(graph.name, graph.arguments, graph.ops, (Value("9", TensorType("f32", ("T",))),))
    with pytest.raises(VerifyError, match=r"result %9: .* is never set"):
        verify(broken)
