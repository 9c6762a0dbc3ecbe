"""The families of tokenizers by the names of tokenizer.ggml.model, and what each must be able to do."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, Self

from ..errors import InputError, UnsupportedError, quoted
from ..gguf.file import described
from ..near import nearest
from .pre import pre_of
from .roles import Defaults
from .vocabulary import Vocabulary


class Family(Protocol):
    """One way to make tokens of the text between special tokens."""

    @classmethod
    def from_vocabulary(cls, vocabulary: Vocabulary, metadata: Mapping[str, Any], notes: list[str]) -> Self:
        """Makes it from a GGUF's token table and the keys that are the family's own.

        Adds to `notes` what a user should know.

        Raises:
            InputError, UnsupportedError: a key's value can't be, or isn't known.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which nothing is special."""
        ...

    def text(self, token: int) -> str:
        """The text of a token as the GGUF has it."""
        ...

    def unescape(self, text: str) -> bytes:
        """What the text of an ordinary token stands for."""
        ...

    def save(self, folder: Path, vocabulary: "Saved") -> dict[str, Any]:
        """Writes the family's own file; returns what `load` needs besides."""
        ...

    @classmethod
    def load(cls, folder: Path, options: Mapping[str, Any]) -> Self:
        """Reads what `save` wrote.

        Raises:
            OSError, ValueError, KeyError, TypeError: a file is missing or damaged.
        """
        ...


@dataclass(frozen=True)
class Saved:
    """What a family's file may want to say of special tokens, for others that read it.

    Attributes:
        control, user_defined: texts of the special tokens by their ids.
        first, last: the tokens that encoding adds before and after a text.
        lstrip, rstrip: tokens that swallow the white space before or after them.
    """

    control: Mapping[int, str]
    user_defined: Mapping[int, str]
    first: int | None
    last: int | None
    lstrip: tuple[int, ...]
    rstrip: tuple[int, ...]


@dataclass(frozen=True)
class _Entry:
    """A family: the module that has it, as a class `Family`, and what holds where a file is silent."""

    module: str
    defaults: Defaults


_FAMILIES: dict[str, _Entry] = {
    "llama": _Entry("spm", Defaults(bos_id=1, eos_id=2, unk_id=0, add_bos=True, add_space_prefix=True)),
    "gpt2": _Entry("bpe", Defaults(bos_id=11, eos_id=11)),
    "gemma4": _Entry("bpe", Defaults()),
    "bert": _Entry(
        "wpm", Defaults(bos_id=101, unk_id=100, sep_id=102, add_bos=True, clean_spaces=True, ends_with_sep=True)
    ),
    "t5": _Entry("ugm", Defaults(eos_id=1, unk_id=2, add_eos=True)),
}
_NONE = ("none", "no_vocab")


def family_of(metadata: Mapping[str, Any], notes: list[str]) -> tuple[str, Defaults]:
    """The name of a GGUF's family, and what holds where the file is silent; adds to `notes` what is missing.

    Raises:
        UnsupportedError: there is no tokenizer, or none that is known.
        InputError: a key is of the wrong kind.
    """
    name = metadata.get("tokenizer.ggml.model", "none")
    if not isinstance(name, str):
        raise InputError(f"tokenizer.ggml.model is {described(name)}; it must be a name, such as 'llama'")
    if name in _NONE:
        raise UnsupportedError("the file has no tokenizer (tokenizer.ggml.model); give token ids instead of text")
    entry = _entry(name, "tokenizer.ggml.model")
    if entry.module != "bpe":
        return name, entry.defaults
    pre = pre_of(metadata, notes)
    return name, Defaults(
        bos_id=entry.defaults.bos_id if pre.has_bos else None,
        eos_id=entry.defaults.eos_id,
        add_bos=pre.add_bos,
        clean_spaces=pre.clean_spaces,
    )


def family_class(name: str) -> type[Family]:
    """The class of a family; imports it, and with it the library that it stands on.

    Raises:
        UnsupportedError: there is no such family.
    """
    return import_module(f".{_entry(name, 'the family of the tokenizer').module}", __package__).Family


def _entry(name: str, what: str) -> _Entry:
    if name not in _FAMILIES:
        known = ", ".join(map(repr, _FAMILIES))
        found = f"{what} is {quoted(name)}{nearest(name, _FAMILIES)}"
        raise UnsupportedError(f"{found}; this build has {known}; give token ids instead of text")
    return _FAMILIES[name]
