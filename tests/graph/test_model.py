"""What a file as a whole must be, beyond what each step of its definition asks for."""

from dataclasses import replace
from pathlib import Path

import pytest
from ggufc.frontend.definitions import find
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.graph.model import kinds_of, open_model

from ..tiny_models import ARCHITECTURES, TOKENS, Sizes, tiny_model
from ..tiny_models.pieces import linear
from ..tiny_models.variants import ENCODERS


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_opens_in_the_sizes_that_a_tiny_model_has(architecture: str, tmp_path: Path) -> None:
    assert open_model(tiny_model(tmp_path / "m.gguf", architecture)).definition.name == architecture


def test_as_many_logits_as_ids(tmp_path: Path) -> None:
    """A token that is sampled is fed again: a head of more rows than the embedding would give ids without a row."""
    path = tiny_model(tmp_path / "m.gguf", "llama", weights={"output.weight": linear(len(TOKENS) + 3, 64)})
    rows, wanted = len(TOKENS) + 3, len(TOKENS)
    said = (
        rf"llama\.archdef:\d+:12: logits = linear gives f32\[T, {rows}\], by tensor 'output.weight' \[{rows}, 64\]; "
        rf"wanted a logit for each of the {wanted} rows of tensor 'token_embd.weight', .* \(model .*m\.gguf\)$"
    )
    with pytest.raises(InputError, match=said):
        open_model(path)


def test_a_kind_that_is_not_the_models(tmp_path: Path) -> None:
    text = Path(find("llama").source).read_text()
    last = text.count("\n")
    path = tiny_model(tmp_path / "m.gguf", "llama", Sizes(layers=1))
    table = rf"the {len(TOKENS)} rows of tensor 'token_embd.weight'"
    for old, new, said in (
        (
            "kind decoder",
            "kind encoder",
            rf":{last}:12: logits = linear gives f32\[T, {len(TOKENS)}\], .* a logit for each of {table}: this is ",
        ),
        (
            "  logits = linear   x, output.weight | token_embd.weight\n",
            "",
            rf":{last - 1}:12: x = rms_norm gives f32\[T, 64\], by tensor 'output_norm.weight' \[64\]; .* {table}",
        ),
    ):
        assert old in text
        (tmp_path / "llama.archdef").write_text(text.replace(old, new))
        with pytest.raises(InputError, match=said):
            open_model(path, [tmp_path], all_read=False)


def test_as_many_positions_as_the_context_is_long(tmp_path: Path) -> None:
    path = replace(ENCODERS["bert"], metadata={"context_length": 4096}).write(tmp_path / "m.gguf")
    with pytest.raises(InputError, match=r"position_embd.weight' has \d+ positions, wanted 4096"):
        open_model(path)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.b"], "tensor 'a.b' is in the file, but .* never reads it: .* or the tensor belongs in its section"),
        (
            ["blk.0.x.weight", "blk.1.x.weight", "blk.1.y.weight"],
            r"tensors 'blk\.\*\.x\.weight' \(2\), 'blk\.1\.y\.weight' are in the file, .* never reads them: .* belong ",
        ),
        ([f"t{n}.weight" for n in range(11)], "tensors 't0.weight', .* 't7.weight' and 3 more kinds are in the file"),
    ],
)
def test_tensors_that_nobody_reads_are_named_by_their_kinds(names: list[str], said: str, tmp_path: Path) -> None:
    path = tiny_model(tmp_path / "m.gguf", "llama", weights={name: linear(32, 32) for name in names})
    with pytest.raises(UnsupportedError, match=said):
        open_model(path)
    assert open_model(path, all_read=False).unread == tuple(names)


def test_tensors_are_alike_in_blocks_alone() -> None:
    names = ["blk.0.a.weight", "blk.10.a.weight", "enc.blk.0.b", "enc.blk.1.b", "blk.x.c"]
    assert kinds_of(names) == {"blk.*.a.weight": 2, "enc.blk.0.b": 1, "enc.blk.1.b": 1, "blk.x.c": 1}
