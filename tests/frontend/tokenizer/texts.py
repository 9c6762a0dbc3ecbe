# ruff: noqa: RUF001 (letters that look alike are meant)
"""Texts of every kind, and the question whether two tokenizers agree on them.

GGUFC_TEXTS is the number of random texts for each vocabulary; a long run takes some thousands.
"""

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ggufc.frontend.gguf.reader import read_gguf
from ggufc.frontend.tokenizer import Tokenizer

from ...oracle import Vocabulary

COUNT = int(os.environ.get("GGUFC_TEXTS", "60"))
PHRASES = (
    *("The quick brown fox", "  leading and trailing  ", "I'LL don't we've 'S 'Re", "''' 's 't're", "a" * 60),
    *("1234567890 3.14159 ٣٤٥", "12 345\n\n 6", "½²①Ⅷ", "Ａ１２３４", "\n" * 5, "\r\n\t\t", " " * 33),
    *("Съешь ещё этих булок", "Ελλάδα", "日本語のテキスト、漢字", "한국어 문장", "مرحبا بالعالم", "हिन्दी में", "ภาษาไทย"),
    *("עברית", "🙂🚀", "👨\u200d👩\u200d👧", "e\u0301\u0323", "𝔘𝔫𝔦", "ﬁﾃｽﾄ", "ǅK\u017f", "！，。：…“”"),
    *("\u00a0\u3000\u2003", "\u2028\u2029\x85\x0b\x0c\x1c\x1d", "\x00\x07\x7f", "\ufffd\ufeff", "▁▁", "<0x0A>"),
    *("def f(x):\n    return {'a': x ** 2}\n", "<table><td>1</td></table>", "#include <stdio.h>"),
    *("https://example.org/?q=1", "~~~ ^^ `a` $+<=>|", "<sentinel:12>IMGIMGABZ", "Hello , world ! it 's 'd ."),
)
_STARTS = "Aa0 一あ가٠１เ\u0300!\n\r"


def texts(count: int, parts: Sequence[str] = (), seed: int = 0) -> Iterator[str]:
    """Random texts: characters of all Unicode, words of many scripts, and the parts that are given."""
    rng = random.Random(seed)
    kinds = (
        lambda: chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))),
        lambda: chr(rng.randrange(0x3000)),
        lambda: chr(rng.randrange(128)),
        lambda: "".join(rng.choice("'srvetmdlSRVETMDL aB1 \n") for _ in range(5)),
        lambda: "".join(chr(ord(rng.choice(_STARTS)) + rng.randrange(4)) for _ in range(6)),
        lambda: rng.choice(PHRASES),
        lambda: rng.choice(parts or PHRASES),
    )
    for _ in range(count):
        yield "".join(rng.choice(kinds)() for _ in range(rng.randrange(1, 12)))


def metadata_of(path: Path) -> Mapping[str, Any]:
    with read_gguf(path) as file:
        return file.metadata


def agree(path: Path, count: int = COUNT) -> Tokenizer:
    """Asserts that ids, pieces, whole texts and ends are llama.cpp's on random texts; returns the tokenizer."""
    tokenizer = Tokenizer.from_metadata(metadata_of(path))
    special = [*tokenizer.control_texts, *metadata_of(path)["tokenizer.ggml.tokens"][:: tokenizer.vocab_size // 60 + 1]]
    with Vocabulary(path) as reference:
        for text in (*PHRASES, *texts(count, special)):
            for parse_special in (True, False):
                ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
                wanted = reference.tokenize(text, add_special=False, parse_special=parse_special)
                assert ids == wanted, repr(text)
            pieces = b"".join(reference.piece(token, special=True) for token in ids)
            assert tokenizer.decode(ids, render_special=True) == pieces.decode("utf-8", "replace"), repr(text)
            whole = reference.detokenize(ids).decode("utf-8", "replace")
            assert tokenizer.decode(ids, whole=True) == whole, repr(text)
        for text in ("", " ", "Hello world"):
            ids = tokenizer.encode(text)
            assert ids == reference.tokenize(text)
            assert tokenizer.decode(ids, whole=True) == reference.detokenize(ids).decode("utf-8", "replace")
        assert tokenizer.eog_ids == reference.eog_ids()
    return tokenizer
