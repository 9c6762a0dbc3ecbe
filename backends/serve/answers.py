"""What clients are answered: the objects of OpenAI's interface."""

import base64
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np

from ...frontend.tokenizer import Tokenizer
from .generation import Chance, Piece

FINISH = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
"""How the interface calls the reasons why a generation ends."""


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens."""

    prompt: int
    completion: int | None = None

    def as_object(self) -> dict[str, int]:
        """What the interface calls usage; an embedding has no completion."""
        if self.completion is None:
            return {"prompt_tokens": self.prompt, "total_tokens": self.prompt}
        total = self.prompt + self.completion
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "total_tokens": total}


@dataclass(frozen=True)
class Form:
    """One request's answers.

    Attributes:
        model: its name.
        tokenizer: of the model, for the texts of tokens.
        logprobs: whether log-probabilities are wanted.
    """

    model: str
    tokenizer: Tokenizer
    logprobs: bool
    id: str = field(default_factory=lambda: uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> dict[str, Any]:
        """The answer, of all pieces of each choice."""
        return self._object(
            self.names[0], [self._choice(n, _joined(pieces)) for n, pieces in enumerate(choices)], usage=usage
        )

    def begins(self, choices: int) -> list[dict[str, Any]]:
        """What a stream begins with."""
        return []

    def chunk(self, index: int, piece: Piece) -> dict[str, Any]:
        """A piece of a choice as it comes."""
        return self._object(self.names[1], [self._change(index, piece)])

    def counted(self, usage: Usage) -> dict[str, Any]:
        """The numbers at the end of a stream."""
        return self._object(self.names[1], [], usage=usage)

    names: tuple[str, str] = ("text_completion", "text_completion")
    prefix: str = "cmpl"

    def _object(self, name: str, choices: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        found = {
            "id": f"{self.prefix}-{self.id}",
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        return found | ({"usage": usage.as_object()} if usage else {})

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": index,
            "text": piece.text,
            "logprobs": self._logprobs(piece.chances) if self.logprobs else None,
            "finish_reason": FINISH.get(piece.stop),
        }

    def _change(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._choice(index, piece)

    def _logprobs(self, chances: Iterable[Chance]) -> dict[str, Any]:
        """Four lists; likeliest tokens are named by texts, which must differ."""
        found = list(chances)
        return {
            "tokens": [self._name(chance.token) for chance in found],
            "token_logprobs": [chance.logprob for chance in found],
            "top_logprobs": [self._named(chance.top) for chance in found],
            "text_offset": [chance.offset for chance in found],
        }

    def _named(self, top: Iterable[tuple[int, float]]) -> dict[str, float]:
        found: dict[str, float] = {}
        for token, logprob in top:
            name = self._name(token)
            found[f"token_id:{token}" if name in found else name] = logprob
        return found

    def _name(self, token: int) -> str:
        """A token's text, or its bytes where they are no whole characters."""
        raw = self.tokenizer.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


@dataclass(frozen=True)
class ChatForm(Form):
    """The answers of a conversation."""

    names: tuple[str, str] = ("chat.completion", "chat.completion.chunk")
    prefix: str = "chatcmpl"

    def begins(self, choices: int) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        return [self._object(self.names[1], [self._delta(n, delta, Piece())]) for n in range(choices)]

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": piece.text, "refusal": None},
            "logprobs": self._logprobs(piece.chances) if self.logprobs else None,
            "finish_reason": FINISH.get(piece.stop),
        }

    def _change(self, index: int, piece: Piece) -> dict[str, Any]:
        return self._delta(index, {"content": piece.text} if piece.text else {}, piece)

    def _delta(self, index: int, delta: Mapping[str, str], piece: Piece) -> dict[str, Any]:
        logprobs = self._logprobs(piece.chances) if piece.chances else None
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": FINISH.get(piece.stop)}

    def _logprobs(self, chances: Iterable[Chance]) -> dict[str, Any]:
        return {
            "content": [
                {
                    **self._entry(chance.token, chance.logprob),
                    "top_logprobs": [self._entry(token, logprob) for token, logprob in chance.top],
                }
                for chance in chances
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        """The text for people, with U+FFFD for half a character, and the bytes that it is."""
        raw = self.tokenizer.token_bytes(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def _joined(pieces: Sequence[Piece]) -> Piece:
    chances = tuple(chance for piece in pieces for chance in piece.chances)
    return Piece("".join(piece.text for piece in pieces), chances, pieces[-1].tokens, pieces[-1].stop)


def embeddings_object(model: str, found: Sequence[np.ndarray], as_base64: bool, tokens: int) -> dict[str, Any]:
    """The answer with embeddings, float32 (dim,) each: numbers, or their little-endian bytes."""

    def written(row: np.ndarray) -> str | list[float]:
        return base64.b64encode(row.astype("<f4").tobytes()).decode() if as_base64 else row.tolist()

    data = [{"object": "embedding", "index": n, "embedding": written(row)} for n, row in enumerate(found)]
    return {"object": "list", "data": data, "model": model, "usage": Usage(tokens).as_object()}


def model_object(name: str, created: int) -> dict[str, Any]:
    """What the interface tells of a model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "ggufc"}


def error_object(message: str, status: int, code: str = "", param: str = "") -> dict[str, Any]:
    """An error in the interface's form."""
    kind = {429: "rate_limit_error"}.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "code": code or None, "param": param or None}}
