"""The tokenizer that every family shares: special tokens, BOS and EOS, whole characters, files."""

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any, Self

from ..errors import InputError, shown
from ..gguf.file import GgufFile
from ..given import parse_json, read_file
from .families import Family, Saved, family_class, family_of
from .partition import Partition
from .roles import SpecialTokens, TokenType
from .vocabulary import read_vocabulary

CONFIG_FILE = "tokenizer_config.json"
MOST_CONFIG_BYTES = 64 << 20
MOST_TOKENS = 1 << 24
"""Of a vocabulary, which has a quarter of a million in the largest of today's models."""

# What a whole text loses when it is decoded, one after the other (llama.cpp, llama-vocab.cpp).
_SPACES = (
    (re.compile(r" (?=[?!.,])"), ""),
    (re.compile(" ' "), "'"),
    (re.compile(" (?='(?:[sm]|re|ve))"), ""),
)


class Tokenizer:
    """Text to token ids and back, for one vocabulary.

    Attributes: `vocab_size`, `bos_id` and `eos_id` (None where the vocabulary has none), `add_bos`, `eog_ids` (the
    tokens that end a generation), and `notes`: lines for the user about what the file says and is not believed.
    """

    def __init__(
        self,
        family: Family,
        family_name: str,
        types: Sequence[int],
        specials: SpecialTokens,
        *,
        add_space_prefix: bool,
        clean_spaces: bool,
        notes: Iterable[str] = (),
    ) -> None:
        self._family = family
        self._family_name = family_name
        self._types = bytes(types)
        self._specials = specials
        self._add_space_prefix = add_space_prefix
        self._clean_spaces = clean_spaces
        self.notes = list(notes)
        self.vocab_size = len(self._types)
        self.bos_id = specials.bos_id
        self.eos_id = specials.eos_id
        self.add_bos = specials.add_bos
        self.eog_ids = frozenset(specials.eog_ids)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """The tokenizer of a GGUF's metadata (plain values, strings, sequences or arrays).

        Raises:
            UnsupportedError: there is none, or it is of a kind that isn't known.
            InputError: a key is missing, or its value can't be.
        """
        notes: list[str] = []
        name, defaults = family_of(metadata, notes)
        vocabulary = read_vocabulary(metadata, defaults, notes)
        family = family_class(name).from_vocabulary(vocabulary, metadata, notes)
        return cls(
            family,
            name,
            vocabulary.types,
            vocabulary.specials,
            add_space_prefix=vocabulary.add_space_prefix,
            clean_spaces=vocabulary.clean_spaces,
            notes=notes,
        )

    @classmethod
    def of(cls, file: GgufFile) -> Self:
        """The tokenizer of a GGUF, as `from_metadata`; an InputError names the file."""
        try:
            return cls.from_metadata(file.metadata)
        except InputError as error:
            raise InputError(f"{file.path}: {error}") from None

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """The tokenizer that `save` wrote.

        Raises:
            InputError: its files are missing or damaged.
        """
        path = Path(folder) / CONFIG_FILE
        try:
            config = parse_json(read_file(path, MOST_CONFIG_BYTES))
            name, options = config["family"], config["options"]
            said: dict[str, Any] = config["specials"]
            said |= {key: tuple(value) for key, value in said.items() if isinstance(value, list)}
            specials = SpecialTokens(**said)
            types = _types(config["types"])
            _check_ids(said, len(types))
            prefix, clean = bool(config["add_space_prefix"]), bool(config["clean_spaces"])
            made = family_class(name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a tokenizer's configuration ({error}); export the model again") from None
        try:
            family = made.load(Path(folder), options)
            family.text(len(types) - 1)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise InputError(f"{folder}: damaged tokenizer ({error}); export the model again") from None
        return cls(family, name, types, specials, add_space_prefix=prefix, clean_spaces=clean)

    def save(self, folder: Path | str) -> None:
        """Writes the model in its ecosystem's own format, and what that can't hold, into an existing folder."""
        specials = self._specials
        said = Saved(self._control, self._user_defined, specials.first, specials.last, specials.lstrip, specials.rstrip)
        config = {
            "family": self._family_name,
            "options": self._family.save(Path(folder), said),
            "specials": asdict(specials),
            "add_space_prefix": self._add_space_prefix,
            "clean_spaces": self._clean_spaces,
            "types": [[kind, len(list(run))] for kind, run in groupby(self._types)],
        }
        (Path(folder) / CONFIG_FILE).write_text(json.dumps(config, ensure_ascii=False) + "\n", "utf-8")

    @property
    def control_texts(self) -> Iterable[str]:
        """The texts of the tokens that are found with `parse_special` alone."""
        return self._control.values()

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, barrier: str = ""
    ) -> list[int]:
        """The ids of a text.

        `add_special` adds BOS, EOS or SEP where the vocabulary wants them: never a second BOS, but EOS and SEP behind
        one that the text ends with, too, as llama.cpp does. With `parse_special` the text of a control token becomes
        that token; without, it is text like any other (user-defined tokens are always found). `barrier` is a character
        that is no text: no special token is found across it.

        Raises:
            InputError: the text is not Unicode: it has a lone surrogate, which stands for bytes that were not UTF-8.
        """
        _check_unicode(text)
        ids: list[int] = []
        for part in self._partition.cut(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            elif ordinary := part.replace(barrier, "") if barrier else part:
                ids.extend(self._family.encode(ordinary))
        if add_special:
            first, last = self._specials.first, self._specials.last
            before = [first] if first is not None and ids[:1] != [first] else []
            after = [last] if last is not None else []
            ids = before + ids + after
        return ids

    def decode(self, ids: Iterable[int], *, render_special: bool = False, whole: bool = False) -> str:
        """The text of some ids: their bytes joined, then decoded, with U+FFFD for what is not UTF-8.

        Control tokens are left out unless `render_special`. The ids may be the middle of a text; where they are a
        `whole` one, BOS and EOS around it go, and the spaces that encoding put in.

        Raises:
            InputError: an id is none of the vocabulary.
        """
        if whole:
            return self._decode_whole(list(ids), render_special)
        return b"".join(self._piece(token, render_special) for token in ids).decode("utf-8", "replace")

    def _decode_whole(self, ids: list[int], render_special: bool) -> str:
        begins = self._specials.add_bos and ids[:1] == [self.bos_id]
        ids = ids[begins:]
        if self._specials.add_eos and ids[-1:] == [self.eos_id]:
            ids.pop()
        pieces = [self._piece(token, render_special) for token in ids]
        if pieces and self._add_space_prefix and not begins:
            pieces[0] = pieces[0].removeprefix(b" ")
        text = b"".join(pieces).decode("utf-8", "replace")
        if self._clean_spaces:
            for pattern, kept in _SPACES:
                text = pattern.sub(kept, text)
        return text

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token, a control token's text included; they need not be whole characters.

        Raises:
            InputError: as `decode`.
        """
        return self._piece(token, True)

    def stream(self, *, render_special: bool = False) -> "TokenStream":
        """A decoder for ids that come one by one."""
        return TokenStream(self, render_special)

    def _piece(self, token: int, render_special: bool) -> bytes:
        """The bytes of a token, which need not be whole characters."""
        if not isinstance(token, Integral) or not 0 <= token < self.vocab_size:
            raise InputError(f"token {shown(token)} is outside the vocabulary of {self.vocab_size}")
        match self._types[token]:
            case TokenType.NORMAL:
                return self._family.unescape(self._family.text(token))
            case TokenType.BYTE:
                return bytes([int(self._family.text(token)[3:5], 16)])
            case TokenType.USER_DEFINED:
                return self._family.text(token).encode()
            case TokenType.CONTROL | TokenType.UNKNOWN if render_special:
                return self._family.text(token).encode()
        return b""

    @cached_property
    def _control(self) -> dict[int, str]:
        return self._of_types(TokenType.CONTROL, TokenType.UNKNOWN)

    @cached_property
    def _user_defined(self) -> dict[int, str]:
        return self._of_types(TokenType.USER_DEFINED)

    def _of_types(self, *types: TokenType) -> dict[int, str]:
        return {token: self._family.text(token) for token, kind in enumerate(self._types) if kind in types}

    @cached_property
    def _partition(self) -> Partition:
        return Partition(self._control, self._user_defined, self._specials.lstrip, self._specials.rstrip)


class TokenStream:
    """Text from ids that come one by one; what it returns joins to `Tokenizer.decode` of all of them."""

    def __init__(self, tokenizer: Tokenizer, render_special: bool) -> None:
        self._tokenizer = tokenizer
        self._render_special = render_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The characters that this id completes, "" while one is unfinished.

        Raises:
            InputError: as `Tokenizer.decode`.
        """
        return self._decoder.decode(self._tokenizer._piece(token, self._render_special))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character, or ""; the stream is then as new."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest


def _types(runs: Any) -> bytes:
    """The type of every token, of runs of equal ones, each a type and a number of tokens.

    Raises:
        TypeError, ValueError: they are no such runs.
    """
    if not all(type(number) is int for run in runs for number in run):
        raise ValueError("types: wanted pairs of whole numbers")
    if any(count < 0 for _, count in runs) or sum(count for _, count in runs) > MOST_TOKENS:
        raise ValueError(f"types: wanted up to {MOST_TOKENS}")
    return b"".join(bytes([TokenType(kind)]) * count for kind, count in runs)


def _check_ids(specials: Mapping[str, Any], size: int) -> None:
    """Refuses special tokens that are none of the vocabulary's.

    Raises:
        ValueError: one isn't.
    """
    for name, given in specials.items():
        for token in given if isinstance(given, tuple) else (given,):
            if not isinstance(token, bool | None) and not (isinstance(token, int) and 0 <= token < size):
                raise ValueError(f"specials.{name}: {token!r} is none of {size} tokens")


def _check_unicode(text: str) -> None:
    """Refuses a text that UTF-8 can't hold.

    Raises:
        InputError: it has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text is not UTF-8: {text[error.start]!r} at character {error.start} stands for a byte or half a "
            "character alone; give it as UTF-8"
        ) from None
