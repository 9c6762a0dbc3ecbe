"""A model whose weights hold NaN ends in an error whatever it is asked, and never in tokens or in text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ggufc
import pytest
from ggufc import Session
from ggufc.backends.sessions.decide import decide
from ggufc.frontend.chat.templates import ChatTemplates
from ggufc.frontend.errors import DamagedModelError

from ...serving import running
from ...tiny_models import Sizes, tiny_model
from ...tiny_models.writer import Fixed

SIZES = Sizes(layers=1, width=64, ffn=64, heads=2, kv_heads=1, head_dim=32, context=64)
NOT_A_NUMBER = Fixed((float("nan"),) * SIZES.width)
USES: dict[str, Callable[[Session], Any]] = {
    "greedy": lambda session: list(session.generate_ids([2, 5], max_tokens=3, stop=())),
    "drawn": lambda session: list(session.generate("the", max_tokens=3, temperature=1.0, min_p=0.1)),
    "decode_greedy": lambda session: session.decode_greedy(5),
    "decide": lambda session: decide(session, "is it", templates=ChatTemplates({})),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damaged") / "nan.gguf"
    return tiny_model(path, "llama", SIZES, weights={"output_norm.weight": NOT_A_NUMBER})


@pytest.mark.parametrize("backend", ["native", "iree"])
def test_no_token_is_chosen(backend: str, model: Path) -> None:
    session = ggufc.load(model, backend, threads=1)
    for use in USES.values():
        with pytest.raises(DamagedModelError, match="the model's logits are no finite numbers"):
            use(session.new())


def test_an_embedding_is_refused(tmp_path: Path) -> None:
    weights = {"blk.0.layer_output_norm.bias": NOT_A_NUMBER}
    sizes = Sizes(layers=1, width=64, heads=2, kv_heads=2, context=64)
    session = ggufc.load(tiny_model(tmp_path / "nan.gguf", "bert", sizes, weights=weights), "native", threads=1)
    with pytest.raises(DamagedModelError):
        session.embed("the")
    with running(session) as server:
        assert server.ask("/v1/embeddings", {"input": "the"})[0] == 500


def test_a_server_says_so_and_sends_no_broken_json(model: Path) -> None:
    with running(ggufc.load(model, "native", threads=1)) as server:
        body = {"prompt": "the", "max_tokens": 2, "logprobs": 2}
        for stream in (False, True):  # whose first event would be the fault
            status, answer = server.ask("/v1/completions", body | {"stream": stream})
            assert (status, answer["error"]["code"]) == (500, "damaged_model")
