"""The text form prints, and parses back to the same graph."""

from contextlib import suppress
from pathlib import Path

import pytest
from ggufc.graph.ir import Graph, Op, Value, Weight
from ggufc.graph.model import open_model
from ggufc.graph.text import TextError, parse_graph, print_graph
from ggufc.graph.types import TensorType
from ggufc.graph.verify import VerifyError, verify
from ggufc.passes import pipeline
from hypothesis import given
from hypothesis import strategies as st

EXAMPLE = """\
graph @f(%tokens: i32[T], %k.0: f16[S8, 2, 4]) {
  %0: f32[T, 4] = embed(%tokens, @"a \\"b\\"\\n\\u00e9#": q8_0[9, 4])  # layer 0, local
  %1: f32[T, 2, 2] = linear(%0, @output.weight or @token_embd.weight: f32[4, 4]) {shape = [2, 2]}
  %2: f32[T, 2, 2] = scale(%1) {by = -1.5e-07}
  %3: f32[T, 2, 2] = attention(%2, %k.0, %k.0) {cap = 0.0, note = word, window = -8}
  return %3, %k.0
}
"""


def test_a_graph_reads_as_it_is_written() -> None:
    graph = parse_graph(EXAMPLE)
    assert print_graph(graph) == EXAMPLE
    embed, linear, scale, attention = graph.ops
    assert embed.operands == (graph.argument("tokens"), Weight('a "b"\né#', TensorType("q8_0", (9, 4))))
    assert embed.note == "layer 0, local"
    assert linear.weights == (Weight("output.weight", TensorType("f32", (4, 4)), "token_embd.weight"),)
    assert linear.attribute("shape") == (2, 2)
    assert scale.attribute("by") == -1.5e-7
    assert attention.attributes == (("cap", 0.0), ("note", "word"), ("window", -8))
    assert graph.results == (attention.result, graph.caches()[0])


@pytest.mark.parametrize("entry", ["forward", "prefill", "decode"])
def test_a_model_parses_back(tiny_gemma3_path: Path, entry: str) -> None:
    graph = open_model(tiny_gemma3_path).graph
    graph = pipeline.forward(graph) if entry == "forward" else getattr(pipeline, entry)(graph, "f16")
    assert parse_graph(print_graph(graph)) == graph


words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
value_names = st.from_regex(r"[A-Za-z0-9_.]{1,8}", fullmatch=True)
dims = st.integers(0, 2**40) | words
types = st.builds(TensorType, words, st.lists(dims, max_size=4).map(tuple))
weights = st.builds(Weight, st.text(max_size=12), types, st.none() | st.text(min_size=1, max_size=12))
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
attributes = st.dictionaries(words, numbers | words | st.lists(st.integers(-9, 2**40)).map(tuple), max_size=4)
notes = st.text(st.characters(exclude_categories=("C", "Z")), max_size=12)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Any graph in which each value is set before it is read; that operations make sense is not the text's concern."""
    names = draw(st.lists(value_names, min_size=1, max_size=8, unique=True))
    values = [Value(name, draw(types)) for name in names]
    arguments = draw(st.integers(0, len(values)))
    ops = []
    for n in range(arguments, len(values)):
        operand = st.sampled_from(values[:n]) | weights if n else weights
        operands = tuple(draw(st.lists(operand, max_size=3)))
        ops.append(Op(draw(words), operands, tuple(sorted(draw(attributes).items())), values[n], draw(notes)))
    results = tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))
    return Graph(draw(value_names), tuple(values[:arguments]), tuple(ops), results)


@given(graphs())
def test_any_graph_parses_back(graph: Graph) -> None:
    assert parse_graph(print_graph(graph)) == graph


@given(st.data())
def test_damaged_text_is_refused_or_read(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(EXAMPLE)))
    end = data.draw(st.integers(start, min(len(EXAMPLE), start + 10)))
    inserted = data.draw(st.text(st.sampled_from('%@"\\{}[](),:=#|0. \nreturnSe9\u0663\u00b2'), max_size=4))
    with suppress(TextError):
        parse_graph(EXAMPLE[:start] + inserted + EXAMPLE[end:])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("scale(%1)", "scale(%9)", "line 4: %9 is read before it is set"),
        ("return %3", "return %9", "line 6: %9 is read before it is set"),
        ("{by = ", "{by ", "line 4: expected '=', found '-1.5e-07'"),
        ("}\n", "", "line 7: the text ends too early"),
        ("}\n", "}\n}", "line 8: '}' after the end of the graph"),
        ("scale(%1)", "scale(%1; %2)", "line 4: ';' has no meaning here"),
        ("@output.weight", '@"a \\0"', "line 3: '@\"a \\\\0\"' is no quoted name"),
        ("[2, 2]}", "[2, 2e3]}", "line 3: expected a whole number, found '2e3'"),
        ("[T, 4] = embed", "[T, (] = embed", "line 2: expected a size, found '('"),
        ("{by = -1.5e-07}", "{by = 1, by = 2}", "line 4: 'by' is given twice"),
        ("-1.5e-07", "1e999", "line 4: a number that is out of range"),
        ("-1.5e-07", "\u0663", "line 4: '\u0663' has no meaning here"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, message: str) -> None:
    with pytest.raises(TextError) as error:
        parse_graph(EXAMPLE[::-1].replace(old[::-1], new[::-1], 1)[::-1])
    assert str(error.value) == message


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), "two words", ""])
def test_an_attribute_without_a_text_form_is_not_printed(value: float | str) -> None:
    result = Value("0", TensorType("f32", ("T", 4)))
    graph = Graph("f", (result,), (Op("scale", (result,), (("by", value),), Value("1", result.type)),), (result,))
    with pytest.raises(TextError, match="no text form"):
        print_graph(graph)


def test_arguments_of_one_name_are_left_for_the_verifier() -> None:
    graph = parse_graph("graph @f(%a: f32[T], %a: i32[T]) {\n  return %a\n}\n")
    with pytest.raises(VerifyError, match="argument %a is there twice"):
        verify(graph)
