"""The token table of a GGUF, checked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError, UnsupportedError, quoted
from .roles import Defaults, SpecialTokens, TokenType, flag, special_tokens

_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class Vocabulary:
    """The token table of a GGUF: texts, scores and final types of every token, the specials, and what decoding needs.

    Attributes:
        texts: of every token, no two alike and none empty.
        ids: of every text.
        scores: of every token; 0 where the file has none.
        types: `TokenType` of every token, as their roles mend them.
        specials: the roles of tokens.
        add_space_prefix: whether a text is encoded as if a space stood before it.
        clean_spaces: whether a whole text loses the spaces before its punctuation when it is decoded.
    """

    texts: Sequence[str]
    ids: Mapping[str, int]
    scores: Sequence[float]
    types: bytes
    specials: SpecialTokens
    add_space_prefix: bool
    clean_spaces: bool


def read_vocabulary(metadata: Mapping[str, Any], defaults: Defaults, notes: list[str]) -> Vocabulary:
    """The token table of a GGUF; adds to `notes` what it says and is not believed.

    Raises:
        InputError: a key's value can't be.
        UnsupportedError: there are no texts, or they are not UTF-8.
    """
    texts = _texts(metadata)
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) < len(texts):
        first = next(i for i, text in enumerate(texts) if ids[text] != i)
        second = ids[texts[first]]
        raise InputError(
            f"tokenizer.ggml.tokens has {quoted(texts[first])} at {first} and at {second}; texts must differ"
        )
    scores = _column(metadata, "scores", len(texts), 0.0)
    given = _column(metadata, "token_type", len(texts), TokenType.NORMAL)
    known = np.where(np.isin(given, list(TokenType)), given, TokenType.UNDEFINED).astype(np.uint8).tobytes()
    specials, types = special_tokens(metadata, ids, known, defaults, notes)
    for i, kind in enumerate(types):
        if kind == TokenType.BYTE and not _BYTE.fullmatch(texts[i]):
            raise InputError(
                f"tokenizer.ggml.token_type says that {quoted(texts[i])} at {i} is a byte, as <0x00> to <0xFF> are"
            )
    prefix = flag(metadata, "add_space_prefix", defaults.add_space_prefix)
    return Vocabulary(texts, ids, scores.tolist(), types, specials, prefix, defaults.clean_spaces)


def strings(metadata: Mapping[str, Any], name: str) -> Sequence[str] | None:
    """A list of texts of tokenizer.ggml, None where the file has none.

    Raises:
        InputError: it is something else.
        UnsupportedError: they are not UTF-8.
    """
    texts = metadata.get(f"tokenizer.ggml.{name}")
    if texts is None:
        return None
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"tokenizer.ggml.{name} is no list of texts")
    if not all(map(_is_utf8, texts)):
        first = next(i for i, text in enumerate(texts) if not _is_utf8(text))
        raise UnsupportedError(f"tokenizer.ggml.{name} has bytes that are not UTF-8 at {first}; give token ids instead")
    return texts


def _texts(metadata: Mapping[str, Any]) -> list[str]:
    """The text of every token, none of them empty."""
    found = strings(metadata, "tokens")
    if not found:
        raise UnsupportedError("tokenizer.ggml.tokens is missing; give token ids instead")
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(found)]


def _is_utf8(text: str) -> bool:
    """Whether a string has no surrogates, which stand for bytes that are not UTF-8."""
    return text.isascii() or not _SURROGATE.search(text)


def _column(metadata: Mapping[str, Any], name: str, size: int, default: float) -> np.ndarray:
    """A number for every token, or the default where the file is silent."""
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return np.full(size, default)
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(array) < size:
        raise InputError(f"tokenizer.ggml.{name} is no list with a number for each of the {size} tokens")
    if not np.abs(array).max() <= np.finfo(np.float32).max:  # not a number fails too
        raise InputError(f"tokenizer.ggml.{name} holds a number that is not finite in 32 bits")
    return array[:size]
