"""Byte-pair encoding against llama.cpp: every way to cut words, Gemma 4's, and vocabularies with holes."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.frontend.tokenizer import Tokenizer
from ggufc.frontend.tokenizer.pre import PRES

from ...oracle import Vocabulary
from .texts import agree, metadata_of
from .vocabularies import characters, letters, pairs, write_vocabulary

CASE = "cases/36-pre-tokenizer-missing-or-unknown"
# One name for each way to cut words, and the names that differ in what else they say.
WAYS = {pre.passes: name for name, pre in PRES.items() if pre.bytes_as_letters}


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS.values())
def test_words_are_cut_as_llama_cpp_cuts_them(name: str, tmp_path: Path) -> None:
    agree(write_vocabulary(tmp_path / "model.gguf", "gpt2", pairs(name)))


@pytest.mark.parametrize("name", PRES)
def test_what_a_name_says_besides(name: str, tmp_path: Path) -> None:
    """Whether BOS is added, merges are ignored, spaces cleaned."""
    metadata = pairs(name, 200) if PRES[name].bytes_as_letters else characters(name)
    metadata["tokens"] = [*metadata["tokens"], "hello", "Ġhello"]  # tokens that no merge makes
    metadata["token_type"] = [*metadata["token_type"], 1, 1]
    path = write_vocabulary(tmp_path / "model.gguf", "gpt2", metadata)
    tokenizer = Tokenizer.from_metadata(metadata_of(path))
    with Vocabulary(path) as reference:
        for text in ("", "hello hello", "is it ? no , it 's"):
            ids = reference.tokenize(text)
            assert tokenizer.encode(text) == ids
            assert tokenizer.decode(ids, whole=True).encode() == reference.detokenize(ids)


@pytest.mark.parametrize(
    ("model", "name"), [("gemma4", ""), *(("gpt2", name) for name in ("sarvam-moe", "granite-embed-multi-311m"))]
)
def test_merges_of_characters(model: str, name: str, tmp_path: Path) -> None:
    """Gemma 4's: a line is one word, a run of newlines that is a token is that token, bytes stand for the rest."""
    tokenizer = agree(write_vocabulary(tmp_path / "model.gguf", model, characters(name)))
    ids = tokenizer.encode("a \n\n\nb🙂", add_special=False)
    assert tokenizer.decode(ids) == "a \n\n\nb🙂"
    assert tokenizer.add_bos == (name != "sarvam-moe")


@pytest.mark.parametrize("name", ["phi-3 mini", "a modern-bert", ""])
def test_special_tokens_that_overlap_and_swallow_white_space(name: str, tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "model.gguf", "gpt2", pairs("gpt-2", 200) | {"general.name": name})
    tokenizer = Tokenizer.from_metadata(metadata_of(path))
    rng = random.Random(0)
    parts = ["<user>", "<user", ">", "r><u", " ", "  ", "\n", "\x0b", "[MASK]", "<s>", "</s>", "<|im_start|>", "a"]
    with Vocabulary(path) as reference:
        for _ in range(500):
            text = "".join(rng.choices(parts, k=rng.randrange(1, 9)))
            for parse_special in (True, False):
                wanted = reference.tokenize(text, add_special=False, parse_special=parse_special)
                assert tokenizer.encode(text, add_special=False, parse_special=parse_special) == wanted, repr(text)


def test_symbols_that_are_no_tokens(tmp_path: Path) -> None:
    """Merges lead to texts that the vocabulary hasn't, and letters of bytes are missing: what is left are its bytes."""
    rng = random.Random(0)
    for metadata in (pairs("gpt-2", 2000), characters("gemma4")):
        kept = [i for i, text in enumerate(metadata["tokens"]) if len(text) > 2 or rng.random() < 0.8]
        named = {"bos_token_id", "eos_token_id"}
        holed = {key: value for key, value in metadata.items() if key not in named}
        holed |= {key: kept.index(metadata[key]) for key in named}
        holed |= {key: [metadata[key][i] for i in kept] for key in ("tokens", "token_type")}
        agree(write_vocabulary(tmp_path / "model.gguf", "gpt2", holed))


def test_published_words(shared_dir: Path) -> None:
    """Digits, apostrophes, runs of blanks, marks, CJK and code under 25 names; a missing one is told, once."""
    expected = json.loads((shared_dir / CASE / "expect.json").read_text("utf-8"))["files"]
    for name, wanted in expected.items():
        metadata = metadata_of(shared_dir / CASE / "input" / name)
        if wanted["load"] == "refused":
            with pytest.raises(UnsupportedError, match=r"tokenizer.ggml.pre is 'klingon', which is none known"):
                Tokenizer.from_metadata(metadata)
            continue
        tokenizer = Tokenizer.from_metadata(metadata)
        assert [note.split(" is")[0] for note in tokenizer.notes] == ["tokenizer.ggml.pre"] * (
            name == "pre-absent.gguf"
        )
        for text in wanted["texts"]:
            assert tokenizer.encode(text["text"]) == text["special_bos"]
            assert tokenizer.encode(text["text"], add_special=False) == text["special"]
            assert tokenizer.encode(text["text"], add_special=False, parse_special=False) == text["plain"]
            assert tokenizer.decode(text["plain"], whole=True) == text["decoded_plain"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pre": "llama_bpe"}, UnsupportedError, "is 'llama_bpe', which is none known .did you mean 'llama-bpe'"),
        ({"pre": 3}, InputError, "tokenizer.ggml.pre is an integer .3.; it must be a name"),
        ({"pre": ("x",) * 10**6}, InputError, "tokenizer.ggml.pre is an array of 1000000 strings; it must be a name"),
        ({"pre": "x" * 10**6}, UnsupportedError, r"x'\.\.\. .1000000 characters., which is none known"),
        (
            {"model": "x" * 10**6},
            UnsupportedError,
            r"tokenizer.ggml.model is 'x+'\.\.\. .1000000 characters.; this build",
        ),
        ({"merges": None}, UnsupportedError, "tokenizer.ggml.merges is missing"),
        ({"merges": [1, 2]}, InputError, "tokenizer.ggml.merges is no list of texts"),
        ({"merges": ["a \udcff"]}, UnsupportedError, "tokenizer.ggml.merges has bytes that are not UTF-8 at 0"),
    ],
)
def test_what_can_not_be_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    metadata = {"model": "gpt2", **pairs("gpt-2", 20), **change}
    with pytest.raises(error, match=message) as caught:
        Tokenizer.from_metadata({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_letters_of_bytes() -> None:
    from ggufc.frontend.tokenizer.bpe import _LETTERS

    assert [_LETTERS[byte] for byte in range(256)] == letters()
    assert _LETTERS[0x20] == "\u0120" and _LETTERS[0x0A] == "\u010a"
