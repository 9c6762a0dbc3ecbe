"""Kernels that are kept on disk between processes."""

from pathlib import Path

import numpy as np
import pytest
from ggufc.backends.native.kernels.elementwise import elementwise
from ggufc.backends.native.launch import launch, loaded

SILU = elementwise("silu")


def check() -> None:
    """Runs a kernel as a new process would, which has none in memory."""
    loaded.cache_clear()
    x, y = np.linspace(-4, 4, 100, dtype=np.float32), np.empty(100, np.float32)
    launch(SILU, {"a": x, "y": y}, {"count": 100})
    np.testing.assert_allclose(y, x / (1 + np.exp(-x)), atol=1e-6)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ggufc" / "kernels"


def test_a_damaged_object_is_compiled_again(kept: Path) -> None:
    check()
    (path,) = kept.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:300], whole[:-1], whole[:200] + b"?" + whole[201:]):
        path.write_bytes(damaged)
        check()
        assert path.read_bytes() == whole


def test_a_full_disk_is_left_as_it_was(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    check()
    assert list(kept.iterdir()) == []
