"""What clients may ask for: the bodies of OpenAI's requests, read field by field.

A field that would change the answer and isn't known here is refused unless it is null or says what holds anyway; any
other is not looked at.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...frontend.chat.templates import OWN, ChatTemplates
from ...frontend.errors import InputError, shown
from ...frontend.tokenizer import Tokenizer
from ..sessions.sampling import Sampling
from ..sessions.session import Session
from ..sessions.stopping import checked_stops
from .generation import Asked

MOST_CHOICES = 64
"""Texts that one request may have continued."""
MOST_INPUTS = 2048
"""Texts that one request may have embedded."""
MOST_TOP_CHAT, MOST_TOP_TEXT = 20, 5
"""Likeliest tokens that are told of, in the two forms of the interface."""
HEAD = 1 << 16
"""Characters at the beginning of a long text from which it is seen whether all of it may fit; at least these, and
`HEAD_PER_TOKEN` for each token of the context. Text in words has three to five of them."""
HEAD_PER_TOKEN = 8
SURE = 1.25
"""By how much the beginning must exceed the context: what comes behind may still change its last tokens."""
MOST_PER_TOKEN = 4
"""Times the longest token: so many characters a token may stand for on average, even where white space is dropped."""
ALWAYS_READ = 1 << 20
"""Characters that are read whatever the context is, unless their beginning exceeds it."""
TEXT_TOKENS = 16
"""Most tokens of a text's continuation where none are given; an answer in a conversation may fill the context."""
INPUT = "input"
"""The field of texts that are to be embedded."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed")
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "grammar": ("",),
    "guided_choice": ([],),
    "guided_grammar": ("",),
    "guided_json": (),
    "guided_regex": ("",),
    "ignore_eos": (False,),
    "json_schema": ({},),
    "logit_bias": ({}, []),
    "min_tokens": (0,),
    "mirostat": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "typical_p": (1,),
    "web_search_options": (),
}
"""Fields that are not served, of OpenAI's interface and of other servers', with the values that ask for nothing."""


class RequestError(Exception):
    """A request that isn't served: its HTTP status, what is said, and for programs a code and the field meant."""

    def __init__(self, status: int, message: str, code: str = "", param: str = "") -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


@dataclass(frozen=True)
class Completion:
    """A request to continue texts, or a conversation.

    Attributes:
        asked: the texts; more than one where several choices are wanted, or several prompts were given.
        stream: whether pieces are wanted as they come.
        usage: whether a stream ends with the numbers of tokens.
        prompt_tokens: of all prompts, each counted once.
    """

    asked: tuple[Asked, ...]
    stream: bool
    usage: bool
    prompt_tokens: int


@dataclass(frozen=True)
class Embeddings:
    """A request for embeddings of texts, given as ids; `base64` says in which form."""

    texts: tuple[list[int], ...]
    base64: bool


@dataclass(frozen=True)
class Reader:
    """Reads requests to one model.

    Attributes:
        name: of the model, which requests name.
        session: of the model; nothing is fed to it.
        templates: of conversations; `template` is the name of one of several, `variables` are more for it.
    """

    name: str
    session: Session
    templates: ChatTemplates
    template: str | None = None
    variables: Mapping[str, Any] | None = None

    @property
    def generates(self) -> bool:
        """Whether the model continues texts."""
        return "prefill" in self.session.facts.entries

    @property
    def embeds(self) -> bool:
        """Whether the model gives one embedding for a text."""
        facts = self.session.facts
        return "encode" in facts.entries and facts.pooled and not facts.labels

    def chat(self, body: Any) -> Completion:
        """A body of /v1/chat/completions.

        Raises:
            RequestError, InputError, UnsupportedError: what can't be served.
        """
        fields = self._fields(body)
        self._check_generates()
        tools = fields.get("tools") if fields.get("tool_choice") != "none" else None
        more = _object(fields, "chat_template_kwargs")
        for own in OWN:
            if own in more:
                raise RequestError(400, f"chat_template_kwargs: {own} is not the client's to set", param=own)
        if tools and not self.templates.reads_tools(self.template):
            message = "tools: the model's chat template has no place for them; leave them out"
            raise RequestError(400, message, "unsupported", "tools")
        prompt = self.templates.render(
            fields.get("messages", ()),
            self._tokenizer,
            tools=tools,
            name=self.template,
            variables={**(self.variables or {}), **more},
        )
        top = _whole(fields, "top_logprobs", 0, MOST_TOP_CHAT)
        wanted = _flag(fields, "logprobs")
        if top is not None and not wanted:
            raise RequestError(400, "top_logprobs: wants logprobs to be true", param="top_logprobs")
        tokens = next((key for key in ("max_completion_tokens", "max_tokens") if key in fields), "max_tokens")
        asked = Asked(
            self._encoded(prompt.marked, "messages", prompt.barrier),
            _whole(fields, tokens, 1),
            _sampling(fields),
            _stops(fields),
            (top or 0) if wanted else None,
        )
        return self._completion(fields, [asked])

    def text(self, body: Any) -> Completion:
        """A body of /v1/completions.

        Raises:
            RequestError, InputError: what can't be served.
        """
        fields = self._fields(body)
        self._check_generates()
        echo = _flag(fields, "echo")
        top = _whole(fields, "logprobs", 0, MOST_TOP_TEXT)
        if echo and top is not None:
            raise RequestError(400, "echo: not together with logprobs, which prompts are not given", param="echo")
        tokens = _whole(fields, "max_tokens", 0)
        sampling, stops = _sampling(fields), _stops(fields)
        asked = [
            Asked(
                ids,
                TEXT_TOKENS if tokens is None else tokens,
                sampling,
                stops,
                top,
                self._tokenizer.decode(ids, whole=True) if echo else "",
            )
            for ids in self._texts(fields, "prompt", MOST_CHOICES)
        ]
        return self._completion(fields, asked)

    def embeddings(self, body: Any) -> Embeddings:
        """A body of /v1/embeddings.

        Raises:
            RequestError, InputError: what can't be served.
        """
        fields = self._fields(body)
        if not self.embeds:
            raise RequestError(400, f"the model {self.name!r} gives no embedding of a text", "unsupported")
        if fields.get("dimensions") is not None:
            raise RequestError(400, "dimensions: embeddings are given whole", param="dimensions")
        form = fields.get("encoding_format", "float")
        if form not in ("float", "base64"):
            raise RequestError(400, f"encoding_format {shown(form)}: wanted float or base64", param="encoding_format")
        texts = self._texts(fields, INPUT, MOST_INPUTS)
        for ids in texts:
            if len(ids) > self.session.context_length:
                raise self._too_long(f"has {len(ids)} tokens", INPUT)
        return Embeddings(tuple(texts), form == "base64")

    @property
    def _tokenizer(self) -> Tokenizer:
        return self.session.tokenizer

    def _fields(self, body: Any) -> dict[str, Any]:
        """The fields of a body that are not null, after those that are not served and the model's name."""
        if not isinstance(body, dict):
            raise RequestError(400, "the body is no JSON object")
        fields = {key: value for key, value in body.items() if value is not None}
        for key, neutral in NEUTRAL.items():
            if key in fields and fields[key] not in neutral:
                raise RequestError(400, f"{key} {shown(fields[key])}: not served here; leave it out", param=key)
        if fields.get("model", self.name) != self.name:
            message = f"no model {shown(fields['model'])}; there is {self.name!r}"
            raise RequestError(404, message, "model_not_found", "model")
        return fields

    def _completion(self, fields: Mapping[str, Any], asked: Sequence[Asked]) -> Completion:
        """Texts that fit the model, each as often as choices are wanted, with seeds that follow one another."""
        for one in asked:
            if len(one.ids) >= self.session.context_length:
                name = "messages" if "messages" in fields else "prompt"
                raise self._too_long(f"has {len(one.ids)} tokens", name)
        choices = _whole(fields, "n", 1) or 1
        if choices * len(asked) > MOST_CHOICES:
            raise RequestError(400, f"n {choices}: at most {MOST_CHOICES} choices in all", param="n")
        stream = _flag(fields, "stream")
        usage = _flag(_object(fields, "stream_options"), "include_usage")
        each = [
            replace(one, sampling=replace(one.sampling, seed=one.sampling.seed + n))
            for one in asked
            for n in range(choices)
        ]
        return Completion(tuple(each), stream, usage, sum(len(one.ids) for one in asked))

    def _texts(self, fields: Mapping[str, Any], name: str, most: int) -> list[list[int]]:
        """One text or several, each as text or as ids."""
        given = fields.get(name)
        if isinstance(given, str) or (isinstance(given, list) and given and isinstance(given[0], int)):
            given = [given]
        if not isinstance(given, list) or not 1 <= len(given) <= most:
            raise RequestError(400, f"{name}: wanted a text, token ids, or a list of up to {most} of them", param=name)
        texts = [self._encoded(one, name) if isinstance(one, str) else one for one in given]
        for ids in texts:
            if not isinstance(ids, list) or not ids or not all(type(token) is int for token in ids):
                raise RequestError(400, f"{name} {shown(ids)}: wanted a text or token ids, one at least", param=name)
            wrong = next((token for token in ids if not 0 <= token < self.session.vocabulary), None)
            if wrong is not None:
                message = f"{name}: token id {wrong} is outside the vocabulary, 0 to {self.session.vocabulary - 1}"
                raise RequestError(400, message, param=name)
        return texts

    def _encoded(self, text: str, name: str, barrier: str = "") -> list[int]:
        """The ids of a field's text, of which one that can't fit is refused without being read to its end.

        Raises:
            RequestError: it can't.
        """
        context = self.session.context_length
        head = max(HEAD, HEAD_PER_TOKEN * context)
        if len(text) > head:
            count = len(self._tokenizer.encode(text[:head], barrier=barrier))
            if count > SURE * context:
                raise self._too_long(f"has {count} tokens in its first {head} characters", name)
            if len(text) > max(ALWAYS_READ, MOST_PER_TOKEN * self._longest * context):
                raise self._too_long(f"has {len(text)} characters", name)
        return self._tokenizer.encode(text, barrier=barrier)

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        return max(len(self._tokenizer.token_bytes(token)) for token in range(self._tokenizer.vocab_size))

    def _too_long(self, has: str, name: str) -> RequestError:
        """What is said of a field whose text the context doesn't hold; an embedding needs no room beside it."""
        what, room = ("text", "") if name == INPUT else ("prompt", " with the answer")
        message = f"the {what} {has}, and the context holds {self.session.context_length}{room}"
        return RequestError(400, message, "context_length_exceeded", name)

    def _check_generates(self) -> None:
        if not self.generates:
            message = f"the model {self.name!r} generates no text; /v1/embeddings gives embeddings"
            raise RequestError(400, message, "unsupported")


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    """OpenAI's defaults where a field is missing: temperature 1, and another seed each time."""
    given = {name: fields[name] for name in SAMPLING if name in fields}
    for name, value in given.items():
        if isinstance(value, bool):
            raise InputError(f"{name} {str(value).lower()}: wanted a number")
    return Sampling.of({"temperature": 1.0, "seed": secrets.randbits(32)} | given)


def _stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
    given = fields.get("stop")
    if given is not None and not isinstance(given, str | list):
        raise RequestError(400, f"stop {shown(given)}: wanted a text or a list of texts", param="stop")
    return checked_stops(given)


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(400, f"{name} {shown(value)}: wanted true or false", param=name)
    return bool(value)


def _whole(fields: Mapping[str, Any], name: str, low: int, high: int | None = None) -> int | None:
    """A whole number within bounds; None where it is missing."""
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or value < low or (high is not None and value > high):
        wanted = f"a whole number from {low}" + ("" if high is None else f" to {high}")
        raise RequestError(400, f"{name} {shown(value)}: wanted {wanted}", param=name)
    return value


def _object(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name, {})
    if not isinstance(value, dict):
        raise RequestError(400, f"{name} {shown(value)}: wanted an object", param=name)
    return value
