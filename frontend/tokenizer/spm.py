"""SentencePiece's BPE by the score of each piece ("llama"), done by the `sentencepiece` library."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeAlias

import sentencepiece

from ..errors import InputError
from .families import Saved
from .roles import TokenType
from .sentencepiece_model import BPE, SPACE, Normalizer, model_proto, piece
from .vocabulary import Vocabulary

MODEL_FILE = "tokenizer.model"
Spaced: TypeAlias = tuple[str, float]
"""A user-defined token with a space in it: its text and its score."""
_KEPT = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)


@dataclass(frozen=True)
class Family:
    """SentencePiece's BPE, with bytes for what no piece covers.

    The model file holds the vocabulary as it is, but for UNUSED pieces, which llama.cpp merges like any other. The text
    of a control token that was not to be parsed never becomes that token, whatever its pieces. `missing` gives tokens
    for bytes that the vocabulary hasn't: the library wants all 256.

    The library finds a user-defined token with a space only where that is written ▁, but takes ▁ in a text for a space
    too, as llama.cpp doesn't. So it is written ▁ in the saved file, for others, and with its space in memory, where no
    text has it: user-defined tokens are cut out before.
    """

    processor: sentencepiece.SentencePieceProcessor
    missing: Mapping[int, list[int]]

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary, metadata: Mapping[str, Any], notes: list[str]) -> Self:
        """Makes it from a GGUF's token table and the keys that are the family's own.

        Raises:
            InputError: SentencePiece doesn't take the vocabulary.
        """
        ids = vocabulary.ids
        pieces = [
            (text, score, _type(text, kind))
            for text, score, kind in zip(vocabulary.texts, vocabulary.scores, vocabulary.types, strict=True)
        ]
        missing: dict[int, list[int]] = {}
        for byte in range(256):
            text = f"<0x{byte:02X}>"
            if text not in ids:
                instead = ids.get(chr(byte)) if byte < 128 else None
                instead = vocabulary.specials.unk_id if instead is None else instead
                missing[len(pieces)] = [] if instead is None else [instead]
                pieces.append((text, 0.0, TokenType.BYTE))
        if missing:
            notes.append(
                f"the vocabulary lacks tokens for {len(missing)} of the 256 bytes; characters of these are unknown"
            )
        how = Normalizer(add_dummy_prefix=vocabulary.add_space_prefix)
        model = model_proto(pieces, vocabulary.specials, vocabulary.texts, BPE, how)
        try:
            return cls(sentencepiece.SentencePieceProcessor(model_proto=model), missing)
        except RuntimeError as error:
            raise InputError(f"SentencePiece does not take tokenizer.ggml.tokens: {error}") from None

    def encode(self, text: str) -> list[int]:
        ids = self.processor.encode(text, out_type=int)
        return [known for i in ids for known in self.missing.get(i, (i,))] if self.missing else ids

    def text(self, token: int) -> str:
        return self.processor.id_to_piece(token)

    def unescape(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()

    def save(self, folder: Path, vocabulary: Saved) -> dict[str, Any]:
        known = set(self.processor.id_to_piece(list(range(self.processor.vocab_size()))))
        spaced = [
            (text, self.processor.get_score(token))
            for token, text in vocabulary.user_defined.items()
            if " " in text and SPACE not in text and text.replace(" ", SPACE) not in known
        ]
        model = self.processor.serialized_model_proto()
        (folder / MODEL_FILE).write_bytes(_respelt(model, spaced, " ", SPACE))
        return {"missing": list(self.missing.items()), "spaced": spaced}

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        spaced = [(str(text), float(score)) for text, score in options["spaced"]]
        return cls(load_model(folder, spaced), dict(options["missing"]))


def load_model(folder: Path, spaced: Iterable[Spaced] = ()) -> sentencepiece.SentencePieceProcessor:
    """The model file of a folder, with its spaces in these user-defined tokens.

    Raises:
        OSError, ValueError: the file is missing or damaged.
    """
    path = folder / MODEL_FILE
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=_respelt(path.read_bytes(), spaced, SPACE, " "))
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None


def _respelt(model: bytes, spaced: Iterable[Spaced], old: str, new: str) -> bytes:
    """A model in which the spaces of user-defined tokens, given in its order, are written `new` where they were `old`.

    Raises:
        ValueError: one of the tokens isn't there.
    """
    parts: list[bytes] = []
    start = 0
    for text, score in spaced:
        before, after = (piece(text.replace(" ", space), score, TokenType.USER_DEFINED) for space in (old, new))
        found = model.index(before, start)
        parts += [model[start:found], after]
        start = found + len(before)
    return b"".join([*parts, model[start:]])


def _type(text: str, kind: int) -> int:
    """The type that makes SentencePiece treat a token as llama.cpp does."""
    if kind in _KEPT:
        return kind
    return TokenType.BYTE if len(text) == 6 and text.startswith("<0x") and text.endswith(">") else TokenType.NORMAL
