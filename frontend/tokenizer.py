"""Text to token ids and back, as llama.cpp does it.

A `Tokenizer` is the same for every family: it cuts a text at its special tokens, adds BOS and EOS, and puts
characters together again. What lies between special tokens is a family's affair (`Family`). So far there is one,
"llama": SentencePiece's BPE, by the score of each piece, done by the `sentencepiece` library.
"""

import codecs
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import sentencepiece

from .errors import InputError, UnsupportedError

CONFIG_FILE = "tokenizer_config.json"
MODEL_FILE = "tokenizer.model"
_WHITE_SPACE = " \t\n\v\f\r"  # C's isspace
_SPACE = "▁"  # how SentencePiece writes U+0020


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type, which are SentencePiece's own."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# The types that stand for text; of the others only control and unknown tokens do, and only when asked to.
_SPOKEN = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)


# Texts that give a token its role where no key does (llama.cpp, llama-vocab.cpp). They become control tokens.
_EOT = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>"),
    *("[EOT]", "<\uff5cend▁of▁sentence\uff5c>", "<end_of_utterance>"),
)
_ROLES: dict[str, tuple[str, ...]] = {
    "eot": _EOT,
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"),
        "<\uff5cfim▁begin\uff5c>",
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"),
        "<\uff5cfim▁hole\uff5c>",
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"),
        "<\uff5cfim▁end\uff5c>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_ENDING_ROLES = ("eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Texts that end a generation whatever the keys say.
_END_OF_GENERATION = {
    *_EOT,
    *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>"),
    *("<|tool_response>", "[e~["),
}
_ALWAYS_USER_DEFINED = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True)
class SpecialTokens:
    """What a vocabulary says of its special tokens; all ids are inside the vocabulary, or None where there is none.

    `control` (with the unknown token) and `user_defined` map texts to ids; `lstrip` and `rstrip` are tokens that
    swallow the white space before or after them.
    """

    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    eog_ids: tuple[int, ...]
    control: Mapping[str, int]
    user_defined: Mapping[str, int]
    lstrip: tuple[int, ...] = ()
    rstrip: tuple[int, ...] = ()


@dataclass(frozen=True)
class Vocabulary:
    """The token table of a GGUF, checked: texts, scores and final types of every token, and the specials."""

    texts: Sequence[str]
    scores: Sequence[float]
    types: Sequence[int]
    specials: SpecialTokens
    add_space_prefix: bool


@dataclass(frozen=True)
class FamilyDefaults:
    """What holds for a family where the file is silent (llama.cpp, llama-vocab.cpp)."""

    bos_id: int | None
    eos_id: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


class Family(Protocol):
    """One way to make tokens of the text between special tokens."""

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> Self:
        """Makes it from a GGUF's token table."""
        ...

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which nothing is special."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that an ordinary token stands for."""
        ...

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes the family's own file; returns what `load` needs besides."""
        ...

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        """Reads what `save` wrote."""
        ...


class Tokenizer:
    """Text to token ids and back, for one vocabulary.

    Attributes: `vocab_size`, `bos_id` and `eos_id` (None where the vocabulary has none), `add_bos`, `eog_ids` (the
    tokens that end a generation), and `notes`: lines for the user about what the file says and is not believed.
    """

    def __init__(self, family: Family, family_name: str, specials: SpecialTokens, notes: Iterable[str] = ()) -> None:
        self._family = family
        self._family_name = family_name
        self._specials = specials
        self.notes = list(notes)
        self.vocab_size = family.vocab_size
        self.bos_id = specials.bos_id
        self.eos_id = specials.eos_id
        self.add_bos = specials.add_bos
        self.eog_ids = frozenset(specials.eog_ids)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """The tokenizer of a GGUF's metadata (plain values, strings, sequences or arrays).

        Raises InputError where a key is missing or its value can't be, UnsupportedError for another
        tokenizer.ggml.model.
        """
        name = metadata.get("tokenizer.ggml.model")
        if not isinstance(name, str):
            raise InputError("tokenizer.ggml.model is missing: the file has no tokenizer; give token ids instead")
        if name not in _FAMILIES:
            raise UnsupportedError(
                f"tokenizer.ggml.model is {name!r}; this build has {_known()}; give token ids instead"
            )
        family, defaults = _FAMILIES[name]
        notes: list[str] = []
        vocabulary = _read_vocabulary(metadata, defaults, notes)
        return cls(family.from_vocabulary(vocabulary), name, vocabulary.specials, notes)

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """The tokenizer that `save` wrote. Raises InputError where its files are missing or damaged."""
        path = Path(folder) / CONFIG_FILE
        try:
            config = json.loads(path.read_text("utf-8"))
            name, options, specials = config["family"], config["options"], SpecialTokens(**config["specials"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a tokenizer's configuration ({error}); export the model again") from None
        if name not in _FAMILIES:
            raise UnsupportedError(f"{path}: the tokenizer is of the family {name!r}, and this build has {_known()}")
        return cls(_FAMILIES[name][0].load(Path(folder), options), name, specials)

    def save(self, folder: Path | str) -> None:
        """Writes the model in its ecosystem's own format, and what that can't hold, into an existing folder."""
        options = self._family.save(Path(folder))
        config = {"family": self._family_name, "options": options, "specials": asdict(self._specials)}
        (Path(folder) / CONFIG_FILE).write_text(json.dumps(config, ensure_ascii=False) + "\n", "utf-8")

    @property
    def control_texts(self) -> Iterable[str]:
        """The texts of the tokens that are found with `parse_special` alone."""
        return self._specials.control.keys()

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, barrier: str = ""
    ) -> list[int]:
        """The ids of a text.

        `add_special` adds BOS and EOS where the vocabulary wants them, but never a second one. With `parse_special` the
        text of a control token becomes that token; without, it is text like any other (user-defined tokens are always
        found). `barrier` is a character that is no text: no special token is found across it.
        """
        ids: list[int] = []
        for part in self._partition(_without_surrogates(text), parse_special):
            if isinstance(part, int):
                ids.append(part)
            elif ordinary := part.replace(barrier, "") if barrier else part:
                ids.extend(self._family.encode(ordinary))
        if add_special:
            specials = self._specials
            if specials.add_bos and specials.bos_id is not None and ids[:1] != [specials.bos_id]:
                ids.insert(0, specials.bos_id)
            if specials.add_eos and specials.eos_id is not None and ids[-1:] != [specials.eos_id]:
                ids.append(specials.eos_id)
        return ids

    def decode(self, ids: Iterable[int], *, render_special: bool = False) -> str:
        """The text of some ids: their bytes joined, then decoded, with U+FFFD for what is not UTF-8.

        Control tokens are left out unless `render_special`. A space that the vocabulary puts before a text stays, since
        the ids may be the middle of one. Raises ValueError for an id outside the vocabulary.
        """
        return b"".join(self._piece(token, render_special) for token in ids).decode("utf-8", "replace")

    def stream(self, *, render_special: bool = False) -> "TokenStream":
        """A decoder for ids that come one by one."""
        return TokenStream(self, render_special)

    def _piece(self, token: int, render_special: bool) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ValueError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        if token in self._control_texts:
            return self._control_texts[token] if render_special else b""
        return self._user_texts.get(token) or self._family.piece(token)

    @cached_property
    def _control_texts(self) -> dict[int, bytes]:
        return {token: text.encode() for text, token in self._specials.control.items()}

    @cached_property
    def _user_texts(self) -> dict[int, bytes]:
        return {token: text.encode() for text, token in self._specials.user_defined.items()}

    @cached_property
    def _candidates(self) -> list[tuple[str, int]]:
        """Every special text with its id, longest (in bytes) first."""
        every = {**self._specials.control, **self._specials.user_defined}
        return sorted(every.items(), key=lambda item: -len(item[0].encode()))

    def _partition(self, text: str, parse_special: bool) -> list[str | int]:
        """The text cut at its special tokens: of two that overlap the longer one counts, not the first."""
        parts: list[str | int] = [text] if text else []
        for special, token in self._candidates:
            # One search of the whole text spares most candidates the search of every part.
            if special in text and (parse_special or special in self._specials.user_defined):
                parts = [piece for part in parts for piece in self._cut(part, special, token)]
        return parts

    def _cut(self, part: str | int, special: str, token: int) -> Iterable[str | int]:
        """A part cut at every occurrence of one special token, from left to right, without what is empty."""
        if isinstance(part, int):
            yield part
            return
        begin = 0
        while (at := part.find(special, begin)) >= 0:
            left = part[begin:at]
            if left := left.rstrip(_WHITE_SPACE) if token in self._specials.lstrip else left:
                yield left
            yield token
            begin = at + len(special)
            if token in self._specials.rstrip:  # before the search goes on: white space may be a token itself
                while part[begin : begin + 1] and part[begin] in _WHITE_SPACE:
                    begin += 1
        if begin < len(part):
            yield part[begin:]


class TokenStream:
    """Text from ids that come one by one; what it returns joins to `Tokenizer.decode` of all of them."""

    def __init__(self, tokenizer: Tokenizer, render_special: bool) -> None:
        self._tokenizer = tokenizer
        self._render_special = render_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this id completes, "" while one is unfinished. Raises ValueError as `decode` does."""
        return self._decoder.decode(self._tokenizer._piece(token, self._render_special))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, or ""; the stream is then as new."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


@dataclass(frozen=True)
class SentencePieceFamily:
    """SentencePiece's BPE by rank, with bytes for what no piece covers.

    The model file holds the vocabulary as it is, but for UNUSED pieces, which llama.cpp merges like any other. The text
    of a control token that was not to be parsed never becomes that token, whatever its pieces.
    """

    processor: sentencepiece.SentencePieceProcessor
    vocab_size: int
    silent: frozenset[int]  # tokens that stand for no text

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary) -> Self:
        """Builds the model. Raises UnsupportedError where there are not 256 byte tokens to fall back on."""
        n_bytes = list(vocabulary.types).count(TokenType.BYTE)
        if n_bytes != 256:
            raise UnsupportedError(
                f"tokenizer.ggml.token_type marks {n_bytes} byte tokens, and this build needs 256; give ids instead"
            )
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=_model_proto(vocabulary))
        except RuntimeError as error:
            raise InputError(f"SentencePiece does not take tokenizer.ggml.tokens: {error}") from None
        silent = frozenset(i for i, kind in enumerate(vocabulary.types) if kind not in _SPOKEN)
        return cls(processor, len(vocabulary.types), silent)

    def encode(self, text: str) -> list[int]:
        return self.processor.encode(text, out_type=int)

    def piece(self, token: int) -> bytes:
        text = self.processor.id_to_piece(token)
        if self.processor.is_byte(token):
            return bytes([int(text[3:5], 16)])
        return b"" if token in self.silent else text.replace(_SPACE, " ").encode()

    def save(self, folder: Path) -> dict[str, Any]:
        (folder / MODEL_FILE).write_bytes(self.processor.serialized_model_proto())
        return {"vocab_size": self.vocab_size, "silent": sorted(self.silent)}

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        path = folder / MODEL_FILE
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
            family = cls(processor, int(options["vocab_size"]), frozenset(options["silent"]))
        except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not the tokenizer's model ({error}); export the model again") from None
        if not 0 < family.vocab_size <= processor.vocab_size():
            raise InputError(
                f"{path} has {processor.vocab_size()} pieces for {family.vocab_size}; export the model again"
            )
        return family


# tokenizer.ggml.model -> how its text is cut, and what holds where the file is silent.
_FAMILIES: dict[str, tuple[type[Family], FamilyDefaults]] = {
    "llama": (SentencePieceFamily, FamilyDefaults(1, 2, add_bos=True, add_eos=False, add_space_prefix=True)),
}


def _known() -> str:
    return ", ".join(map(repr, _FAMILIES))


def _without_surrogates(text: str) -> str:
    """The text with U+FFFD for lone surrogates, which UTF-8 can't hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _read_vocabulary(metadata: Mapping[str, Any], defaults: FamilyDefaults, notes: list[str]) -> Vocabulary:
    """The token table of a GGUF with the roles of its special tokens; adds to `notes` what is not believed."""
    texts = _texts(metadata)
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) < len(texts):
        first = next(i for i, text in enumerate(texts) if ids[text] != i)
        second = ids[texts[first]]
        raise InputError(f"tokenizer.ggml.tokens has {texts[first]!r} at {first} and at {second}; texts must differ")
    scores = _column(metadata, "scores", len(texts), 0.0)
    types = [int(kind) for kind in _column(metadata, "token_type", len(texts), TokenType.NORMAL)]
    bos_id = _special_id(metadata, "bos", len(texts), defaults.bos_id, notes)
    eos_id = _special_id(metadata, "eos", len(texts), defaults.eos_id, notes)
    roles = _roles(metadata, ids, notes)
    ending = [eos_id, *(roles.get(role) for role in _ENDING_ROLES), *map(ids.get, _END_OF_GENERATION)]
    eog = {token for token in ending if token is not None}
    types = _final_types(ids, types, eog | set(roles.values()))
    eog = {token for token in eog if types[token] == TokenType.CONTROL}
    control = {texts[i]: i for i, kind in enumerate(types) if kind in (TokenType.CONTROL, TokenType.UNKNOWN)}
    user_defined = {texts[i]: i for i, kind in enumerate(types) if kind == TokenType.USER_DEFINED}
    lstrip, rstrip = _stripping(metadata, control | user_defined)
    specials = SpecialTokens(
        bos_id=bos_id,
        eos_id=eos_id,
        add_bos=_is_added(metadata, "bos", bos_id, defaults.add_bos, notes),
        add_eos=_is_added(metadata, "eos", eos_id, defaults.add_eos, notes),
        eog_ids=tuple(sorted(eog)),
        control=control,
        user_defined=user_defined,
        lstrip=lstrip,
        rstrip=rstrip,
    )
    return Vocabulary(texts, scores, types, specials, _flag(metadata, "add_space_prefix", defaults.add_space_prefix))


def _texts(metadata: Mapping[str, Any]) -> list[str]:
    """The text of every token, none of them empty."""
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list | tuple) or not texts or not isinstance(texts[0], str):
        raise InputError("tokenizer.ggml.tokens is missing or no list of texts; give token ids instead")
    if not all(map(_is_utf8, texts)):
        first = next(i for i, text in enumerate(texts) if not _is_utf8(text))
        raise UnsupportedError(f"tokenizer.ggml.tokens has bytes that are not UTF-8 at {first}; give token ids instead")
    return [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]


def _is_utf8(text: str) -> bool:
    """Whether a string has no surrogates, which stand for bytes that are not UTF-8."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _column(metadata: Mapping[str, Any], name: str, size: int, default: float) -> list[float]:
    """A number for every token, or the default where the file is silent."""
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return [default] * size
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or len(array) < size:
        raise InputError(f"tokenizer.ggml.{name} is no list with a number for each of the {size} tokens")
    if not np.abs(array).max() <= np.finfo(np.float32).max:  # not a number fails too
        raise InputError(f"tokenizer.ggml.{name} holds a number that is not finite in 32 bits")
    return array[:size].tolist()


def _special_id(metadata: Mapping[str, Any], role: str, size: int, default: int | None, notes: list[str]) -> int | None:
    """The id that a key gives to a role, or the default; None where neither is inside the vocabulary."""
    key = f"tokenizer.ggml.{role}_token_id"
    value = metadata.get(key)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size:
        return value
    if value is not None:
        notes.append(f"{key} is {value!r}, which is none of the {size} tokens; it is ignored")
    return default if default is not None and default < size else None


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise InputError(f"tokenizer.ggml.{name} is {value!r}; it must be true or false")
    return value


def _is_added(metadata: Mapping[str, Any], role: str, token: int | None, default: bool, notes: list[str]) -> bool:
    """Whether encoding adds this token, which takes one."""
    wanted = _flag(metadata, f"add_{role}_token", default)
    if wanted and token is None:
        notes.append(f"tokenizer.ggml.add_{role}_token is true, but there is no such token; none is added")
    return wanted and token is not None


def _roles(metadata: Mapping[str, Any], ids: Mapping[str, int], notes: list[str]) -> dict[str, int]:
    """The roles that tokens have by a key or, where there is none, by their text."""
    found = {}
    for role, texts in _ROLES.items():
        by_text = next((ids[text] for text in texts if text in ids), None)
        found[role] = _special_id(metadata, role, len(ids), by_text, notes)
    return {role: token for role, token in found.items() if token is not None}


def _final_types(ids: Mapping[str, int], types: Sequence[int], control: Iterable[int]) -> list[int]:
    """The token types as llama.cpp mends them: what has a role is control, with a few exceptions by text."""
    mended = dict.fromkeys(control, TokenType.CONTROL)
    mended |= {ids[text]: TokenType.USER_DEFINED for text in _ALWAYS_USER_DEFINED if text in ids}
    harmony = {"<|end|>", "<|return|>", "<|call|>"} <= ids.keys()
    if harmony or ({"<|end|>", "<|flush|>"} <= ids.keys() and {"<|calls|>", "<|call|>"} & ids.keys()):
        mended[ids["<|end|>"]] = TokenType.USER_DEFINED
    if {"<|tool_response>", "</s>"} <= ids.keys():
        mended[ids["</s>"]] = TokenType.NORMAL
    return [mended.get(i, kind) for i, kind in enumerate(types)]


def _stripping(metadata: Mapping[str, Any], specials: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that swallow white space before and after them, which llama.cpp knows by the names of some models."""
    pre, architecture, name = (
        str(metadata.get(key, "")) for key in ("tokenizer.ggml.pre", "general.architecture", "general.name")
    )
    jina = any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
    if jina or any(part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")):
        return tuple(token for text, token in specials.items() if text == "<mask>"), ()
    if "phi-3" in name.lower() or "phi3" in name.lower():
        kept = ("<unk>", "<s>", "<|endoftext|>")
        return (), tuple(token for text, token in specials.items() if text not in kept)
    if "modern-bert" in name.lower():
        return tuple(token for text, token in specials.items() if text == "[MASK]"), ()
    return (), ()


def _model_proto(vocabulary: Vocabulary) -> bytes:
    """The vocabulary as a serialized `ModelProto` (sentencepiece_model.proto), which is written by hand since the
    protobuf package is no dependency of the runtime."""
    pieces: list[bytes] = []
    unknown: str | None = None
    for text, score, kind in zip(vocabulary.texts, vocabulary.scores, vocabulary.types, strict=True):
        if kind == TokenType.UNKNOWN:  # SentencePiece wants exactly one
            kind, unknown = (TokenType.CONTROL, unknown) if unknown is not None else (kind, text)
        elif kind not in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE):
            kind = TokenType.NORMAL
        pieces.append(_piece_field(text, score, kind))
    if unknown is None:
        unknown = "[UNKNOWN]"
        pieces.append(_piece_field(unknown, 0.0, TokenType.UNKNOWN))
    specials = vocabulary.specials
    trainer = _number_field(3, 2)  # model_type: BPE
    trainer += _number_field(4, len(pieces))  # vocab_size
    trainer += _number_field(35, 1)  # byte_fallback
    trainer += _bytes_field(45, unknown.encode())  # unk_piece
    for number, token in ((46, specials.bos_id), (47, specials.eos_id)):  # bos_piece, eos_piece
        if token is not None:
            trainer += _bytes_field(number, vocabulary.texts[token].encode())
    normalizer = _bytes_field(1, b"identity")
    normalizer += _number_field(3, vocabulary.add_space_prefix)  # add_dummy_prefix
    normalizer += _number_field(4, 0)  # remove_extra_whitespaces
    return b"".join(pieces) + _bytes_field(2, trainer) + _bytes_field(3, normalizer)


def _piece_field(text: str, score: float, kind: int) -> bytes:
    """One `SentencePiece` of the model: text, score (a 32-bit float) and type."""
    return _bytes_field(1, _bytes_field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + bytes((0x18, kind)))


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
