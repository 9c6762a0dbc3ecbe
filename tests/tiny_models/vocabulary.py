"""The vocabulary of every tiny model, and its metadata.

Gemma's special tokens, SentencePiece's bytes, characters, and merges in the order of their rank.
"""

from typing import Any

from gguf import TokenType

_CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
_USER_DEFINED = ["\n\n", "▁▁"]
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁t", "he", "▁the", "in", "an", "▁a", "er", "on", "▁an", "▁in", "ing", "▁w", "or", "ör", "日本"]
_CHARACTERS = ["▁", *"abcdefghijklmnopqrstuvwxyz", *"éö日本"]
TOKENS = _CONTROL + _USER_DEFINED + _BYTES + _PIECES + _CHARACTERS


def vocabulary() -> dict[str, Any]:
    """The metadata of a SentencePiece tokenizer of TOKENS."""
    types = [TokenType.CONTROL] * len(_CONTROL) + [TokenType.USER_DEFINED] * len(_USER_DEFINED)
    types += [TokenType.BYTE] * len(_BYTES) + [TokenType.NORMAL] * (len(_PIECES) + len(_CHARACTERS))
    types[_CONTROL.index("<unk>")] = TokenType.UNKNOWN
    first = len(types) - len(_PIECES) - len(_CHARACTERS)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * first + [-float(rank) for rank in range(len(types) - first)],
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }
