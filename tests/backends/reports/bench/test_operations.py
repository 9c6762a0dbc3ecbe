"""Operations one by one: times, bytes and products, against counts by hand."""

from pathlib import Path
from typing import Any

import pytest
from ggufc.backends.reports.bench.operations import profile
from ggufc.backends.reports.costs import decode_bytes, operation_bytes
from ggufc.backends.reports.inspect import entry_graph
from ggufc.graph.model import open_model

from ....tiny_models import Sizes, tiny_model

WIDTH, HEAD_DIM, EXPERT_FFN, DEPTH, TOKENS = 64, 32, 32, 10, 5
EXPERTS, USED = 8, 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A qwen3moe of one layer in F32."""
    return tiny_model(tmp_path_factory.mktemp("models") / "moe.gguf", "qwen3moe", Sizes(layers=1), mixture=EXPERTS)


@pytest.fixture(scope="module")
def tables(model: Path) -> dict[str, dict[str, Any]]:
    found = profile(model, prompt_tokens=TOKENS, depth=DEPTH, threads=[2], runs=3)
    return {table["entry"]: table for table in found}


def rows_of(table: dict[str, Any], operation: str) -> list[dict[str, Any]]:
    return [row for row in table["rows"] if row["operation"] == operation]


def test_bytes_of_all_operations_are_those_of_a_token(tables: dict[str, dict[str, Any]], model: Path) -> None:
    table = tables["decode"]
    assert sum(row["bytes"] for row in table["rows"]) == table["bytes"]
    assert table["bytes"] == decode_bytes(open_model(model), "f32", DEPTH)


def test_only_the_chosen_experts_are_read(tables: dict[str, dict[str, Any]]) -> None:
    """Gate, up and down; five tokens may choose all eight, one chooses three."""
    for entry, chosen in (("decode", USED), ("prefill", EXPERTS)):
        assert (
            sum(row["bytes"] for row in rows_of(tables[entry], "expert_linear")) == 3 * chosen * WIDTH * EXPERT_FFN * 4
        )


def test_attention_reads_the_cache_up_to_the_token(tables: dict[str, dict[str, Any]]) -> None:
    (attention,) = rows_of(tables["decode"], "attention")
    assert attention["bytes"] == 2 * DEPTH * 2 * HEAD_DIM * 4
    assert attention["of"] == "all positions"


def test_times_are_all_there_and_shares_make_one(tables: dict[str, dict[str, Any]]) -> None:
    assert set(tables) == {"decode", "prefill"}
    for table in tables.values():
        assert all(row["ms"] >= 0 and row["kernels"] for row in table["rows"])
        assert sum(row["share"] for row in table["rows"]) == pytest.approx(1)
        assert table["rows"] == sorted(table["rows"], key=lambda row: -row["ms"])


def test_products_are_counted(tables: dict[str, dict[str, Any]]) -> None:
    for table in tables.values():
        for row in rows_of(table, "expert_linear"):
            _, height, width = map(int, row["of"].split()[-1].split("x"))
            done = 2 * table["tokens"] * USED * height * width * row["count"]
            assert row["gop_s"] * row["ms"] * 1e6 == pytest.approx(done)
        assert "gop_s" not in rows_of(table, "attention")[0]


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [("gemma3", Sizes()), ("lfm2", Sizes(layers=5, heads=2, kv_heads=2)), ("gemma4", Sizes(layers=6))],
)
def test_windows_states_and_shared_caches_count_as_in_a_token(architecture: str, sizes: Sizes, tmp_path: Path) -> None:
    """Gemma 3 sees 8 positions in most layers, LFM2 keeps states, Gemma 4 has layers that read another's cache."""
    model = open_model(tiny_model(tmp_path / "model.gguf", architecture, sizes))
    for position in (3, 100):
        read = operation_bytes(entry_graph(model, "decode", "f16"), 1, position)
        assert sum(read) == decode_bytes(model, "f16", position)
