"""Which tokens are special, and how: by keys, or by their texts where no key says so (llama.cpp, llama-vocab.cpp)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..errors import InputError, shown


class TokenType(IntEnum):
    """Values of tokenizer.ggml.token_type, which are SentencePiece's own."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts that give a token its role where no key does. They become control tokens.
_EOT = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>"),
    *("[EOT]", "<\uff5cend▁of▁sentence\uff5c>", "<end_of_utterance>"),
)
_BY_TEXT: dict[str, tuple[str, ...]] = {
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
_ENDING = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
# Texts that end a generation whatever the keys say.
_END_OF_GENERATION = {
    *_EOT,
    *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>"),
    *("<|tool_response>", "[e~["),
}
_ALWAYS_USER_DEFINED = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")
# Keys whose names are not the role's own: the misspelt one is GGUF's.
_KEYS = {"unk": "unknown", "sep": "seperator", "pad": "padding"}
_OLD_KEYS = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}


@dataclass(frozen=True)
class SpecialTokens:
    """What a vocabulary says of its special tokens; all ids are inside the vocabulary, or None where there is none.

    Attributes:
        bos_id, eos_id, unk_id: the tokens of these roles.
        first, last: what encoding adds before and after a text.
        add_bos, add_eos: whether BOS and EOS are among them.
        eog_ids: the tokens that end a generation.
        lstrip, rstrip: tokens that swallow the white space before or after them.
    """

    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    first: int | None
    last: int | None
    add_bos: bool
    add_eos: bool
    eog_ids: tuple[int, ...]
    lstrip: tuple[int, ...] = ()
    rstrip: tuple[int, ...] = ()


@dataclass(frozen=True)
class Defaults:
    """What holds for a family where the file is silent (llama.cpp, llama-vocab.cpp).

    `ends_with_sep`: the family ends a text with SEP and begins it with BOS, whatever the file says.
    """

    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    sep_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False
    ends_with_sep: bool = False


def special_tokens(
    metadata: Mapping[str, Any], ids: Mapping[str, int], types: bytes, defaults: Defaults, notes: list[str]
) -> tuple[SpecialTokens, bytes]:
    """The roles of a vocabulary's tokens, and the tokens' types as these mend them; `ids` are those of all texts.

    Adds to `notes` what the file says and is not believed.

    Raises:
        InputError: a key is of the wrong kind.
    """
    roles = {
        "bos": _by_key(metadata, "bos", len(ids), defaults.bos_id, notes),
        "eos": _by_key(metadata, "eos", len(ids), defaults.eos_id, notes),
        "unk": _by_key(metadata, "unk", len(ids), defaults.unk_id, notes),
        "sep": _by_key(metadata, "sep", len(ids), defaults.sep_id, notes),
    }
    mended: dict[int, int] = {}
    for role, known in _BY_TEXT.items():
        roles[role] = _by_key(metadata, role, len(ids), None, notes)
        if roles[role] is None:
            roles[role] = next((ids[text] for text in known if text in ids), None)
            mended |= {ids[text]: TokenType.CONTROL for text in known if text in ids and ids[text] == roles[role]}
    ending = {ids[text] for text in _END_OF_GENERATION if text in ids}
    mended |= dict.fromkeys(ending, TokenType.CONTROL)
    ending |= {token for role in _ENDING if (token := roles[role]) is not None}
    mended |= {ids[text]: TokenType.USER_DEFINED for text in _ALWAYS_USER_DEFINED if text in ids}
    exceptions = _exceptions(ids)
    mended |= exceptions
    changed = bytearray(types)
    for token, kind in mended.items():
        changed[token] = kind
    lstrip, rstrip = _stripping(metadata, ids, changed)
    add_bos = _is_added(metadata, "bos", roles["bos"], defaults.add_bos, notes)
    add_eos = _is_added(metadata, "eos", roles["eos"], defaults.add_eos, notes)
    specials = SpecialTokens(
        bos_id=roles["bos"],
        eos_id=roles["eos"],
        unk_id=roles["unk"],
        first=roles["bos"] if add_bos or defaults.ends_with_sep else None,
        last=roles["sep"] if defaults.ends_with_sep else roles["eos"] if add_eos else None,
        add_bos=add_bos,
        add_eos=add_eos,
        eog_ids=tuple(sorted(ending - exceptions.keys())),
        lstrip=lstrip,
        rstrip=rstrip,
    )
    return specials, bytes(changed)


def flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """A yes or no of tokenizer.ggml.

    Raises:
        InputError: it is something else.
    """
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise InputError(f"tokenizer.ggml.{name} is {shown(value)}; it must be true or false")
    return value


def _by_key(metadata: Mapping[str, Any], role: str, size: int, default: int | None, notes: list[str]) -> int | None:
    """The id that a key gives to a role, or the default; None where neither is inside the vocabulary."""
    found = default if default is not None and default < size else None
    for name in (_KEYS.get(role, role), _OLD_KEYS.get(role)):
        key = f"tokenizer.ggml.{name}_token_id"
        value = metadata.get(key) if name else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size:
            found = value
        elif value is not None:
            notes.append(f"{key} is {shown(value)}, which is none of the {size} tokens; it is ignored")
    return found


def _is_added(metadata: Mapping[str, Any], role: str, token: int | None, default: bool, notes: list[str]) -> bool:
    """Whether encoding adds this token, which takes one."""
    wanted = flag(metadata, f"add_{role}_token", default)
    if wanted and token is None:
        notes.append(f"tokenizer.ggml.add_{role}_token is true, but there is no such token; none is added")
    return wanted and token is not None


def _exceptions(ids: Mapping[str, int]) -> dict[int, int]:
    """Tokens that end no generation though their text says so, since others with them do; with their types."""
    found = {}
    harmony = {"<|end|>", "<|return|>"} <= ids.keys() or {"<|end|>", "<|flush|>"} <= ids.keys()
    if harmony and {"<|calls|>", "<|call|>"} & ids.keys():
        found[ids["<|end|>"]] = TokenType.USER_DEFINED
    if {"<|tool_response>", "</s>"} <= ids.keys():
        found[ids["</s>"]] = TokenType.NORMAL
    return found


def _stripping(
    metadata: Mapping[str, Any], ids: Mapping[str, int], types: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that swallow white space before and after them, which llama.cpp knows by the names of some models."""
    pre, architecture, name = (
        str(metadata.get(key, "")) for key in ("tokenizer.ggml.pre", "general.architecture", "general.name")
    )
    jina = any(part in pre for part in ("jina-v2-de", "jina-v2-es", "jina-v2-code"))
    if jina or any(part in architecture for part in ("nomic-bert-moe", "jina-bert-v3")):
        return _tokens(ids, "<mask>"), ()
    if "phi-3" in name.lower() or "phi3" in name.lower():
        kept = _tokens(ids, "<unk>", "<s>", "<|endoftext|>")
        special = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        return (), tuple(token for token, kind in enumerate(types) if kind in special and token not in kept)
    if "modern-bert" in name.lower():
        return _tokens(ids, "[MASK]"), ()
    return (), ()


def _tokens(ids: Mapping[str, int], *texts: str) -> tuple[int, ...]:
    """The tokens of these texts, without those that are none."""
    return tuple(ids[text] for text in texts if text in ids)
