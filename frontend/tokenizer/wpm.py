"""WordPiece ("bert"): the longest token first, from the left of each word.

The `tokenizers` library does the same but for what BERT's own normalizer does otherwise than llama.cpp's, gives up on
long words, and takes the square of their length; so the bundle holds its file, and words are cut here.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from .bpe import MODEL_FILE, add_specials, load_json
from .families import Saved
from .roles import flag
from .sentencepiece_model import SPACE
from .vocabulary import Vocabulary

_CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)
# Characters that are newer than the Unicode of some Pythons (14), with their categories in llama.cpp's (15.1).
_NEWER = {
    "M": (
        *((0xCF3, 0xCF3), (0xECE, 0xECE), (0x10EFD, 0x10EFF), (0x11241, 0x11241), (0x11F00, 0x11F01)),
        *((0x11F03, 0x11F03), (0x11F34, 0x11F3A), (0x11F3E, 0x11F42), (0x13440, 0x13440), (0x13447, 0x13455)),
        *((0x1E08F, 0x1E08F), (0x1E4EC, 0x1E4EF)),
    ),
    "P": ((0x11B00, 0x11B09), (0x11F43, 0x11F4F)),
    "Cf": ((0x13439, 0x1343F),),
}
_WHITE_SPACE = frozenset(map(ord, "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000")) | {*range(0x2000, 0x200B)}


class _Characters(dict[int, str]):
    """What each character becomes before words are cut at blanks, found when it is first met."""

    def __init__(self, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase = lowercase
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        found = self[code] = self._changed(code)
        return found

    def _changed(self, code: int) -> str:
        if self._strip_accents:  # the letter alone, of which llama.cpp takes the first part
            code = ord(unicodedata.normalize("NFD", chr(code))[0])
        category = _category(code)
        if code in _WHITE_SPACE:
            return " "
        if code in (0, 0xFFFD) or category in ("Cc", "Cf", "Co", "Cs"):
            return ""
        if self._strip_accents and category[0] == "M":
            return ""
        text = chr(code).lower()[0] if self._lowercase else chr(code)
        alone = category[0] == "P" or (category[0] == "S" and code < 0x7F) or _within(code, _CHINESE)
        return f" {text} " if alone else text


@dataclass(frozen=True)
class Family:
    """BERT's tokens.

    `texts` are llama.cpp's: what begins a word has SPACE in front, what goes on with one nothing.
    """

    texts: Sequence[str]
    unk_id: int | None
    lowercase: bool
    strip_accents: bool
    ids: Mapping[str, int] = field(init=False)
    longest: int = field(init=False)
    characters: _Characters = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", {text: i for i, text in enumerate(self.texts)})
        object.__setattr__(self, "longest", max(map(len, self.texts)))
        object.__setattr__(self, "characters", _Characters(self.lowercase, self.strip_accents))

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary, metadata: Mapping[str, Any], notes: list[str]) -> Self:
        """Makes it from a GGUF's token table and the keys that are the family's own.

        Raises:
            InputError: the normalizer's flags are none.
        """
        lowercase = flag(metadata, "normalizer.lowercase", True)
        strip_accents = flag(metadata, "normalizer.strip_accents", lowercase)
        specials = vocabulary.specials
        if specials.unk_id is None:
            notes.append("the vocabulary has no unknown token: words that are none of its own are left out")
        if specials.first is None or specials.last is None:
            notes.append("the vocabulary lacks CLS or SEP (tokenizer.ggml.bos_token_id, seperator_token_id); not added")
        return cls(vocabulary.texts, specials.unk_id, lowercase, strip_accents)

    def encode(self, text: str) -> list[int]:
        known: dict[str, list[int]] = {}
        ids: list[int] = []
        for word in text.translate(self.characters).split(" "):
            if word:
                if word not in known:
                    known[word] = self._pieces(SPACE + word)
                ids += known[word]
        return ids

    def _pieces(self, word: str) -> list[int]:
        """The tokens of a word, or the unknown one where a part of it has none."""
        ids: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self.longest), start, -1):
                token = self.ids.get(word[start:end])
                if token is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                return [] if self.unk_id is None else [self.unk_id]
        return ids

    def text(self, token: int) -> str:
        return self.texts[token]

    def unescape(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()

    def save(self, folder: Path, vocabulary: Saved) -> dict[str, Any]:
        # BERT's own writing: "##" before what goes on with a word, nothing before what begins one or is special.
        written = [text if i in vocabulary.control else _bert(text) for i, text in enumerate(self.texts)]
        names: dict[str, int] = {}
        for i, text in enumerate(written):
            while text in names:  # two of llama.cpp's texts may be one of BERT's
                text += " "
            names[text] = i
        others = {i: self.texts[i] for text, i in names.items() if _llama(text) != self.texts[i]}
        unknown = "[UNK]" if self.unk_id is None else written[self.unk_id]
        stock = Tokenizer(models.WordPiece(names, unk_token=unknown, max_input_chars_per_word=1000))
        stock.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=self.strip_accents, lowercase=self.lowercase
        )
        stock.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        stock.decoder = decoders.WordPiece()
        add_specials(stock, vocabulary)
        stock.save(str(folder / MODEL_FILE), pretty=False)
        return {
            "texts": list(others.items()),
            "vocab_size": len(self.texts),
            "unk_id": self.unk_id,
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
        }

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        stock = load_json(folder)
        others = dict(options["texts"])
        texts = [others.get(i) or _llama(stock.id_to_token(i) or "") for i in range(int(options["vocab_size"]))]
        unknown = options["unk_id"]
        if unknown is not None and not 0 <= int(unknown) < len(texts):
            raise ValueError(f"unknown token {unknown}")
        flags = (bool(options[name]) for name in ("lowercase", "strip_accents"))
        return cls(texts, unknown, *flags)


def _bert(text: str) -> str:
    """A token's text as BERT writes it."""
    return text[1:] if text.startswith(SPACE) and len(text) > 1 else f"##{text}"


def _llama(text: str) -> str:
    """The opposite of `_bert`."""
    return text[2:] if text.startswith("##") else SPACE + text


def _category(code: int) -> str:
    """The general category in Unicode 15.1."""
    found = unicodedata.category(chr(code))
    if found == "Cn":
        return next((name for name, ranges in _NEWER.items() if _within(code, ranges)), found)
    return found


def _within(code: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(first <= code <= last for first, last in ranges)
