"""What all families share, and SentencePiece's BPE, against llama.cpp live on a tiny and on the real model."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.frontend.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st

from ...oracle import Reference
from ...tiny_models import TOKENS, Weight, tiny_model
from .texts import agree, metadata_of


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "space prefix"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tokenizer, Reference]]:
    """The tiny vocabulary in ggufc and in llama.cpp."""
    path = tmp_path_factory.mktemp("tokenizer") / "model.gguf"
    tiny_model(path, "llama", metadata={"tokenizer.ggml.add_space_prefix": request.param})
    with Reference(path, n_ctx=256) as reference:
        yield Tokenizer.from_metadata(metadata_of(path)), reference


@pytest.fixture
def metadata(tiny_gemma3_path: Path) -> dict[str, Any]:
    """The metadata of the tiny vocabulary, to be changed."""
    return dict(metadata_of(tiny_gemma3_path))


def test_pieces_bytes_and_specials(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("<start_of_turn>the an\n\n日本é語<end_of_turn>")
    assert [TOKENS[i] for i in ids] == [
        *("<bos>", "<start_of_turn>", "t", "he", "▁an", "\n\n", "日本", "é"),
        *("<0xE8>", "<0xAA>", "<0x9E>", "<end_of_turn>"),
    ]
    assert tokenizer.decode(ids) == "the an\n\n日本é語"
    assert tokenizer.decode(ids, render_special=True) == "<bos><start_of_turn>the an\n\n日本é語<end_of_turn>"
    assert tokenizer.vocab_size == len(TOKENS)
    assert {TOKENS[i] for i in tokenizer.eog_ids} == {"<eos>", "<end_of_turn>"}


def test_special_text_that_is_not_parsed_stays_text(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("<eos>\n\n", add_special=False, parse_special=False)
    assert tokenizer.eos_id not in ids
    assert ids[-1] == TOKENS.index("\n\n")  # user-defined tokens are text of their own
    assert tokenizer.decode(ids) == "<eos>\n\n"


_TEXTS = st.lists(
    st.sampled_from(TOKENS) | st.text(max_size=8) | st.sampled_from([" ", "  ", "\n", "the "]), max_size=8
)


@given(parts=_TEXTS, parse_special=st.booleans())
def test_ids_and_pieces_are_llama_cpps(
    pair: tuple[Tokenizer, Reference], parts: list[str], parse_special: bool
) -> None:
    tokenizer, reference = pair
    text = "".join(parts)
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    assert ids == reference.tokenize(text, add_special=False, parse_special=parse_special)
    assert tokenizer.decode(ids) == b"".join(map(reference.piece, ids)).decode("utf-8", "replace")


@pytest.mark.parametrize("text", ["a\ud800b", "\udcff", b"\xff\xfe".decode("utf-8", "surrogateescape")])
def test_what_is_not_utf_8_is_refused(metadata: dict[str, Any], text: str) -> None:
    """Bytes of an argument that are not UTF-8 are lone surrogates in Python."""
    with pytest.raises(InputError, match=r"the text is not UTF-8: .* at character"):
        Tokenizer.from_metadata(metadata).encode(text)


def test_no_special_token_crosses_a_barrier(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    ids = tokenizer.encode("<eos>a<eo|s>", add_special=False, barrier="|")
    assert ids.count(1) == 1
    assert tokenizer.decode(ids) == "a<eos>"


@pytest.mark.parametrize("name", ["tpl-add", "tpl-noadd", "notpl-add", "notpl-noadd"])
def test_bos_is_added_once(shared_dir: Path, name: str) -> None:
    """The template writes BOS or not, the file wants it or not: never two, and none where neither does."""
    case = shared_dir / "cases/15-double-or-missing-bos"
    expected = json.loads((case / "expect.json").read_text("utf-8"))["cases"][f"bos-{name}.gguf"]
    tokenizer = Tokenizer.from_metadata(metadata_of(case / f"input/bos-{name}.gguf"))
    assert tokenizer.encode(expected["rendered"]) == expected["chat_ids_required"]
    assert tokenizer.encode("") == expected["empty_prompt_ids"]
    assert tokenizer.encode(" ") == expected["one_space_ids"]
    assert tokenizer.encode("<bos>the").count(2) == 1


def test_eos_is_added_where_the_file_wants_it(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.add_eos_token": True})
    assert tokenizer.encode("a")[-1] == tokenizer.eos_id
    assert tokenizer.encode("a<eos>").count(1) == 2  # llama.cpp's way, as for SEP


@pytest.mark.parametrize("value", [len(TOKENS), 2**32 - 1, -1, 2**40, True, "2"])
@pytest.mark.parametrize("role", ["bos", "eos", "eot"])
def test_special_ids_outside_the_vocabulary_are_noted(metadata: dict[str, Any], role: str, value: object) -> None:
    """Such an id is as if absent: BOS and EOS are then the family's own, 1 and 2, and the rest is found by its text."""
    key = f"tokenizer.ggml.{role}_token_id"
    tokenizer = Tokenizer.from_metadata(metadata | {key: value})
    assert tokenizer.notes == [f"{key} is {value!r}, which is none of the {len(TOKENS)} tokens; it is ignored"]
    wanted = Tokenizer.from_metadata({k: v for k, v in metadata.items() if k != key})
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eog_ids) == (wanted.bos_id, wanted.eos_id, wanted.eog_ids)
    assert all(0 <= token < len(TOKENS) for token in tokenizer.encode("a") + sorted(tokenizer.eog_ids))


@pytest.mark.parametrize(
    "texts",
    [
        ["<|im_end|>", "<|endoftext|>", "<fim_prefix>", "▁<SUF>", "<PAD>", "</s>"],
        ["<|end|>", "<|message|>"],
        ["<|end|>", "<|return|>", "<|call|>"],
        ["<|end|>", "<|flush|>", "<|calls|>"],
        ["<|channel|>", "<|file_sep|>", "</s>", "<|tool_response>"],
    ],
)
def test_tokens_have_roles_by_their_texts(texts: list[str], metadata: dict[str, Any], tmp_path: Path) -> None:
    """Whatever type the file gives them (normal, here): some end a generation, some are control, some user-defined."""
    columns = {
        "tokenizer.ggml.tokens": [*TOKENS, *texts],
        "tokenizer.ggml.scores": [*metadata["tokenizer.ggml.scores"].tolist(), *([0.0] * len(texts))],
        "tokenizer.ggml.token_type": [*metadata["tokenizer.ggml.token_type"].tolist(), *([1] * len(texts))],
    }
    rows = Weight((len(TOKENS) + len(texts), 64), 1.0)
    weights = {"token_embd.weight": rows, "output.weight": rows}
    path = tiny_model(tmp_path / "model.gguf", "llama", metadata=columns, weights=weights)
    tokenizer = Tokenizer.from_metadata(metadata_of(path))
    with Reference(path, n_ctx=256) as reference:
        assert tokenizer.eog_ids == reference.eog_ids()
        for token, text in enumerate(texts, len(TOKENS)):
            assert tokenizer.decode([token]).encode() == reference.piece(token)
            ids = reference.tokenize(text, add_special=False, parse_special=False)
            assert tokenizer.encode(text, add_special=False, parse_special=False) == ids


def test_phi_3_swallows_white_space_after_special_tokens(metadata: dict[str, Any]) -> None:
    """Even white space that would be a token itself."""
    tokenizer = Tokenizer.from_metadata(metadata | {"general.name": "Phi-3 mini"})
    wanted = tokenizer.encode("<end_of_turn>the")
    assert tokenizer.encode("<end_of_turn> \n the") == tokenizer.encode("<end_of_turn>\n\nthe") == wanted
    assert tokenizer.encode("\n\n\n\nthe") == tokenizer.encode("\n\nthe")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": 3}, InputError, "tokenizer.ggml.model is an integer .3."),
        ({"model": "rwkv"}, UnsupportedError, "tokenizer.ggml.model is 'rwkv'; this build has 'llama'"),
        ({"tokens": None}, UnsupportedError, "tokenizer.ggml.tokens is missing"),
        ({"tokens": np.arange(9)}, InputError, "tokenizer.ggml.tokens is no list of texts"),
        ({"tokens": ["a", "b", "a"]}, InputError, "has 'a' at 0 and at 2"),
        ({"tokens": ["a", "\udcff"]}, UnsupportedError, "not UTF-8 at 1"),
        ({"scores": [0.0]}, InputError, "tokenizer.ggml.scores is no list with a number for each of the"),
        ({"scores": [float("nan")] * len(TOKENS)}, InputError, "tokenizer.ggml.scores holds a number"),
        ({"token_type": "text"}, InputError, "tokenizer.ggml.token_type is no list"),
        ({"model": "lama"}, UnsupportedError, "did you mean 'llama'"),
        ({"token_type": [6] * len(TOKENS)}, InputError, "says that '<pad>' at 0 is a byte"),
        ({"add_bos_token": "yes"}, InputError, "tokenizer.ggml.add_bos_token is 'yes'"),
    ],
)
def test_what_can_not_be_is_refused(
    metadata: dict[str, Any], change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        Tokenizer.from_metadata(metadata | {f"tokenizer.ggml.{key}": value for key, value in change.items()})
    assert "\n" not in str(caught.value)


def test_saved_and_loaded(metadata: dict[str, Any], tmp_path: Path) -> None:
    types = metadata["tokenizer.ggml.token_type"].copy()
    types[TOKENS.index("ing")] = 5  # unused: merged, but without a text
    before = Tokenizer.from_metadata(metadata | {"tokenizer.ggml.token_type": types})
    before.save(tmp_path)
    after = Tokenizer.load(tmp_path)
    text = "<bos>the sing 日本<end_of_turn>語"
    assert after.encode(text) == before.encode(text)
    assert after.decode(after.encode(text)) == before.decode(before.encode(text)) == "the s 日本語"
    assert (after.bos_id, after.eos_id, after.eog_ids) == (before.bos_id, before.eos_id, before.eog_ids)
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(InputError, match="damaged tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match="is not a tokenizer's configuration"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["spm", "bpe"])
def test_a_stream_never_splits_a_character(shared_dir: Path, kind: str) -> None:
    case = shared_dir / "cases/32-character-split-over-tokens-in-a-stream/input"
    tokenizer = Tokenizer.from_metadata(metadata_of(case / f"{kind}.gguf"))
    for name, run in json.loads((case / "streams.json").read_text("utf-8")).items():
        ids = run[f"{kind}_ids"]
        stream = tokenizer.stream()
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.flush() == run["text"], name
        assert tokenizer.decode(ids) == run["text"]
        if "\ufffd" not in run["text"]:
            assert not any("\ufffd" in piece for piece in pieces), name
        assert stream.flush() == ""


def test_ids_outside_the_vocabulary_are_refused(metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    for token in (-1, len(TOKENS)):
        with pytest.raises(InputError, match=f"token {token} is outside the vocabulary of {len(TOKENS)}"):
            tokenizer.decode([token])


def test_bytes_that_are_no_tokens(metadata: dict[str, Any]) -> None:
    """The character's own token stands in for a byte, or the unknown one: never nothing, and never without a word."""
    texts = [text for text in TOKENS if not text.startswith("<0x")]
    kept = [i for i, text in enumerate(TOKENS) if not text.startswith("<0x")]
    columns = {key: metadata[f"tokenizer.ggml.{key}"][kept] for key in ("scores", "token_type")}
    given = metadata | {f"tokenizer.ggml.{key}": value for key, value in (columns | {"tokens": texts}).items()}
    tokenizer = Tokenizer.from_metadata(given)
    assert tokenizer.notes == ["the vocabulary lacks tokens for 256 of the 256 bytes; characters of these are unknown"]
    assert [texts[i] for i in tokenizer.encode("theé!", add_special=False)] == ["t", "he", "é", "<unk>"]


@pytest.mark.slow
def test_the_real_vocabulary_is_llama_cpps(real_model: Path, tmp_path: Path) -> None:
    """Mixed texts, the bytes of tokens, and the time to load from a bundle."""
    agree(real_model, 300)
    metadata = metadata_of(real_model)
    Tokenizer.from_metadata(metadata).save(tmp_path)
    start = time.process_time()
    tokenizer = Tokenizer.load(tmp_path)
    assert time.process_time() - start < 0.15
    with Reference(real_model, n_ctx=256) as reference:
        for token in range(0, tokenizer.vocab_size, 7):
            assert tokenizer.decode([token]) == reference.piece(token).decode("utf-8", "replace")
