"""What a file as a whole must be, beyond what each step of its definition asks for."""

from dataclasses import replace
from pathlib import Path

import pytest
from ggufc.frontend.definitions import find
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.frontend.gguf.reader import read_gguf
from ggufc.graph.model import kinds_of, lower_model, open_model

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
    last = text[: text.index("  logits")].count("\n") + 1
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
            rf":{last - 1}:12: x = rms_norm gives f32\[T, 64\], by tensor 'token_embd.weight' \[310, 64\]; .* {table}",
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


# of which one row is read, or as many as the context is long at least, or none; and the taps are as many as there are
OF_ANY_LENGTH = {
    *("token_types.weight", "position_embd.weight", "rope_factors_short.weight"),
    "blk.0.shortconv.conv.weight",
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tensor_of_another_shape_is_refused_by_its_name(architecture: str, tmp_path: Path) -> None:
    """Whichever it is, and however little is amiss: with one row, column or expert more or less, or with many more."""
    file = read_gguf(tiny_model(tmp_path / "m.gguf", architecture))
    for name, info in file.tensors.items():
        if name in OF_ANY_LENGTH or (name.startswith("blk.") and not name.startswith("blk.0.")):
            continue
        for axis, size in enumerate(info.shape):
            for found in {size - 1, size + 1, size + 32} - {0}:
                shape = (*info.shape[:axis], found, *info.shape[axis + 1 :])
                changed = replace(file, tensors=dict(file.tensors) | {name: replace(info, shape=shape)})
                with pytest.raises(InputError) as error:
                    lower_model(changed)
                assert name in str(error.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.b"], "tensor 'a.b' is in the file, but .* never reads it: .* or the tensor belongs in its section"),
        (
            ["blk.0.x.weight", "blk.1.x.weight", "blk.1.y.weight"],
            r"tensors 'blk\.\*\.x\.weight' \(2\), 'blk\.1\.y\.weight' are in the file, .* never reads them: .* belong ",
        ),
        (["blk.0.attn_q.bais"], r"or is its optional 'blk.\{i\}.attn_q.bias' meant to be 'blk...attn_q.bais'"),
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
