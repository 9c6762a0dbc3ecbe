"""A conversation with a model: position, caches, chunks of the prompt; the same over every executor."""

import operator
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any

import numpy as np

from ...frontend.chat.templates import ChatTemplates
from ...frontend.errors import DamagedModelError, InputError, UnsupportedError, shown
from ...frontend.tokenizer import Tokenizer
from ..executor import Executor
from . import rings
from .sampling import Sampling, checked_logits, sample
from .stopping import StopTexts, checked_stops


@dataclass(frozen=True)
class Facts:
    """What a session must know of its model.

    Attributes:
        context_length: most positions.
        vocabulary: number of token ids.
        entries: names of the entry points.
        pooled: whether an embedding is one row for all tokens.
        labels: of a classifier or reranker, what the numbers of its head stand for.
        target: the name of the target that its code was compiled for; empty where it wasn't for one.
    """

    context_length: int
    vocabulary: int
    entries: frozenset[str]
    pooled: bool
    labels: tuple[str, ...] = ()
    target: str = ""


class Session:
    """Explicit state over a model: nothing is kept anywhere else, so `reset` gives what a new session would.

    A session is for one thread and one generation at a time: a generation whose session was fed, reset or taken back
    by anybody else ends with an InputError, and so does the call of a thread that comes while another one's lasts.
    Sessions that `new` made share the model; each may have a thread of its own, and their steps take turns.

    Attributes:
        context_length: most positions.
        vocabulary: number of token ids.
        tokens: the ids fed so far, one for each position.
    """

    def __init__(
        self,
        executor: Executor,
        facts: Facts,
        tokenizer: Callable[[], Tokenizer],
        chat_templates: Callable[[], ChatTemplates] = lambda: ChatTemplates({}, "this session has no chat template"),
    ) -> None:
        self.executor = executor
        self.facts = facts
        self.context_length = facts.context_length
        self.vocabulary = facts.vocabulary
        self._make_tokenizer = tokenizer
        self._make_chat_templates = chat_templates
        self.tokens: list[int] = []
        self._turn = RLock()
        self._process = os.getpid()
        self._changes = 0  # of `tokens`, by which a generation knows that nobody else fed the session
        self._reset_caches()

    def new(self) -> "Session":
        """Another session over the same loaded model, at its start.

        Weights, code and tokenizer are there once; all that it adds are its own caches.
        """
        made = Session(self.executor, self.facts, self._make_tokenizer, self._make_chat_templates)
        made._process = self._process
        return made

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, made when it is first wanted.

        Raises:
            UnsupportedError: the model has none that this version knows; it still runs on token ids.
        """
        return self._make_tokenizer()

    @cached_property
    def chat_templates(self) -> ChatTemplates:
        """The model's chat templates, read when they are first wanted; there may be none."""
        return self._make_chat_templates()

    @property
    def position(self) -> int:
        """The position of the next token: the number of tokens fed so far."""
        return len(self.tokens)

    def prefill(self, ids: Iterable[int]) -> np.ndarray:
        """Feeds tokens, any number at any position.

        Args:
            ids: one or more token ids, whole numbers of any kind.

        Returns:
            float32 (vocabulary,), the logits after the last of them.

        Raises:
            InputError: no ids, one that is no whole number or outside the vocabulary, or more than the context holds;
                nothing was fed then.
        """
        self.need("prefill")
        return self._prefill(self._ids(ids, self.position))

    def _prefill(self, ids: list[int]) -> np.ndarray:
        logits = np.empty(0, np.float32)
        for start in range(0, len(ids), rings.CHUNK):
            logits = self._feed("prefill", ids[start : start + rings.CHUNK])
        return logits

    def decode(self, token: int) -> np.ndarray:
        """Feeds one token, through kernels made for one; otherwise as `prefill`."""
        self.need("decode")
        return self._feed("decode", self._ids([token], self.position))

    def decode_greedy(self, token: int) -> int:
        """Feeds one token and gives the likeliest next one; logits leave the model only where it has no entry point for
        that.

        Raises:
            DamagedModelError: a logit is NaN or infinite; the token was fed then.
            InputError: as `prefill`.
        """
        if "decode_greedy" not in self.facts.entries:
            return int(checked_logits(self.decode(token)).argmax())
        return self._chosen(self._feed("decode_greedy", self._ids([token], self.position)))

    def reset(self) -> None:
        """Forgets everything: the session is as new."""
        with self._alone():
            self.tokens.clear()
            self._changes += 1
            self._reset_caches()

    def rewind(self, count: int) -> None:
        """Forgets the last `count` tokens, as if they had never been fed.

        A sliding window's ring may have overwritten what the earlier position still sees, and the state of a
        convolution always has; then the tokens that stay are fed again, which takes the time of a prefill.

        Raises:
            InputError: `count` is negative or more than were fed.
        """
        count = _whole("count", count)
        if count > len(self.tokens):
            raise InputError(f"can't rewind {count} tokens: {len(self.tokens)} were fed")
        with self._alone():
            kept = self.tokens[: len(self.tokens) - count]
            if not count or self._caches.remember(len(kept)):
                self.tokens = kept
                self._changes += 1
                return
            self.reset()
            if kept:
                self._prefill(kept)

    def embed(self, text: str | Iterable[int]) -> np.ndarray:
        """The embedding of a text, which leaves the session's position as it is.

        Args:
            text: a text, which gets the model's special tokens, or its token ids with them.

        Returns:
            float32 (dim,) where the model pools, else (tokens, dim); not normalised.

        Raises:
            DamagedModelError: it holds NaN or infinity.
            InputError: as `prefill`, for a session at its start.
            UnsupportedError: the model gives no embeddings.
        """
        if self.facts.labels:
            raise UnsupportedError("the model is a classifier: it gives scores of labels, no embeddings")
        return self._encode(text)

    def classify(self, text: str | Iterable[int]) -> np.ndarray:
        """The scores of a classifier or reranker for a text, which leaves the session's position as it is.

        Args:
            text: a text, which gets the model's special tokens, or its token ids with them.

        Returns:
            float32 (labels,), what comes out of the head: no probabilities yet.

        Raises:
            InputError: as `embed`.
            UnsupportedError: the model has no such head.
        """
        if not self.facts.labels:
            raise UnsupportedError("the model has no classifier's head")
        return self._encode(text)

    def _encode(self, text: str | Iterable[int]) -> np.ndarray:
        self.need("encode")
        self._check_process()
        ids = self.tokenizer.encode(text) if isinstance(text, str) else text
        rows = self.executor.encode(np.asarray(self._ids(ids, 0), np.int32))
        if not np.isfinite(rows).all():
            raise DamagedModelError("the model's results")
        return rows[0] if self.facts.pooled else rows

    def generate(
        self, prompt: str | Iterable[int], *, max_tokens: int = 128, stop: str | Iterable[str] = (), **settings: Any
    ) -> Iterator[str]:
        """Feeds a prompt and yields the continuation piece by piece, never a part of a character.

        Args:
            prompt: text, tokenized with the model's special tokens (BOS only at the start of a session), or ids.
            max_tokens: most tokens to generate; the context's end and a stop token end it earlier.
            stop: a text or texts that end it; what comes before the first one is yielded, and nothing of it.
            settings: how tokens are chosen, by the names of `Sampling`: temperature, top_k, top_p, min_p,
                repeat_penalty, repeat_last_n, seed. None takes the likeliest token each time.

        Raises:
            InputError: as `prefill`, or an argument out of its range, at the call, when nothing was fed; and from the
                iterator where the session was changed by somebody else meanwhile.
        """
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt, add_special=self.position == 0)
        stops = StopTexts(checked_stops(stop))
        return self._pieces(self.generate_ids(prompt, max_tokens=max_tokens, **settings), stops)

    def _pieces(self, tokens: Iterable[int], stops: StopTexts) -> Iterator[str]:
        stream = self.tokenizer.stream()
        for token in tokens:
            piece = stops.push(stream.push(token))
            if piece:
                yield piece
            if stops.found:
                return
        rest = stops.push(stream.flush()) + stops.flush()
        if rest:
            yield rest

    def generate_ids(
        self,
        prompt: Iterable[int],
        *,
        max_tokens: int = 128,
        stop: Iterable[int] | None = None,
        watch: Callable[[int, np.ndarray], None] | None = None,
        **settings: Any,
    ) -> Generator[int, None, str]:
        """As `generate`, in token ids; `stop` are those that end it (None: the tokenizer's), and are not yielded.

        Every token that is yielded has a position in the context, so a prompt that fills it gives none. `watch` is told
        of each before it is yielded, with the logits (vocabulary,) that it was chosen from, before any setting.

        Returns:
            Why it ended (a generator's return value): `eos` for a stop token, `length` for `max_tokens`, `context`.
        """
        self.need("prefill")
        self.need("decode")
        ids = self._ids(prompt, self.position)
        ends = frozenset(self.tokenizer.eog_ids if stop is None else _indices("stop", stop))
        count, sampling = _whole("max_tokens", max_tokens), Sampling.of(settings)
        return self._continuation(ids, count, sampling, ends, watch, self._changes)

    def _continuation(
        self,
        prompt: list[int],
        max_tokens: int,
        sampling: Sampling,
        ends: frozenset[int],
        watch: Callable[[int, np.ndarray], None] | None,
        changes: int,
    ) -> Generator[int, None, str]:
        """What `generate_ids` gives, of arguments that were checked when the session had seen so many changes."""
        self._expect(changes)
        random = sampling.random()
        logits = self._prefill(prompt)
        room = self.context_length - self.position
        count = min(max_tokens, room)
        greedy = sampling.is_greedy and watch is None and "decode_greedy" in self.facts.entries
        entry = "decode_greedy" if greedy else "decode"
        for n in range(count):
            is_chosen = n and entry != "decode"  # by the greedy entry point
            token = self._chosen(logits) if is_chosen else sample(logits, sampling, random, self.tokens)
            if token in ends:
                return "eos"
            if watch:
                watch(token, logits)
            changes = self._changes
            yield token
            self._expect(changes)
            if n + 1 < count:
                logits = self._feed(entry, [token])
        return "length" if max_tokens <= room else "context"

    def _chosen(self, result: np.ndarray) -> int:
        """The token that the greedy entry point gives, int32 (1,), which is none of the vocabulary's where there is no
        choice."""
        token = int(result[0])
        if not 0 <= token < self.vocabulary:
            raise DamagedModelError("the model's logits")
        return token

    def _expect(self, changes: int) -> None:
        if changes != self._changes:
            raise InputError(
                f"the session was changed during a generation and is at position {self.position} now; run one "
                "generation at a time, or each in a session of its own"
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Around what changes the session: no other thread may be at it."""
        self._check_process()
        if not self._turn.acquire(blocking=False):
            raise InputError("the session is in use by another thread; give each thread its own, session.new()")
        try:
            yield
        finally:
            self._turn.release()

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # the workers that it would wait for are not in this process
            raise InputError("the model was loaded before this process was forked; load it after the fork")

    def cache_bytes(self) -> int:
        """Bytes that the caches of this session take now."""
        return self._caches.nbytes()

    def _reset_caches(self) -> None:
        self._caches = rings.Rings(self.executor, self.context_length)
        self._unfinished = False  # a call was interrupted, or failed: what the caches hold isn't known

    def need(self, entry: str) -> None:
        """Checks that the model has an entry point.

        Raises:
            UnsupportedError: it hasn't; it says what the model is for.
        """
        if entry in self.facts.entries:
            return
        if entry == "encode":
            raise UnsupportedError("the model gives no embeddings: it generates text, as ggufc run and generate() do")
        if self.facts.labels:
            raise UnsupportedError("the model generates no text: it is a classifier, for ggufc decide and classify()")
        raise UnsupportedError("the model generates no text: it gives embeddings, by ggufc embed and embed()")

    def _ids(self, given: Iterable[int], position: int) -> list[int]:
        """Token ids as they were given, checked to be ones that can be fed at a position."""
        ids = _indices("token ids", given)
        if not ids:
            raise InputError("no tokens: a prompt needs one at least")
        for token in ids:
            if not 0 <= token < self.vocabulary:
                raise InputError(f"token id {token} is outside the vocabulary, 0 to {self.vocabulary - 1}")
        if position + len(ids) > self.context_length:
            raise InputError(f"{len(ids)} tokens at position {position} exceed the context of {self.context_length}")
        return ids

    def _feed(self, entry: str, ids: Sequence[int]) -> np.ndarray:
        with self._alone():
            if self._unfinished:
                self._reset_caches()
                for start in range(0, self.position, rings.CHUNK):
                    self._run("prefill", self.tokens[start : start + rings.CHUNK], start)
            logits = self._run(entry, ids, self.position)
            self.tokens.extend(ids)
            self._changes += 1
            self._unfinished = False
            return logits

    def _run(self, entry: str, ids: Sequence[int], position: int) -> np.ndarray:
        """One call; until its tokens are the session's, the caches count as unfinished."""
        self._unfinished = True
        caches = self._caches
        caches.reserve(position + len(ids))
        return self.executor.run(entry, np.asarray(ids, np.int32), position, caches.buffers, caches.rows)


def _indices(name: str, given: Iterable[int]) -> list[int]:
    """Whole numbers of any kind as a list; a text, bytes or a fraction is none."""
    try:
        elements = None if isinstance(given, bytes | bytearray) else iter(given)
    except TypeError:
        elements = None
    if elements is None:
        raise InputError(f"{name} {shown(given)}: wanted whole numbers, such as [2, 818]")
    found = []
    for element in elements:
        try:
            found.append(operator.index(element))
        except TypeError:
            raise InputError(f"{name}: {shown(element)} is no whole number") from None
    return found


def _whole(name: str, given: int) -> int:
    """A whole number from 0."""
    try:
        value = operator.index(given)
    except TypeError:
        value = -1
    if value < 0:
        raise InputError(f"{name} {shown(given)}: wanted a whole number from 0")
    return value
