"""A model opened from its file: numbers of the wrong kind are refused, whatever reads them."""

from pathlib import Path
from typing import Any

import pytest
from ggufc.frontend.errors import InputError
from ggufc.graph.model import Model, open_model
from ggufc.passes import pipeline

from ..tiny_models import tiny_model


def opened(folder: Path, architecture: str, **metadata: Any) -> Model:
    """A tiny model whose file holds these keys."""
    return open_model(tiny_model(folder / "model.gguf", architecture, metadata=metadata))


@pytest.mark.parametrize("pooling", [[0, 1, 2], "mean", 0.5])
def test_a_way_to_pool_that_is_no_whole_number_is_refused(pooling: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"pooling_type"):
        opened(tmp_path, "qwen3", pooling_type=pooling)


@pytest.mark.parametrize(("pooling", "embeds"), [(0, False), (3, True)])
def test_a_decoder_embeds_where_its_file_says_how(pooling: int, embeds: bool, tmp_path: Path) -> None:
    assert (opened(tmp_path, "qwen3", pooling_type=pooling).embedding is not None) is embeds


def test_a_window_stored_as_a_float_is_a_window(tmp_path: Path) -> None:
    graph = pipeline.prefill(opened(tmp_path, "gemma2", **{"attention.sliding_window": 8.0}).graph, "f32")
    assert {str(cache.type.shape[0]) for cache in graph.caches()} == {"S8", "S"}


def test_a_window_beyond_int32_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"window is 4294967295, wanted a whole number from 0 to 2147483647"):
        opened(tmp_path, "gemma2", **{"attention.sliding_window": 2**32 - 1})
