"""The reference of the archdef language says what the parser does: its example runs, its tables are the parser's."""

import re
from itertools import product
from pathlib import Path

import ggufc
import numpy as np
import pytest
from ggufc.frontend import hyperparameters
from ggufc.frontend.archdef import expressions, parser
from ggufc.frontend.archdef.line import MAX_LINE, MAX_NAME
from ggufc.frontend.archdef.parser import parse
from ggufc.frontend.archdef.tree import SELECTORS
from ggufc.frontend.operations import FUNCTIONS, OPERATIONS, WHOLE, Attribute, Signature
from ggufc.graph import build, ir
from ggufc.graph.ir import Value, Weight
from ggufc.graph.model import open_model
from ggufc.graph.ops import DOMAINS, MATRIX_READERS, OPS, infer
from ggufc.graph.report import report
from ggufc.graph.types import TensorType

from .tiny_models import tiny_llama

TEXT = (Path(__file__).parents[1] / "archdefs" / "README.md").read_text()
PIPE = re.compile(r"(?<!\\)\|")


def table(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    rows = TEXT[TEXT.index(f"\n| {heading} |") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in PIPE.split(row)[1:-1]] for row in rows[2:]]


def quoted(cells: list[str]) -> list[str]:
    """The words in backquotes."""
    return [word for cell in cells for word in re.findall("`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def example() -> str:
    (found,) = re.findall("```archdef\n(.*?)```", TEXT, re.DOTALL)
    return found


def test_the_whole_definition_parses_and_runs_as_the_shipped_one(example: str, tmp_path: Path) -> None:
    assert parse(example).name == "example"
    (tmp_path / "llama.archdef").write_text(example.replace("arch example", "arch llama"))
    path = tiny_llama(tmp_path / "llama.gguf")
    own = ggufc.load(path, backend="native", archdefs=[tmp_path])
    shipped = ggufc.load(path, backend="native")
    ids = [2, 10, 11, 12, 13]
    np.testing.assert_array_equal(own.prefill(ids), shipped.prefill(ids))
    np.testing.assert_array_equal(own.decode(14), shipped.decode(14))
    model = open_model(path, [tmp_path])
    assert model.definition.source == str(tmp_path / "llama.archdef")
    assert report(model.definition, model) == []


def test_the_other_examples_parse(example: str) -> None:
    """The forms of parameters and of layer kinds, put into the whole definition with what they name."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    (parameters,) = (b for b in blocks if "derived" in b)
    (kinds,) = (b for b in blocks if b.startswith("layers\n"))
    for line in parameters.splitlines():
        first = "  name   = layers\n" if "when" in line else ""
        line = f"  other  kind_of_rope\n{first}{line.replace('expression', 'layers * 2')}\n"
        changed = parse(example.replace("\nprologue", f"{line}\nprologue", 1))
        assert changed.parameters[-1].name == "name"
    named = "  window a\n  period b\n  base_local c\n"
    changed = parse(example.replace("\nprologue", f"{named}\n{kinds}\nprologue", 1))
    assert [kind.name for kind in changed.layer_kinds[0]] == ["local", "global"]


def arguments(signature: Signature) -> tuple[str, str, str]:
    """The values, tensors and attributes of an operation as the table writes them."""
    tensors = [*signature.tensors, *(f"{name}?" for name in signature.optional_tensors)]
    attributes = [attribute(a) for a in signature.attributes] + ["[shape]"] * signature.shaped
    return ", ".join(signature.values), ", ".join(tensors), ", ".join(attributes)


def attribute(given: Attribute) -> str:
    if given.kind == "word":
        return f"{given.name} {'/'.join(given.words)}"
    if given.default is None:
        return given.name
    return f"{given.name} ({'whole head' if given.default == WHOLE else f'{given.default:g}'})"


def test_the_table_of_operations_is_the_parsers() -> None:
    wanted = [[f"`{s.name}`", *arguments(s), s.doc] for s in OPERATIONS.values()]
    assert [[*row[:4], row[5]] for row in table("operation")] == wanted


SIZES = {"heads": 4, "kv_heads": 2, "d": 8, "e": 6, "dims": 4, "n": 12, "m": 10, "k": 2, "experts": 5, "taps": 3}
SIZES |= {"ids": 9, "rows": 7, "1": 1, "dims / 2": 2, "n / 2": 6}
ANY, SHAPE = (3, 4), (2, 5)  # of n and of m elements
SAMPLE: dict[str, ir.Attribute] = {"style": "neox", "base": 10000.0, "dims": SIZES["dims"], "k": SIZES["k"], "start": 2}


def alternatives(shape: str) -> list[tuple[int, ...]]:
    """What a shape of the table means with these sizes."""
    found: list[tuple[int, ...]] = []
    for one in shape.split(" or "):
        axes = one.strip("[]").split(", ")
        if one in ("x", "id", "[shape]"):
            found.append({"x": ANY, "id": (), "[shape]": SHAPE}[one])
        else:
            leading = [(), (3,), (2, 3)] if axes[0] == "..." else [()]
            found += [(*first, *(SIZES[axis] for axis in axes if axis != "...")) for first in leading]
    return found


@pytest.mark.parametrize("row", [row for row in table("operation") if row[0] != "`copy`"], ids=lambda row: row[0])
def test_the_shapes_of_an_operation_are_those_of_its_rule(row: list[str]) -> None:
    signature = OPERATIONS[row[0].strip("`")]
    taken, given = row[4].strip("`").split(" → ")
    shapes = [alternatives(shape) for shape in re.findall(r"(?:[a-z]+|\[[^]]*\])(?: or \[[^]]*\])*", taken)]
    names = [*signature.values, *signature.all_tensors]
    assert len(shapes) == len(names)
    for combination in product(*shapes):
        values = [
            Value(name, TensorType("i32" if name in ("tokens", "experts") else "f32", ("T", *shape)))
            for name, shape in zip(signature.values, combination, strict=False)
        ]
        tensors = [
            Weight(f"{n}.weight", TensorType("f32", shape)) for n, shape in enumerate(combination[len(values) :])
        ]
        # axes before the last are those of what is given
        results = [(*combination[0][:-1], SIZES[given[6:-1]])] if given.startswith("[..., ") else alternatives(given)
        for wanted in results:
            attributes = {name: SAMPLE.get(name, 1) for name in OPS[signature.name].attributes}
            attributes |= {"shape": wanted} if "shape" in attributes else {}
            bias = tensors[1:] if signature.name == "linear" else []
            found = infer(signature.name, (*values, *tensors[: len(tensors) - len(bias)]), attributes)
            for weight in bias:
                found = infer("bias", (Value("product", found), weight), {})
            assert found.shape[1:] == wanted


def test_the_operations_with_matrices_of_any_type_are_those_of_the_rules() -> None:
    (found,) = re.findall(r"^.*The tensors of (.*) may have any type", TEXT, re.MULTILINE)
    assert set(quoted([found])) == OPERATIONS.keys() & MATRIX_READERS


def test_the_table_of_selectors_is_the_parsers() -> None:
    rows = [word.split() for word in quoted([row[0] for row in table("selector")])]
    assert {row[0] for row in rows} == {*SELECTORS, "otherwise"}
    for name, *argument in rows:
        wanted = {"number": ["N"], "tensor": ["TENSOR"]}.get(SELECTORS.get(name, ""), [])
        assert argument in (wanted, ["X"] if wanted == ["N"] else wanted), name


def test_the_functions_of_expressions_are_the_parsers() -> None:
    (found,) = re.findall(r"^Expressions: .* and `([a-z ]+)`", TEXT, re.MULTILINE)
    assert found.split() == list(FUNCTIONS)


def test_the_sections_are_the_parsers(example: str) -> None:
    found = {word.split()[0] for word in quoted([row[0] for row in table("section")])}
    assert found == {"arch", "kind", *parser.SECTIONS}


def test_the_table_of_attributes_has_all_of_them() -> None:
    found = [name for row in table("attributes") for name in re.findall(r"[a-z]+(?=`|,|$)", row[0])]
    numbers = {a.name for s in OPERATIONS.values() for a in s.attributes if a.kind != "word"}
    assert set(found) == numbers <= DOMAINS.keys()
    whole = {a.name for s in OPERATIONS.values() for a in s.attributes if a.kind == "whole"}
    assert {name.strip() for name in table("attributes")[0][0].split(",")} == whole


def test_the_bounds_are_the_parsers() -> None:
    bounds = TEXT.split("## Bounds")[1]
    assert [int(number) for number in re.findall(r"\d+", bounds)] == [
        parser.MAX_BYTES // 1024,
        parser.MAX_ENTRIES,
        MAX_LINE,
        MAX_NAME,
        expressions.MAX_DEPTH,
        *(2, expressions.MAX_NUMBER.bit_length() - 1),
        hyperparameters.MAX_LAYERS,
        hyperparameters.MAX_WORK,
        build.MAX_OPS,
    ]
