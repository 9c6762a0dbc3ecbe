"""A conversation over a session: the history stays in the KV cache, and a turn feeds only what is new."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ...frontend.chat.messages import Message, normalised
from ...frontend.chat.templates import ChatTemplates, Prompt
from ...frontend.errors import InputError
from .session import Session
from .stopping import StopTexts, checked_stops

STEP = 256
"""Most tokens that are fed until an interrupt is looked for."""

ANY: Message = {"role": "user", "content": "?"}
"""Stands for a turn that nobody has taken yet."""


@dataclass
class Turn:
    """What an answer cost.

    Attributes:
        prompt_tokens: length of the conversation up to the answer.
        fed: how many of them were not in the cache.
        tokens: how many were generated.
        prefill_s: seconds until the first token.
        decode_s: seconds from there to the last.
        stop: why it ended: `eos`, `length`, `context`, `stop` (a stop text) or `interrupted`.
    """

    prompt_tokens: int = 0
    fed: int = 0
    tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    stop: str = ""


@dataclass
class _Fed:
    """A marked text and the ids that stood for it, the model's own among them."""

    text: str = ""
    barrier: str = ""
    ids: list[int] = field(default_factory=list)


class Chat:
    """A conversation with a model.

    Attributes:
        messages: the turns so far, a system prompt as the first of them.
        turn: what the last answer cost.
    """

    def __init__(
        self,
        session: Session,
        templates: ChatTemplates,
        *,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        messages: Sequence[Message] = (),
    ) -> None:
        """Begins a conversation.

        Args:
            session: of the model; nobody else feeds it.
            templates: the model's, or another.
            template: the name of one of several.
            variables: more for the template.
            messages: turns to begin with.

        Raises:
            InputError: there is no such template.
            UnsupportedError: the model generates no text, or has no tokenizer that this version knows, or the template
                is in Go's language.
        """
        session.need("prefill")
        templates.source(template)
        self.session = session
        self.tokenizer = session.tokenizer
        self.messages = [dict(message) for message in messages]
        self.turn = Turn()
        self._templates = templates
        self._name = template
        self._variables = variables
        self._fed = _Fed()

    @property
    def system(self) -> str:
        """The system prompt, or ""."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else ""

    def set_system(self, text: str) -> None:
        """Gives the conversation another system prompt, or none; the next turn feeds what that changes.

        Raises:
            InputError: the template takes no system prompt; the old one stands.
        """
        turns = self.messages[1:] if self.system else self.messages
        if text:
            self._check_system(text, turns)
        self.messages = [{"role": "system", "content": text}, *turns] if text else turns

    def _check_system(self, text: str, turns: Sequence[Message]) -> None:
        try:
            self._render([{"role": "system", "content": text}, *turns, ANY])
        except InputError as error:
            self._render([*turns, ANY])  # raises where something else is wrong
            raise InputError(f"the chat template takes no system prompt: {error}") from None

    @property
    def kept(self) -> int:
        """How many tokens of the conversation are in the caches: those that the next turn need not feed."""
        if not self.messages:
            return 0
        return _common(self.session.tokens, self._ids(self._render([*self.messages, ANY])))

    def replace(self, messages: Sequence[Message]) -> None:
        """Another history.

        Raises:
            InputError: messages that are none.
        """
        self.messages = [dict(message) for message in normalised(messages)] if messages else []
        self.turn = Turn()

    def clear(self) -> None:
        """Forgets every turn but the system prompt."""
        self.messages = self.messages[:1] if self.system else []
        self.turn = Turn()

    def say(
        self,
        text: str,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] = (),
        interrupted: Callable[[], bool] = lambda: False,
        **sampling: Any,
    ) -> Iterator[str]:
        """Says something and yields the answer piece by piece; both are then turns of the conversation.

        Args:
            text: the user's words.
            max_tokens: most tokens of the answer; None is what the context holds.
            stop: texts that end it.
            interrupted: asked between tokens; true ends the answer, which is kept as far as it came.
            sampling: as `Session.generate`.

        Raises:
            InputError: as `ChatTemplates.render`, or the conversation fills the context; it is then as before.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        stops = StopTexts(checked_stops(stop))
        prompt = self._render(asked)
        ids = self._ids(prompt)
        room = self.session.context_length - len(ids)
        if room < 1:
            raise InputError(
                f"the conversation takes {len(ids)} tokens and leaves no room in the context of "
                f"{self.session.context_length}; begin a new one (/clear), or say less"
            )
        common = _common(self.session.tokens, ids[:-1])
        self.turn = Turn(len(ids), len(ids) - common)
        self.session.rewind(self.session.position - common)
        answer: list[str] = []
        generated: list[int] = []
        started = perf_counter()
        rest = ids[common:]
        while len(rest) > STEP and not interrupted():
            self.session.prefill(rest[:STEP])
            rest = rest[STEP:]
        if interrupted():
            self.turn.stop = "interrupted"
            return
        tokens = self.session.generate_ids(rest, max_tokens=room if max_tokens is None else max_tokens, **sampling)
        stream = self.tokenizer.stream()
        while not self.turn.stop:
            try:
                token = next(tokens)
            except StopIteration as end:
                self.turn.stop = end.value
                piece = stops.push(stream.flush()) + stops.flush()
            else:
                generated.append(token)
                piece = stops.push(stream.push(token))
                if stops.found or interrupted():
                    self.turn.stop = "stop" if stops.found else "interrupted"
                    piece += stops.flush()
            now = perf_counter()
            if not self.turn.prefill_s:
                self.turn.prefill_s, started = now - started, now
            self.turn.tokens, self.turn.decode_s = len(generated), now - started
            answer.append(piece)
            if piece:
                yield piece
        said = "".join(answer)
        self.messages = [*asked, {"role": "assistant", "content": said}]
        whole = self.tokenizer.decode(generated) == said  # nothing cut off at a stop text or within a character
        self._fed = _Fed(prompt.marked + said, prompt.barrier, ids + generated) if whole else _Fed()

    def _render(self, messages: Sequence[Message]) -> Prompt:
        return self._templates.render(messages, self.tokenizer, name=self._name, variables=self._variables)

    def _ids(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt. The model's own tokens stay as it chose them, where the text would give others."""
        fed = self._fed
        if fed.ids and fed.barrier == prompt.barrier and prompt.marked.startswith(fed.text):
            rest = prompt.marked[len(fed.text) :]
            if any(map(rest.startswith, self.tokenizer.control_texts)):  # a token's border, whatever the family
                return fed.ids + self.tokenizer.encode(rest, add_special=False, barrier=prompt.barrier)
        return prompt.encode(self.tokenizer)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the beginning that two lists have in common."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
