"""SentencePiece's model file, made from a vocabulary.

It is a serialized `ModelProto` (sentencepiece_model.proto), written by hand, for the protobuf package is no dependency
of the runtime.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from .roles import SpecialTokens, TokenType

SPACE = "▁"
"""How SentencePiece writes U+0020."""
UNIGRAM, BPE = 1, 2
_pack_float = struct.Struct("<f").pack


@dataclass(frozen=True)
class Normalizer:
    """What SentencePiece does to a text before it looks for pieces."""

    charsmap: bytes = b""
    add_dummy_prefix: bool = False
    remove_extra_whitespaces: bool = False


def model_proto(
    pieces: Iterable[tuple[str, float, int]], specials: SpecialTokens, texts: Sequence[str], kind: int, how: Normalizer
) -> bytes:
    """The model of pieces (text, score, `TokenType`), of the kind UNIGRAM or BPE.

    SentencePiece wants exactly one unknown piece: further ones become control, and one is added where there is none.
    """
    written: list[bytes] = []
    unknown: str | None = None
    known: set[str] = set()
    for text, score, type_ in pieces:
        if type_ == TokenType.UNKNOWN:
            type_, unknown = (TokenType.CONTROL, unknown) if unknown is not None else (type_, text)
        written.append(piece(text, score, type_))
        known.add(text)
    if unknown is None:
        unknown = "[UNKNOWN]"
        while unknown in known:
            unknown = f"[{unknown}]"
        written.append(piece(unknown, 0.0, TokenType.UNKNOWN))
    trainer = _number_field(3, kind)  # model_type
    trainer += _number_field(4, len(written))  # vocab_size
    trainer += _number_field(35, kind == BPE)  # byte_fallback
    trainer += _bytes_field(45, unknown.encode())  # unk_piece
    for number, token in ((46, specials.bos_id), (47, specials.eos_id)):  # bos_piece, eos_piece
        if token is not None:
            trainer += _bytes_field(number, texts[token].encode())
    normalizer = _bytes_field(1, b"identity" if not how.charsmap else b"charsmap")
    normalizer += _bytes_field(2, how.charsmap) if how.charsmap else b""
    normalizer += _number_field(3, how.add_dummy_prefix)
    normalizer += _number_field(4, how.remove_extra_whitespaces)
    return b"".join(written) + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def piece(text: str, score: float, kind: int) -> bytes:
    """One `SentencePiece` of the model: text, score (a 32-bit float) and type."""
    raw = text.encode()
    content = b"".join((b"\n", _varint(len(raw)), raw, b"\x15", _pack_float(score), b"\x18", _varint(kind)))
    return b"".join((b"\n", _varint(len(content)), content))


def _bytes_field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number_field(number: int, value: int) -> bytes:
    """A varint protobuf field."""
    return _varint(number << 3) + _varint(value)


@cache
def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
