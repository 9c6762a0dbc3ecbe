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
Defined: TypeAlias = tuple[str, float]
"""A user-defined token: its text and its score."""
_KEPT = (TokenType.CONTROL, TokenType.UNKNOWN)
_BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}


@dataclass(frozen=True)
class Family:
    """SentencePiece's BPE, with bytes for what no piece covers.

    The model file holds the vocabulary as it is, but for UNUSED pieces, which llama.cpp merges like any other. The text
    of a control token that was not to be parsed never becomes that token, whatever its pieces. `missing` gives tokens
    for bytes that the vocabulary hasn't: the library wants all 256.

    User-defined tokens are cut out of a text before. What is left may still be merged to one, as llama.cpp merges any
    token, so they are ordinary pieces here. In the saved file they are user-defined, for others, and their spaces are
    ▁, as SentencePiece looks for them in a text that has no spaces any more.
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
        for text, byte in _BYTES.items():
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
        defined = [
            (text, self.processor.get_score(token))
            for token, text in vocabulary.user_defined.items()
            if not self.processor.is_byte(token)
            and (" " not in text or (SPACE not in text and text.replace(" ", SPACE) not in known))
        ]
        model = self.processor.serialized_model_proto()
        (folder / MODEL_FILE).write_bytes(_respelt(model, defined, for_others=True))
        return {"missing": list(self.missing.items()), "user_defined": defined}

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        defined = [(str(text), float(score)) for text, score in options["user_defined"]]
        return cls(load_model(folder, defined), dict(options["missing"]))


def load_model(folder: Path, defined: Iterable[Defined] = ()) -> sentencepiece.SentencePieceProcessor:
    """The model file of a folder, with these user-defined tokens as they are used here.

    Raises:
        OSError, ValueError: the file is missing or damaged.
    """
    path = folder / MODEL_FILE
    try:
        model = _respelt(path.read_bytes(), defined, for_others=False)
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None


def _respelt(model: bytes, defined: Iterable[Defined], *, for_others: bool) -> bytes:
    """A model with user-defined tokens, given in its order, written for others where they were for use here, or back.

    Raises:
        ValueError: one of the tokens isn't there.
    """
    parts: list[bytes] = []
    start = 0
    for text, score in defined:
        here = piece(text, score, TokenType.NORMAL)
        there = piece(text.replace(" ", SPACE), score, TokenType.USER_DEFINED)
        old, new = (here, there) if for_others else (there, here)
        found = model.index(old, start)
        parts += [model[start:found], new]
        start = found + len(old)
    return b"".join([*parts, model[start:]])


def _type(text: str, kind: int) -> int:
    """The type that makes SentencePiece treat a token as llama.cpp does."""
    if kind in _KEPT:
        return kind
    return TokenType.BYTE if text in _BYTES else TokenType.NORMAL
