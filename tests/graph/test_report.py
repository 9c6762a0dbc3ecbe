"""What a definition says for nothing."""

from pathlib import Path

import pytest
from ggufc.frontend.definitions import find
from ggufc.graph.model import Model, open_model
from ggufc.graph.report import outline, report

from ..tiny_models import tiny_llama
from ..tiny_models.variants import DECODERS, ENCODERS


@pytest.mark.parametrize("name", DECODERS | ENCODERS)
def test_shipped_definitions_say_nothing_for_nothing(name: str, tmp_path: Path) -> None:
    model = open_model((DECODERS | ENCODERS)[name].write(tmp_path / "model.gguf"))
    assert report(model.definition, model) == []


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("models") / "llama.gguf")


def changed(path: Path, folder: Path, old: str, new: str) -> Model:
    """The model under the shipped definition of Llama with one line changed."""
    text = Path(find("llama").source).read_text()
    assert text.count(old) == 1
    (folder / "llama.archdef").write_text(text.replace(old, new))
    return open_model(path, [folder])


EXPERTS = "  experts     with blk.{i}.ffn_gate_inp.weight"
DENSE = "  dense       otherwise"


@pytest.mark.parametrize(
    ("before", "lines", "message"),
    [
        ("  base  ", "  spare       some.key = 1\n", "parameter 'spare' (key 'some.key') is never read"),
        (
            "  base  ",
            "  spare       = 0\n  spare       = spare + 1 when spare is 0\n",
            "parameter 'spare' is never read",
        ),
        ("  a = attention  q, k, v,", "  z = mul        q, q\n", "'z' = mul is never read"),
        ("  logits = linear", "  y      = scale    x, 2\n", "'y' = scale is never read"),
        (
            f"{EXPERTS}\n{DENSE}",
            f"{EXPERTS} : spare = 0\n{DENSE} : spare = 1\n",
            "value 'spare' of these kinds is never",
        ),
    ],
)
def test_what_nobody_reads_is_told_with_its_line(
    before: str, lines: str, message: str, llama: Path, tmp_path: Path
) -> None:
    new = lines.rstrip("\n") if before.startswith(EXPERTS) else lines + before
    model = changed(llama, tmp_path, before, new)
    text = (tmp_path / "llama.archdef").read_text()
    line = text[: text.index(new)].count("\n") + 1
    (found,) = report(model.definition, model)
    assert found.startswith(f"{tmp_path}/llama.archdef:{line}:1: {message}")


def test_a_name_that_costs_nothing_may_stay_unread(llama: Path, tmp_path: Path) -> None:
    model = changed(llama, tmp_path, "  a = attention  q, k, v,", "  z = copy       q\n  a = attention  q, k, v,")
    assert report(model.definition, model) == []


def test_a_step_that_only_some_layers_read_is_read(llama: Path, tmp_path: Path) -> None:
    """The sum that a layer leaves behind is read by the next one; the last layer's is read by nobody."""
    step = "  x = add        x, f\n\nepilogue"
    more = "  s = scale      x, 2\n  x = add        x, f\n\nepilogue"
    text = Path(find("llama").source).read_text()
    assert step in text
    text = text.replace(step, more).replace("prologue\n", "prologue\n  s = embed      tokens, token_embd.weight\n")
    text = text.replace("block\n  h = rms_norm   x,", "block\n  x = add        x, s\n  h = rms_norm   x,", 1)
    (tmp_path / "llama.archdef").write_text(text)
    model = open_model(llama, [tmp_path])
    assert report(model.definition, model) == []


@pytest.mark.parametrize("name", DECODERS | ENCODERS)
def test_an_outline_accounts_for_every_tensor_and_operation(name: str, tmp_path: Path) -> None:
    model = open_model((DECODERS | ENCODERS)[name].write(tmp_path / "model.gguf"))
    found = outline(model.definition, model)
    written = {n.replace("{i}", str(i)) for ref in model.definition.ignore for n in ref.names for i in range(9)}
    blocks, layers = model.hyperparameters.blocks, len(model.hyperparameters.layers)
    beyond = {n for n in model.file.tensors for i in range(layers, blocks) if n.startswith(f"blk.{i}.")}
    assert set(found["ignored"]) <= written | beyond
    shared = {op.line for op in model.graph.ops}
    further = [op for op in model.embedding.ops if op.line not in shared] if model.embedding else []
    made_besides = ("bias", "positions")
    assert sum(step["operations"] for step in found["steps"]) == sum(
        op.name not in made_besides for op in (*model.graph.ops, *further)
    )
    lines = Path(found["source"]).read_text().splitlines()
    for step in found["steps"]:
        assert lines[step["line"] - 1].split()[:3] == [step["result"], "=", step["operation"]]
    for entry in found["parameters"]:
        assert lines[entry["line"] - 1].split()[0] == entry["name"]
    for kind in found["layer_kinds"]:
        assert lines[kind["line"] - 1].split()[0] == kind["kind"]
        assert kind["layers"] == [n.index for n in model.hyperparameters.layers if kind["kind"] in n.kinds]
