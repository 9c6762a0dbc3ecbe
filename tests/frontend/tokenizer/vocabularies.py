"""Small vocabularies of every family, written as GGUFs of a tokenizer alone."""

import random
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType, GGUFWriter, TokenType

CONTROL = ["<|endoftext|>", "<|im_start|>", "[MASK]", "<unk>", "<s>", "</s>"]
WORDS = "the quick brown fox leading and trailing an in er on ing 's 't re ve def 日本語 Съ ешь ещё हिन्दी ▁▁ ▁▁▁"
USER_DEFINED = ["<user>", "<user><user>", "r><u", "  "]


def letters() -> list[str]:
    """GPT-2's letters for bytes, in the order of the bytes."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def write_vocabulary(path: Path, model: str, metadata: Mapping[str, Any]) -> Path:
    """A GGUF of a tokenizer of this model; keys without `general.` before them are the tokenizer's."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    for name, value in metadata.items():
        key = name if name.startswith("general.") else f"tokenizer.ggml.{name}"
        if isinstance(value, bytes):
            writer.add_key_value(key, np.frombuffer(value, np.uint8).tolist(), GGUFValueType.ARRAY, GGUFValueType.UINT8)
        elif name.endswith("_token_id"):
            writer.add_uint32(key, value)
        else:
            writer.add_key_value(key, value, GGUFValueType.ARRAY if isinstance(value, list) else _kind(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def _kind(value: Any) -> GGUFValueType:
    return GGUFValueType.get_type(value)


def pairs(pre: str | None, count: int = 9000, seed: int = 0, **more: Any) -> dict[str, Any]:
    """Byte-pair encoding whose merges join two bytes at random ranks: what is cut otherwise is merged otherwise."""
    base = letters()
    rng = random.Random(seed)
    ascii_first = [first + second for first, second in product(base[9:14] + base[32:127], repeat=2)]
    merges = rng.sample(ascii_first, count // 2) + ["".join(rng.choices(base, k=2)) for _ in range(count // 2)]
    rng.shuffle(merges)
    named = {"pre": pre} if pre else {}
    return _byte_pairs(dict.fromkeys(base, TokenType.NORMAL), list(dict.fromkeys(merges)), [], **named, **more)


def characters(pre: str, **more: Any) -> dict[str, Any]:
    """As `pairs`, of characters, with a token for every byte and for some runs of newlines."""
    base = list(dict.fromkeys("abcABC'strevmdl123\n!?.,▁漢字あいéñ\r\t~"))
    merges = ["".join(pair) for pair in product(base, repeat=2)]
    random.Random(0).shuffle(merges)
    every = {f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)} | dict.fromkeys(base, TokenType.NORMAL)
    return _byte_pairs(every, merges, ["\n" * 3, "\n" * 5], pre=pre, **more)


def _byte_pairs(
    base: Mapping[str, TokenType], merges: list[str], more_tokens: list[str], **more: Any
) -> dict[str, Any]:
    types = dict(base) | dict.fromkeys((text for text in (*merges, *more_tokens) if text not in base), TokenType.NORMAL)
    first_special = len(types)
    types |= dict.fromkeys(CONTROL, TokenType.CONTROL) | dict.fromkeys(USER_DEFINED, TokenType.USER_DEFINED)
    return {
        "tokens": list(types),
        "token_type": [int(kind) for kind in types.values()],
        "merges": [f"{merge[0]} {merge[1]}" for merge in merges],
        "bos_token_id": first_special,
        "eos_token_id": first_special + 1,
        **more,
    }


def unigram(seed: int = 0, **more: Any) -> dict[str, Any]:
    """A unigram model with pieces of every type, some of them equally likely."""
    rng = random.Random(seed)
    pieces: dict[str, tuple[float, TokenType]] = {
        "<pad>": (0, TokenType.CONTROL),
        "</s>": (0, TokenType.CONTROL),
        "<unk>": (0, TokenType.UNKNOWN),
        "<extra_id_0>": (0, TokenType.USER_DEFINED),
        "[PAD1]": (-10000, TokenType.UNUSED),
        "qu": (-3, TokenType.UNUSED),
    }
    for word in WORDS.split():
        pieces[word], pieces["▁" + word] = ((-rng.uniform(2, 12), TokenType.NORMAL) for _ in range(2))
    for character in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789▁.,!?'():/#<>=_日本語漢字あいыьещё한국어\ufffd":
        pieces.setdefault(character, (-rng.uniform(8, 14), TokenType.NORMAL))
    for _ in range(400):
        text = "".join(rng.choices("abcdefgthein▁ro12", k=rng.randrange(2, 4)))
        pieces.setdefault(text, (-float(rng.randrange(4, 12)), TokenType.NORMAL))
    return {
        "tokens": list(pieces),
        "scores": [float(np.float32(score)) for score, _ in pieces.values()],
        "token_type": [int(kind) for _, kind in pieces.values()],
        **more,
    }
