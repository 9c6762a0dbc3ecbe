"""How byte-pair encoding cuts a text into words first: the names of tokenizer.ggml.pre (llama.cpp, llama-vocab.cpp).

A way to cut is a few passes, each a regular expression (Oniguruma's, as `tokenizers` runs it). A pass cuts every piece
that the one before it left: what matches is a piece, and so is what lies between two matches. None may take time that
grows with the square of a run's length, so some are written otherwise than in llama.cpp, and mean the same.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, UnsupportedError, quoted
from ..gguf.file import described
from ..near import nearest

# What llama.cpp's Unicode tables (15.1) don't know yet and Oniguruma's (16) do: to llama.cpp it is of no category.
_LATER = (
    r"\x{897}\x{1B4E}-\x{1B4F}\x{1B7F}\x{1C89}-\x{1C8A}\x{2427}-\x{2429}\x{31E4}-\x{31E5}\x{A7CB}-\x{A7CD}"
    r"\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D40}-\x{10D8F}\x{10EC2}-\x{10EFC}\x{11380}-\x{113E2}\x{116D0}-\x{116E3}"
    r"\x{11BC0}-\x{11BF9}\x{11F5A}\x{13460}-\x{143FA}\x{16100}-\x{16139}\x{16D40}-\x{16D79}\x{18CFF}\x{1CC00}-\x{1CEB3}"
    r"\x{1E5D0}-\x{1E5FF}\x{1F8B2}-\x{1F8C1}\x{1FA89}-\x{1FA8F}\x{1FABE}\x{1FAC6}\x{1FADC}-\x{1FADF}\x{1FAE9}"
    r"\x{1FBCB}-\x{1FBEF}"
)


def _dated(pattern: str) -> str:
    """The pattern with categories as llama.cpp has them."""
    return re.sub(r"(\\p\{.\})", lambda found: rf"[{found[1]}&&[^{_LATER}]]", pattern)


_CONTRACTION = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_AND_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)"
_LLAMA3 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN2 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"


def _cased(letters: str, lower: str, upper: str, end: str, numbers: str) -> str:
    """Words that begin in capitals and go on in small letters; only ASCII's `lower` and `upper` are told apart."""
    head, tail = rf"[{letters}&&[^{lower}]]", rf"[{letters}&&[^{upper}]]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return rf"{lead}{head}*{tail}+{end}|{lead}{head}+{tail}*{end}|{numbers}|{_SYMBOLS_AND_SLASH}|{_SPACES}"


_TEKKEN = _cased(r"\p{L}", "a-z", "A-Z", "", r"\p{N}")
_GPT4O = _cased(r"\p{L}", "a-z", "A-Z", f"{_ANY_CASE}?", r"\p{N}{1,3}")
_GRANITE = _cased(r"[\p{L}\p{M}]", "a-z", "A-Z", f"{_ANY_CASE}?", r"\p{N}{1,3}")
_LETTERS_AND_MARKS = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_ANY_CASE}?"
_AYA = rf"{_LETTERS_AND_MARKS}|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SLASH}|{_SPACES}"
_YOUTU = rf"{_LETTERS_AND_MARKS}|\p{{N}}|{_SYMBOLS_AND_SLASH}|{_SPACES}"
_HAN = (
    r"[\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2B73F}\x{2B740}-\x{2B81F}"
    r"\x{2B820}-\x{2CEAF}\x{2CEB0}-\x{2EBEF}\x{2F800}-\x{2FA1F}]"
)
_KIMI = rf"{_HAN}+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{_HAN}]]+{_ANY_CASE}?|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3_WORD = rf"{_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK3_WORD}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
_CJK = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+"
# As DeepSeek's first tokenizers take it; to llama.cpp no white space is in it.
_EAST_ASIAN = r"[[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]&&[^\s]]+"
# Letters with a case, of the Unicode of its time.
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}"
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}"
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}"
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}"
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}"
    r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}"
    r"\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}"
    r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+"
)
_AFMOE_SCRIPTS = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{8C48}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
    r"\x{0E40}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{1100}-\x{11FF}]+"
)
# Digits by threes from the right. What goes before them stays with the first group, as llama.cpp leaves it.
_THREES = (r"\G[^\p{N}]*+\p{N}+", r"\A[^\p{N}]*+\p{N}{1,3}(?=(?:\p{N}{3})*+\z)", r"\G\p{N}{3}")
# The same of ASCII digits inside a run of numbers, where the other numbers stay with what goes before them.
_FIRST_DIGITS = r"(?<![0-9])[0-9]{1,2}(?=(?:[0-9]{3})*+(?![0-9]))"
_SUPER_THREES = rf"(?:\A{_FIRST_DIGITS}|[0-9]{{3}}|\A[^0-9]++(?:{_FIRST_DIGITS})?)(?:[^0-9]++(?:{_FIRST_DIGITS})?)*+"
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+"
# After a space that was no newline none follows in that run, which need not be looked through again.
_WIDE_SPACES = "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))


@dataclass(frozen=True)
class Pre:
    """What a name of tokenizer.ggml.pre stands for.

    Attributes:
        passes: the regular expressions that cut a text, in order.
        ignore_merges: a word that is a token is that token, whatever its merges say.
        add_bos: whether BOS goes before a text where the file is silent.
        has_bos: whether there is a BOS where the file is silent.
        clean_spaces: whether a whole text loses the spaces before its punctuation when it is decoded.
        bytes_as_letters: whether words are of GPT-2's letters for bytes; else of characters, and `<0xXX>` for others.
        escape_spaces: whether a space is written as SentencePiece writes it.
        whole_newlines: whether a run of newlines that is a token is that token.
    """

    passes: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    has_bos: bool = True
    clean_spaces: bool = True
    bytes_as_letters: bool = True
    escape_spaces: bool = False
    whole_newlines: bool = False


def _pre(*passes: str, **options: bool) -> Pre:
    return Pre(tuple(map(_dated, passes)), **options)


_NEWLINES = r"[^\n]+|\n+"
_BY_NAMES: dict[str, Pre] = {
    "default": _pre(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _pre(
        _LLAMA3, ignore_merges=True, add_bos=True
    ),
    "dbrx smaug-bpe": _pre(_LLAMA3),
    "glm4": _pre(_LLAMA3, ignore_merges=True, has_bos=False),
    "chatglm-bpe": _pre(_LLAMA3, has_bos=False),
    "qwen2 deepseek-r1-qwen kormo f2llmv2 hunyuan solar-open grok-2": _pre(_QWEN2, clean_spaces=False),
    "megrez stablelm2": _pre(_QWEN2),
    "qwen35": _pre(
        rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        clean_spaces=False,
    ),
    "ufakzeka": _pre(rf"{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}", clean_spaces=False),
    "laguna": _pre(_NEWLINES, _QWEN2, clean_spaces=False),
    "minicpm5": _pre(r"\p{N}{1,3}", rf"{_ANY_CASE}|{_WORD}|\p{{N}}+|{_SYMBOLS}|{_SPACES}", ignore_merges=True),
    "seed-coder": _pre(rf"{_ANY_CASE}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}", clean_spaces=False),
    "bailingmoe bailingmoe2 llada-moe": _pre(
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}|{_SYMBOLS}|\s*[\r\n]|\s+(?!\S)|\s+",
        clean_spaces=False,
    ),
    "exaone-moe": _pre(
        rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "jais-2": _pre(rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|(?<![^\S\r\n])\s*[\r\n]+|{_WIDE_SPACES}|\s"),
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe": _pre(_GPT2),
    "gigachat a.x-4.0 mellum modern-bert exaone4 olmo mpt jais": _pre(_GPT2),
    "trillion granite-docling": _pre(_GPT2, clean_spaces=False),
    "starcoder refact codeshell exaone minerva-7b mellum2": _pre(r"\p{N}", _GPT2),
    "smollm command-r": _pre(r"\p{N}", _GPT2, clean_spaces=False),
    "falcon": _pre(r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "chameleon": _pre(
        "<sentinel:[0-9]+>",
        "IMGIMG[A-I]{1,4}Z",
        r"[\t\n]|    |  ",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
        add_bos=True,
        clean_spaces=False,
    ),
    "tekken": _pre(_TEKKEN, ignore_merges=True, add_bos=True, clean_spaces=False),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _pre(_GPT4O, clean_spaces=False),
    "granite-embed-multi-97m": _pre(_GRANITE, ignore_merges=True, clean_spaces=False),
    "youtu": _pre(
        r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
        r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}"
        rf"\x{{FE30}}-\x{{FE4F}}]+|[\x{{3105}}-\x{{312F}}]+|{_CJK}",
        _YOUTU,
        ignore_merges=True,
        clean_spaces=False,
    ),
    "tiny_aya cohere2moe": _pre(*_THREES, _AYA, clean_spaces=False),
    "superbpe": _pre(r"\p{N}+", _SUPER_THREES, clean_spaces=False),
    "kimi-k2": _pre(_KIMI, clean_spaces=False),
    "deepseek-llm": _pre(
        r"[\r\n]",
        _DEEPSEEK_LETTERS,
        r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3001}\x{3002}]+",
        r"(?<!\s)\s++\z",
        _EAST_ASIAN,
        r"\p{N}+",
        clean_spaces=False,
    ),
    "deepseek-coder": _pre(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}", clean_spaces=False),
    "deepseek-v3 hunyuan-dense joyai-llm hy_v4": _pre(r"\p{N}{1,3}", _CJK, _DEEPSEEK3, clean_spaces=False),
    "spark2_5": _pre(
        r"\p{N}{1,3}",
        _CJK,
        rf"{_DEEPSEEK3_WORD}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
        clean_spaces=False,
    ),
    "afmoe": _pre(*_THREES, _AFMOE_SCRIPTS, _DEEPSEEK3, clean_spaces=False),
    "bloom gpt3-finnish": _pre(_BLOOM),
    "poro-chat": _pre(_BLOOM, clean_spaces=False),
    "viking": _pre(_BLOOM, r"\p{N}", clean_spaces=False),
    "gemma4": _pre(_NEWLINES, add_bos=True, bytes_as_letters=False, escape_spaces=True, whole_newlines=True),
    "granite-embed-multi-311m": _pre(
        _NEWLINES, add_bos=True, bytes_as_letters=False, escape_spaces=True, whole_newlines=True
    ),
    "sarvam-moe": _pre(_NEWLINES, clean_spaces=False, bytes_as_letters=False, escape_spaces=True),
}
PRES: dict[str, Pre] = {name: pre for names, pre in _BY_NAMES.items() for name in names.split()}


def pre_of(metadata: Mapping[str, Any], notes: list[str]) -> Pre:
    """What tokenizer.ggml.pre of a GGUF stands for; adds to `notes` that it is missing.

    Raises:
        InputError: the key is no text.
        UnsupportedError: the name isn't known.
    """
    if metadata.get("tokenizer.ggml.model") == "gemma4":
        return PRES["gemma4"]
    name = metadata.get("tokenizer.ggml.pre", "")
    if not isinstance(name, str):
        raise InputError(f"tokenizer.ggml.pre is {described(name)}; it must be a name, such as 'llama-bpe'")
    if not name:
        notes.append(
            "tokenizer.ggml.pre is missing: words are cut by 'default', and the model may have learnt others; "
            "convert it again"
        )
        return PRES["default"]
    if name not in PRES:
        hint = nearest(name, PRES) or f" (this build has {len(PRES)}, such as 'llama-bpe' and 'qwen2')"
        raise UnsupportedError(
            f"tokenizer.ggml.pre is {quoted(name)}, which is none known{hint}; give token ids instead"
        )
    return PRES[name]
