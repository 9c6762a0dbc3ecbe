"""SentencePiece's unigram model ("t5"): the pieces whose scores add up to most.

Text is normalized by the `sentencepiece` library and split by `tokenizers`, whose sums are in 64 bits as llama.cpp's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import sentencepiece
from tokenizers import Tokenizer, models

from ..errors import InputError
from .families import Saved
from .roles import TokenType, flag
from .sentencepiece_model import SPACE, UNIGRAM, Normalizer, model_proto
from .spm import MODEL_FILE, load_model
from .vocabulary import Vocabulary

Trie: TypeAlias = "dict[str, Trie]"
"""Texts by their characters, one after the other."""


@dataclass(frozen=True)
class Family:
    """The unigram model.

    The model file is SentencePiece's. It says UNUSED of what llama.cpp never makes of a text: control tokens, and what
    is less likely than every ordinary piece. `user_defined` are texts that the normalizer leaves alone.
    """

    processor: sentencepiece.SentencePieceProcessor
    unk_id: int | None
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    user_defined: tuple[str, ...]
    normalizer: sentencepiece.SentencePieceNormalizer = field(init=False)
    tokenizer: Tokenizer = field(init=False)
    trie: Trie = field(init=False)
    starts: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        processor = self.processor
        normalizer = sentencepiece.SentencePieceNormalizer(
            model_proto=processor.serialized_model_proto(),
            add_dummy_prefix=False,
            escape_whitespaces=False,
            remove_extra_whitespaces=False,
        )
        every = list(range(processor.vocab_size()))
        silent = [i for i in every if processor.is_unused(i) or processor.is_control(i) or processor.is_unknown(i)]
        vocabulary = list(zip(processor.id_to_piece(every), processor.get_score(every), strict=True))
        for i in silent:  # no normalized text has a space, and the lowest score counts
            vocabulary[i] = (f" {i}", 0.0)
        unknown = self.unk_id
        if unknown is None:
            unknown = len(vocabulary)
            vocabulary.append((f" {unknown}", 0.0))
        trie: Trie = {}
        for text in self.user_defined:
            node = trie
            for character in text:
                node = node.setdefault(character, {})
        object.__setattr__(self, "trie", trie)
        object.__setattr__(self, "starts", re.compile("|".join(map(re.escape, trie))))
        object.__setattr__(self, "normalizer", normalizer)
        object.__setattr__(self, "tokenizer", Tokenizer(models.Unigram(vocabulary, unknown)))

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary, metadata: Mapping[str, Any], notes: list[str]) -> Self:
        """Makes it from a GGUF's token table and the keys that are the family's own.

        Raises:
            InputError: SentencePiece doesn't take the vocabulary, or its normalizer's table.
        """
        if vocabulary.specials.unk_id is None:
            notes.append("the vocabulary has no unknown token: characters that are none of its own are left out")
        spoken = zip(vocabulary.scores, vocabulary.types, strict=True)
        lowest = min((score for score, kind in spoken if kind == TokenType.NORMAL), default=0.0)
        pieces = []
        for text, score, kind in zip(vocabulary.texts, vocabulary.scores, vocabulary.types, strict=True):
            if kind == TokenType.USER_DEFINED:
                score, kind = 0.0, TokenType.NORMAL
            elif kind == TokenType.UNUSED and score >= lowest:
                kind = TokenType.NORMAL
            elif kind not in (TokenType.NORMAL, TokenType.CONTROL, TokenType.UNKNOWN):
                kind = TokenType.UNUSED
            pieces.append((text, score, kind))
        kinds = zip(vocabulary.texts, vocabulary.types, strict=True)
        user_defined = tuple(text for text, kind in kinds if kind == TokenType.USER_DEFINED)
        prefix, remove = vocabulary.add_space_prefix, flag(metadata, "remove_extra_whitespaces", False)
        how = Normalizer(_charsmap(metadata), prefix, remove)
        model = model_proto(pieces, vocabulary.specials, vocabulary.texts, UNIGRAM, how)
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            return cls(processor, vocabulary.specials.unk_id, prefix, remove, user_defined)
        except RuntimeError as error:
            raise InputError(f"SentencePiece does not take the vocabulary: {error}") from None

    def encode(self, text: str) -> list[int]:
        normal = self._normalized(text)
        if self.remove_extra_whitespaces:
            normal = "".join(SPACE + word for word in normal.split(" ") if word)
        else:
            written = normal.lstrip(" ")
            blanks = len(normal) - len(written)
            prefix = SPACE if self.add_space_prefix and written else ""
            normal = SPACE * blanks + prefix + written.replace(" ", SPACE)
        ids = self.tokenizer.encode(normal, add_special_tokens=False).ids
        return ids if self.unk_id is not None else [i for i in ids if i < self.processor.vocab_size()]

    def _normalized(self, text: str) -> str:
        """The text after the replacements, but for what begins like a user-defined token: llama.cpp keeps that much."""
        parts: list[str] = []
        start = 0
        for found in self.starts.finditer(text) if self.trie else ():
            if found.start() < start:
                continue
            end, node = found.start(), self.trie
            while end < len(text) and text[end] in node:
                node = node[text[end]]
                end += 1
            parts += [self.normalizer.normalize(text[start : found.start()]), text[found.start() : end]]
            start = end
        return "".join([*parts, self.normalizer.normalize(text[start:])])

    def text(self, token: int) -> str:
        return self.processor.id_to_piece(token)

    def unescape(self, text: str) -> bytes:
        return text.replace(SPACE, " ").encode()

    def save(self, folder: Path, vocabulary: Saved) -> dict[str, Any]:
        (folder / MODEL_FILE).write_bytes(self.processor.serialized_model_proto())
        return {
            "unk_id": self.unk_id,
            "add_space_prefix": self.add_space_prefix,
            "remove_extra_whitespaces": self.remove_extra_whitespaces,
            "user_defined": self.user_defined,
        }

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        unknown = options["unk_id"]
        return cls(
            load_model(folder),
            None if unknown is None else int(unknown),
            bool(options["add_space_prefix"]),
            bool(options["remove_extra_whitespaces"]),
            tuple(map(str, options["user_defined"])),
        )


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    """SentencePiece's table of replacements, b"" where there is none.

    Raises:
        InputError: it can't be one.
    """
    value = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if value is None:
        return b""
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype not in (np.int8, np.uint8):
        raise InputError("tokenizer.ggml.precompiled_charsmap is no list of bytes")
    table = array.tobytes()
    size = int.from_bytes(table[:4], "little")
    if not 0 < size < len(table) - 4 or size % 1024 or table[-1]:
        raise InputError("tokenizer.ggml.precompiled_charsmap is damaged: its parts are not as long as it says")
    if not _is_closed(np.frombuffer(table, "<u4", size // 4, 4), len(table) - 4 - size):
        raise InputError("tokenizer.ggml.precompiled_charsmap is damaged: it points outside itself")
    return table


def _is_closed(units: np.ndarray, replacements: int) -> bool:
    """Whether no walk through a double array leaves it or ends outside the replacements: the library never looks.

    A unit has its label in bits 0 to 7 (and 31), in bit 8 whether a value stands beside its children, and from bit 10
    on, shifted by 8 where bit 9 is set, what is XORed to its place to come to them (darts-clone, darts.h).
    """
    labels, has_value = units & 0x800000FF, units >> 8 & 1
    bases = np.arange(len(units), dtype=np.uint32) ^ (units >> 10 << ((units & 0x200) >> 6))
    inside = bases < len(units)
    seen = np.zeros(len(units), bool)
    bytes_ = np.arange(256, dtype=np.uint32)
    front = np.zeros(1, np.uint32)  # the root
    while len(front):
        seen[front] = True
        if not inside[front].all():
            return False
        values = units[bases[front[has_value[front] == 1]]] & 0x7FFFFFFF
        if (values >= replacements).any():
            return False
        children = bases[front][:, None] ^ bytes_  # in the same 256 units, of which the array has whole ones
        found = np.unique(children[labels[children] == bytes_])
        front = found[~seen[found]]
    return True
