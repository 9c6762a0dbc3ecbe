"""Every family against llama.cpp: the published vocabularies, WordPiece, unigram; files, stock libraries, time."""

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers
from ggufc.frontend.errors import InputError, UnsupportedError
from ggufc.frontend.tokenizer import Tokenizer
from ggufc.frontend.tokenizer.roles import TokenType

from ...oracle import Vocabulary
from .texts import PHRASES, agree, metadata_of, texts
from .vocabularies import characters, pairs, unigram, write_vocabulary

PUBLISHED = ("llama-spm", "bert-bge", "gpt-2", "falcon")
# How a WordPiece vocabulary may normalize.
CASES = ({}, {"lowercase": False}, {"strip_accents": False}, {"lowercase": False, "strip_accents": True})
LONG = "cases/34-long-text-quadratic-time"


def published(shared_dir: Path, name: str) -> Path:
    return shared_dir / f"data/tokenizers/ggml-vocab-{name}.gguf"


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_vocabularies(shared_dir: Path, name: str) -> None:
    """llama.cpp's own test texts and their ids, and random texts."""
    path = published(shared_dir, name)
    tokenizer = agree(path)
    given = Path(f"{path}.inp").read_text("utf-8").split("\n__ggml_vocab_test__\n")
    wanted = Path(f"{path}.out").read_text("utf-8").split("\n")
    for text, line in zip(given, wanted, strict=True):
        assert tokenizer.encode(text, add_special=False, parse_special=False) == [int(token) for token in line.split()]


@pytest.mark.parametrize("flags", CASES)
def test_word_pieces_of_every_character(shared_dir: Path, tmp_path: Path, flags: dict[str, bool]) -> None:
    """Inside a word and alone; the categories are those of one Unicode, whatever Python has."""
    known = metadata_of(published(shared_dir, "bert-bge"))
    metadata = {key: known[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type")}
    metadata = {key: list(value) if key == "tokens" else value.tolist() for key, value in metadata.items()}
    metadata |= {f"normalizer.{key}": value for key, value in flags.items()}
    path = write_vocabulary(tmp_path / "model.gguf", "bert", metadata)
    tokenizer = Tokenizer.from_metadata(metadata_of(path))
    codes = [*range(0x2FFF), *range(0x3000, 0xD800, 17), *range(0xE000, 0x1F000, 5), *range(0x1F000, 0x110000, 199)]
    with Vocabulary(path) as reference:
        for start in range(0, len(codes), 50):
            text = "".join(f" a{chr(code)}b {chr(code)}" for code in codes[start : start + 50])
            assert tokenizer.encode(text) == reference.tokenize(text), hex(codes[start])


def charsmap() -> bytes:
    """SentencePiece's own table for NFKC: field 2 of the normalizer in the model's field 3."""
    model = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto()
    size = len(model)
    start = next(i for i in range(size) if model[i] == 0x12 and 4 + size - 400 < _varint(model, i + 1)[0] < size)
    length, begin = _varint(model, start + 1)
    return model[begin : begin + length]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return value, at


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("table", [True, False])
def test_unigrams(tmp_path: Path, prefix: bool, remove: bool, table: bool) -> None:
    metadata = unigram(add_space_prefix=prefix, remove_extra_whitespaces=remove)
    metadata |= {"precompiled_charsmap": charsmap()} if table else {}
    agree(write_vocabulary(tmp_path / "model.gguf", "t5", metadata))


def test_replacements_stop_where_a_user_defined_token_might_begin(tmp_path: Path) -> None:
    """As far as a text goes with `<extra_id_0>` llama.cpp leaves it alone, even where the token isn't there."""
    path = write_vocabulary(tmp_path / "model.gguf", "t5", unigram(precompiled_charsmap=charsmap()))
    tokenizer = Tokenizer.from_metadata(metadata_of(path))
    with Vocabulary(path) as reference:
        for text in ("<e\u0301", "e\u0301", "<e\u0301<ex\u0301", "<ext\u0301<<e", "<extra_id_0>e\u0301 <extra_id_"):
            assert tokenizer.encode(text) == reference.tokenize(text), repr(text)


def test_a_damaged_table_of_replacements_is_refused() -> None:
    """Every walk through it must stay inside: SentencePiece follows it wherever it leads."""
    table = np.frombuffer(charsmap(), np.uint8)
    metadata = {f"tokenizer.ggml.{key}": value for key, value in {"model": "t5", **unigram()}.items()}
    rng = np.random.default_rng(0)
    for _ in range(20):
        damaged = table.copy()
        damaged[rng.integers(4, len(table) - 1, 500)] = rng.integers(0, 256, 500)
        with pytest.raises(InputError, match="charsmap is damaged: it points outside itself"):
            Tokenizer.from_metadata(metadata | {"tokenizer.ggml.precompiled_charsmap": damaged})
    for wrong in (table[:3], table[:-1], table[:5000], "text", table.astype(float)):
        with pytest.raises(InputError, match="precompiled_charsmap is"):
            Tokenizer.from_metadata(metadata | {"tokenizer.ggml.precompiled_charsmap": wrong})


def made(tmp_path: Path, shared_dir: Path, family: str) -> Path:
    """A vocabulary of a family."""
    if family == "llama":
        return published(shared_dir, "llama-spm")
    if family == "bert":
        return published(shared_dir, "bert-bge")
    metadata = {"gpt2": pairs("qwen2"), "gemma4": characters(""), "t5": unigram(precompiled_charsmap=charsmap())}
    return write_vocabulary(tmp_path / "model.gguf", family, metadata[family])


FAMILIES = ("llama", "gpt2", "gemma4", "bert", "t5")


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_for_us_and_for_stock_libraries(tmp_path: Path, shared_dir: Path, family: str) -> None:
    before = Tokenizer.from_metadata(metadata_of(made(tmp_path, shared_dir, family)))
    folder = tmp_path / "saved"
    folder.mkdir()
    before.save(folder)
    after = Tokenizer.load(folder)
    for text in (*PHRASES, *texts(40, list(before.control_texts))):
        ids = before.encode(text)
        assert after.encode(text) == ids
        assert after.encode(text, parse_special=False) == before.encode(text, parse_special=False)
        assert after.decode(ids, whole=True) == before.decode(ids, whole=True)
    assert (after.bos_id, after.eos_id, after.eog_ids) == (before.bos_id, before.eos_id, before.eog_ids)
    plain = ("Hello world", "The quick brown fox", "don't 12 345!", "日本語のテキスト", "Съешь ещё этих булок")
    if family in ("llama", "t5"):
        stock = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        assert [stock.encode(text) for text in plain] == [before.encode(text, add_special=False) for text in plain]
    else:
        stock = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        assert [stock.encode(text).ids for text in plain] == [before.encode(text) for text in plain]
    (file,) = (path for path in folder.iterdir() if path.name != "tokenizer_config.json")
    for damage in (b"", b"{}", b"\x00" * 99):
        file.write_bytes(damage)
        with pytest.raises(InputError, match=r"damaged tokenizer .*; export the model again"):
            Tokenizer.load(folder)
    file.unlink()
    with pytest.raises(InputError, match=f"{file.name}.*; export the model again"):
        Tokenizer.load(folder)


def with_user_defined(path: Path, shared_dir: Path, texts: list[str], **more: Any) -> Path:
    """Llama's vocabulary without its runs of spaces, with these texts as user-defined tokens behind it."""
    known = metadata_of(published(shared_dir, "llama-spm"))
    tokens, scores, types = (known[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores", "token_type"))
    kept = [i for i, text in enumerate(tokens) if text == "▁" or text.strip("▁")]
    metadata = {
        "tokens": [*(tokens[i] for i in kept), *texts],
        "scores": [*scores[kept].tolist(), *[-1000.0] * len(texts)],
        "token_type": [*types[kept].tolist(), *[int(TokenType.USER_DEFINED)] * len(texts)],
    }
    return write_vocabulary(path, "llama", metadata | more)


CODE = ("a  b", "   x", "def f(x):\n    if x:\n        return 1\n", "  leading and trailing  ", " " * 33)


def test_stock_sentencepiece_finds_runs_of_spaces(tmp_path: Path, shared_dir: Path) -> None:
    """User-defined tokens, as Gemma's: SentencePiece's file has them with ▁, a GGUF with spaces."""
    runs = [" " * n for n in range(2, 9)]
    path = with_user_defined(tmp_path / "model.gguf", shared_dir, runs, add_space_prefix=False)
    tokenizer = agree(path)
    tokenizer.save(tmp_path)
    saved = Tokenizer.load(tmp_path)
    stock = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in CODE:
        ids = tokenizer.encode(text, add_special=False)
        assert max(ids) >= tokenizer.vocab_size - len(runs)  # one of them is there
        assert stock.encode(text) == ids == saved.encode(text, add_special=False)
    with Vocabulary(path) as reference:
        for text in ("▁▁", "a▁▁b", "  ▁▁  ▁", "▁ ▁  x"):  # spaces to SentencePiece, but not to llama.cpp
            assert saved.encode(text) == reference.tokenize(text), text


@pytest.mark.parametrize("prefix", [True, False])
def test_user_defined_tokens_with_the_sign_for_a_space(prefix: bool, tmp_path: Path, shared_dir: Path) -> None:
    """As files of Gemma before July 2024 have them: found where a text has the sign, and else merged like any other."""
    odd = ["▁▁", "▁▁▁▁", "▁" * 8, "<tool▁call>", "of▁the", "▁of▁", "<a b>", "a▁ b", "<0xab>", "<0xZZ>"]
    path = with_user_defined(tmp_path / "model.gguf", shared_dir, odd, add_space_prefix=prefix)
    before = agree(path)
    before.save(tmp_path)
    after = Tokenizer.load(tmp_path)
    with Vocabulary(path) as reference:
        for text in (*CODE, "a <tool call> b <tool▁call>", "out of the way, of▁the", "▁▁▁▁ ▁of▁", "<a b> a▁ b<0xab>"):
            assert before.encode(text) == after.encode(text) == reference.tokenize(text), text


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_a_file_may_have_no_tokenizer(model: str | None) -> None:
    with pytest.raises(UnsupportedError, match=r"the file has no tokenizer .*; give token ids instead of text"):
        Tokenizer.from_metadata({} if model is None else {"tokenizer.ggml.model": model})


def test_libraries_are_imported_when_they_are_used() -> None:
    code = "import sys, ggufc.frontend.tokenizer; print({'tokenizers', 'sentencepiece'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def ids_of_long_texts(shared_dir: Path, file: str, size: int, seconds: float) -> None:
    """Texts made to be slow: runs, no blank, thousands of special tokens. Where llama.cpp dies there is no id."""
    case = shared_dir / LONG
    expected = json.loads((case / "expect.json").read_text("utf-8"))["files"][f"{file}.gguf/{size}"]
    tokenizer = Tokenizer.from_metadata(metadata_of(case / f"input/{file}.gguf"))
    for name, text in json.loads((case / f"input/texts-{size}.json").read_text("utf-8")).items():
        start = time.process_time()
        ids = tokenizer.encode(text, add_special=False)
        assert time.process_time() - start < seconds, name
        known: Any = expected.get(name) if isinstance(expected, dict) else None
        if isinstance(known, dict) and "sha256_16" in known:
            assert hashlib.sha256(np.array(ids, "<u4").tobytes()).hexdigest()[:16] == known["sha256_16"], name


@pytest.mark.parametrize("file", ["spm", "wpm", "bpe-llama-bpe", "bpe-qwen2", "bpe-tekken"])
def test_long_texts(shared_dir: Path, file: str) -> None:
    ids_of_long_texts(shared_dir, file, 25_000, 3)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["spm", "wpm", "bpe-llama-bpe", "bpe-qwen2", "bpe-tekken"])
def test_longer_texts(shared_dir: Path, file: str) -> None:
    ids_of_long_texts(shared_dir, file, 200_000, 5)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_megabyte_takes_two_seconds_at_most(tmp_path: Path, shared_dir: Path, family: str) -> None:
    """With room for a machine that does other things too."""
    tokenizer = Tokenizer.from_metadata(metadata_of(made(tmp_path, shared_dir, family)))
    text = "".join(texts(60_000)).encode()[: 1 << 20].decode("utf-8", "ignore")
    tokenizer.encode("once, for what is made at the first use")
    start = time.process_time()
    tokenizer.encode(text)
    assert time.process_time() - start < 4


@pytest.mark.slow
@pytest.mark.parametrize("run", ["a", "A", "7", " ", "\n", "'s", "a ", "\u0663" + "1", " 7", "!\n \n", "a\u0300"])
def test_no_way_to_cut_words_is_quadratic(run: str) -> None:
    from ggufc.frontend.tokenizer.pre import PRES

    for name in {pre.passes: name for name, pre in PRES.items() if pre.bytes_as_letters}.values():
        metadata = {"model": "gpt2", **pairs(name, 20)}
        tokenizer = Tokenizer.from_metadata({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
        start = time.process_time()
        tokenizer.encode(run * (60_000 // len(run)) + "b")
        assert time.process_time() - start < 2, name
