"""Byte-pair encoding ("gpt2", "gemma4"), done by the `tokenizers` library."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ..errors import UnsupportedError
from .families import Saved
from .pre import Pre, pre_of
from .sentencepiece_model import SPACE
from .vocabulary import Vocabulary, strings

MODEL_FILE = "tokenizer.json"


def _letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself where it is visible Latin 1, else one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(0x100 + n) for n, byte in enumerate(hidden)}


_RUNS = re.compile("(\n+)")
_LETTERS = _letters()
_BYTES = {letter: bytes([byte]) for byte, letter in _LETTERS.items()}


@dataclass(frozen=True)
class Family:
    """Merges by rank inside words that a `Pre` cuts.

    The library wants every part of a merge to be a token, so those that are none get an id past the vocabulary's end:
    `phantoms` has what llama.cpp makes of each, which is what the vocabulary has for its bytes. `newlines` are tokens
    that a run of newlines becomes whole, where merges would give others.
    """

    tokenizer: Tokenizer
    bytes_as_letters: bool
    escape_spaces: bool
    phantoms: Mapping[int, list[int]]
    newlines: Mapping[str, int]

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary, metadata: Mapping[str, Any], notes: list[str]) -> Self:
        """Makes it from a GGUF's token table and the keys that are the family's own.

        Raises:
            UnsupportedError: there are no merges, or `pre` isn't known.
        """
        pre = pre_of(metadata, [])
        written = strings(metadata, "merges")
        if written is None and metadata.get("tokenizer.ggml.pre") != "kimi-k2":
            raise UnsupportedError("tokenizer.ggml.merges is missing; give token ids instead")
        merges = _merges(written or ())
        ids = vocabulary.ids
        extended = dict(ids)
        for symbol in _symbols(merges, pre):
            extended.setdefault(symbol, len(extended))
        phantoms = {
            token: _fallback(symbol, ids, pre) for symbol, token in extended.items() if token >= len(vocabulary.texts)
        }
        model = models.BPE(extended, merges, ignore_merges=pre.ignore_merges, byte_fallback=not pre.bytes_as_letters)
        tokenizer = Tokenizer(model)
        cuts = [pre_tokenizers.Split(Regex(one), "isolated") for one in pre.passes]
        if pre.bytes_as_letters:
            letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, letters])
            tokenizer.decoder = decoders.ByteLevel()
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
            tokenizer.decoder = decoders.Sequence(
                [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
            )
        if pre.escape_spaces:
            tokenizer.normalizer = normalizers.Replace(" ", SPACE)
        newlines = _newlines(tokenizer, ids) if pre.whole_newlines else {}
        return cls(tokenizer, pre.bytes_as_letters, pre.escape_spaces, phantoms, newlines)

    def encode(self, text: str) -> list[int]:
        if self.escape_spaces:  # also what the library's normalizer does, in time that grows with the text's square
            text = text.replace(" ", SPACE)
        ids = self._pieces(text) if self.newlines else self._encode(text)
        return [known for i in ids for known in self.phantoms.get(i, (i,))] if self.phantoms else ids

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _pieces(self, text: str) -> list[int]:
        """The ids of lines and of the runs of newlines between them, each on its own."""
        ids: list[int] = []
        for n, piece in enumerate(_RUNS.split(text)):
            if n % 2 and piece in self.newlines:
                ids.append(self.newlines[piece])
            elif piece:
                ids.extend(self._encode(piece))
        return ids

    def text(self, token: int) -> str:
        text = self.tokenizer.id_to_token(token)
        if text is None:
            raise IndexError(f"no token {token}")
        return text

    def unescape(self, text: str) -> bytes:
        if self.bytes_as_letters:  # a letter that stands for no byte is itself
            return b"".join(_BYTES.get(letter) or letter.encode() for letter in text)
        return (text.replace(SPACE, " ") if self.escape_spaces else text).encode()

    def save(self, folder: Path, vocabulary: Saved) -> dict[str, Any]:
        whole = Tokenizer.from_str(self.tokenizer.to_str())
        add_specials(whole, vocabulary)
        whole.save(str(folder / MODEL_FILE), pretty=False)
        return {
            "bytes_as_letters": self.bytes_as_letters,
            "escape_spaces": self.escape_spaces,
            "phantoms": list(self.phantoms.items()),
            "newlines": dict(self.newlines),
        }

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        tokenizer = load_json(folder)
        tokenizer.encode_special_tokens = True  # special tokens were cut out before
        return cls(
            tokenizer,
            bool(options["bytes_as_letters"]),
            bool(options["escape_spaces"]),
            dict(options["phantoms"]),
            dict(options["newlines"]),
        )


def add_specials(tokenizer: Tokenizer, specials: Saved) -> None:
    """Adds what stock users of the file need: special tokens, and those that begin and end a text."""

    def added(texts: Mapping[int, str]) -> list[AddedToken]:
        return [
            AddedToken(text, lstrip=i in specials.lstrip, rstrip=i in specials.rstrip, normalized=False)
            for i, text in texts.items()
        ]

    tokenizer.add_special_tokens(added(specials.control))
    tokenizer.add_tokens(added(specials.user_defined))
    ends = {name: i for name, i in (("first", specials.first), ("last", specials.last)) if i is not None}
    before, after = "first:0 " * ("first" in ends), " last:0" * ("last" in ends)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before}$A:0{after}",
        pair=f"{before}$A:0{after} $B:0{after}",
        special_tokens=[{"id": name, "ids": [i], "tokens": [tokenizer.id_to_token(i)]} for name, i in ends.items()],
    )


def load_json(folder: Path) -> Tokenizer:
    """The `tokenizers` file of a folder.

    Raises:
        OSError, ValueError: the file is missing or damaged.
    """
    path = folder / MODEL_FILE
    try:
        return Tokenizer.from_buffer(path.read_bytes())
    except OSError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path}: {error}") from None


def _merges(written: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs in the order of their rank; the first of two that are alike counts."""
    pairs: dict[tuple[str, str], None] = {}
    for merge in written:
        at = merge.find(" ", 1)
        if at > 0:
            pairs.setdefault((merge[:at], merge[at + 1 :]))
    return list(pairs)


def _symbols(merges: Sequence[tuple[str, str]], pre: Pre) -> dict[str, None]:
    """Every text that may be a symbol on the way: the smallest ones, and the parts and results of merges."""
    smallest = _LETTERS.values() if pre.bytes_as_letters else [f"<0x{byte:02X}>" for byte in range(256)]
    merged = (symbol for left, right in merges for symbol in (left, right, left + right))
    return dict.fromkeys((*smallest, *merged))


def _fallback(symbol: str, ids: Mapping[str, int], pre: Pre) -> list[int]:
    """What llama.cpp makes of a symbol that is no token: the tokens of its bytes, without those that are none."""
    if not pre.bytes_as_letters and symbol.startswith("<0x"):
        return []
    raw = symbol.encode()
    names = [chr(b) for b in raw if b < 128] if pre.bytes_as_letters else [f"<0x{b:02X}>" for b in raw]
    return [ids[name] for name in names if name in ids]


def _newlines(tokenizer: Tokenizer, ids: Mapping[str, int]) -> dict[str, int]:
    """The runs of newlines that are tokens, if merges make something else of any."""
    runs = {text: token for text, token in ids.items() if not text.strip("\n")}
    same = all(tokenizer.encode(text, add_special_tokens=False).ids == [token] for text, token in runs.items())
    return {} if same else runs
