"""Random matrices of a type and the program that multiplies them, against gguf-py."""

import numpy as np
import pytest
from ggufc.backends.native.executor import NativeExecutor
from ggufc.backends.reports.bench.weight_types import bench_types, products, random_rows
from ggufc.frontend.errors import InputError

from ...native.blocks import dequantized, rounded


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q8_0", "q6_k", "mxfp4", "iq1_m"])
def test_random_blocks_are_sound(name: str) -> None:
    values = dequantized(random_rows(np.random.default_rng(0), name, 64, 512), name)
    assert values.shape == (64, 512)
    assert np.isfinite(values).all() and np.abs(values).max() < 64
    assert len(np.unique(values)) > 50


def test_the_program_adds_the_products() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(256, np.float32)
    matrices = [random_rows(rng, "q8_0", 256, 256) for _ in range(2)]
    weights = {"x": x.view(np.uint8)} | {str(n): matrix.reshape(-1) for n, matrix in enumerate(matrices)}
    executor = NativeExecutor({"decode": products("q8_0", 256, 2)}, weights.__getitem__, 1, exact=False)
    wanted = x + sum(dequantized(matrix, "q8_0") @ rounded(x[None])[0] for matrix in matrices)
    given = executor.run("decode", np.zeros(1, np.int32), 0, [], [])
    np.testing.assert_allclose(given.reshape(-1), wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.slow
def test_every_type_asked_for_has_its_row() -> None:
    found = bench_types(["q4_k", "int8"], threads=[1, 2], rounds=1, side=256, total=1 << 20)
    assert [row["type"] for row in found["rows"]] == ["q4_k", "int8"]
    assert [row["bits"] for row in found["rows"]] == [4.5, 8.125]
    for row in found["rows"]:
        assert [one["threads"] for one in row["by_threads"]] == [1, 2]
        for one in row["by_threads"]:
            for home in ("native", "vmfb"):
                assert one[home]["fraction"] == pytest.approx(one[home]["gb_s"] / one["read_gb_s"])


def test_a_type_that_there_is_not_is_named() -> None:
    with pytest.raises(InputError, match="no type of weights 'q9_9'; there are f32, "):
        bench_types(["q9_9"])
