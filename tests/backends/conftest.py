"""Tiny models, traced, exported and loaded once for all tests of the backends."""

from functools import cached_property
from pathlib import Path

import ggufc
import pytest
from ggufc.backends.bundles.bundle import Bundle, read_bundle
from ggufc.backends.jax.module import portable_module
from ggufc.backends.sessions.session import Session
from ggufc.graph.ir import Graph
from ggufc.graph.model import Model, open_model
from ggufc.passes.pipeline import entry_graphs

from ..tiny_models import tiny_gemma3


class TinyCase:
    """A model on its way through the backends, each stage made when it is first wanted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.model: Model = open_model(path)
        self.graphs: dict[str, Graph] = dict(entry_graphs(self.model, "f32"))

    @cached_property
    def text(self) -> str:
        """The portable module."""
        return portable_module(self.graphs.values())

    @cached_property
    def bundle(self) -> Bundle:
        """The bundle for this machine, beside the model."""
        folder = self.path.with_suffix("")
        ggufc.export(self.path, folder)
        return read_bundle(folder)

    @cached_property
    def _xla(self) -> Session:
        return ggufc.load(self.path, backend="xla")

    @cached_property
    def _iree(self) -> Session:
        return ggufc.load(self.bundle.path, backend="iree", threads=1)

    def session(self, backend: str) -> Session:
        """A session on `xla` or `iree`, as new."""
        session = self._xla if backend == "xla" else self._iree
        session.reset()
        return session


QUANTIZED = {"token_embd*": "q8_0", "*attn_k*": "q5_0", "*attn_v*": "q6_k", "*ffn_down*": "q6_k", "*": "q4_k"}


@pytest.fixture(scope="session")
def tiny_f32(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """A Gemma 3 of seven layers, the sixth of them global, in F32."""
    return TinyCase(tiny_gemma3(tmp_path_factory.mktemp("backends") / "f32.gguf"))


@pytest.fixture(scope="session")
def tiny_quantized(tmp_path_factory: pytest.TempPathFactory) -> TinyCase:
    """A Gemma 3 of two layers, the second of them global, with every quantized type."""
    path = tmp_path_factory.mktemp("backends") / "quantized.gguf"
    tiny_gemma3(path, layers=2, width=256, head_dim=64, ffn=512, sliding_window_pattern=2, types=QUANTIZED)
    return TinyCase(path)
