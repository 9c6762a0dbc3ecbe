"""What a file as a whole must be, beyond what each step of its definition asks for."""

from dataclasses import replace
from pathlib import Path

import pytest
from ggufc.frontend.errors import InputError
from ggufc.graph.model import open_model

from ..tiny_models import TOKENS, tiny_model
from ..tiny_models.pieces import linear
from ..tiny_models.variants import ENCODERS


def test_as_many_logits_as_ids(tmp_path: Path) -> None:
    """A token that is sampled is fed again: a head of more rows than the embedding would give ids without a row."""
    path = tiny_model(tmp_path / "m.gguf", "llama", weights={"output.weight": linear(len(TOKENS) + 3, 64)})
    with pytest.raises(InputError, match=f"gives {len(TOKENS) + 3} logits, and its embedding has {len(TOKENS)} rows"):
        open_model(path)


def test_as_many_positions_as_the_context_is_long(tmp_path: Path) -> None:
    path = replace(ENCODERS["bert"], metadata={"context_length": 4096}).write(tmp_path / "m.gguf")
    with pytest.raises(InputError, match=r"position_embd.weight' has \d+ positions, wanted 4096"):
        open_model(path)
