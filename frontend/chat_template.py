"""Chat templates: from a conversation to the text that the model was trained on, and to its token ids.

The template is a jinja2 program in the model's file. It is rendered by a process of its own (`template_worker`),
bounded in time and memory, with the settings and functions of Hugging Face's `apply_chat_template`. What a user wrote
never becomes a control token, whatever it looks like: see `Prompt`.
"""

import atexit
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock, Timer
from typing import Any, Protocol

from .errors import InputError, UnsupportedError

KEY = "tokenizer.chat_template"
FILE = "chat_template.jinja"
DEFAULT = "default"
TOOL_USE = "tool_use"
"""The name of the template for conversations with tools, where a model has a second one for them."""
RERANK = "rerank"
"""The name of the template of rerankers: text with `{query}` and `{document}`, no jinja2 (llama.cpp's server)."""
SECONDS, SECONDS_PER_MESSAGE = 1.5, 0.01
"""Processor time of a rendering; some milliseconds are usual, and some templates look back from each message."""
MEMORY = 192 << 20
"""Bytes of address space of the process that renders."""
PATIENCE = 60.0
"""Seconds on the clock until a rendering is given up, on a machine that is busy with other things."""
MOST_REQUEST = 32 << 20
MOST_TEMPLATE = 4 << 20

_GO_ACTION = re.compile(
    r"\{\{-?\s*(?:(?:if|with|range|else if|template|define|block)\s+[.$\"(]|end\s*-?\}\}|[.$][A-Za-z])"
)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Under which names clients send a model's reasoning; templates read the first, some the second."""
_CONTENT = frozenset(("content", "text", "query", "document", *_REASONING))
"""Keys whose values are a user's or a model's own words, even where it is one word."""
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]

Message = Mapping[str, Any]


class ChatTokenizer(Protocol):
    """The part of `Tokenizer` that a prompt needs."""

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text."""
        ...

    @property
    def eos_id(self) -> int | None:
        """The token that ends a text."""
        ...

    @property
    def control_texts(self) -> Iterable[str]:
        """The texts of the tokens that only a template may write."""
        ...

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True, barrier: str = ""
    ) -> list[int]:
        """The ids of a text; no special token is found across the character `barrier`, which is no text itself."""
        ...

    def decode(self, ids: Iterable[int], *, render_special: bool = False) -> str:
        """The text of ids."""
        ...


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation.

    A `barrier` in the text stands where a user's words would make a control token, alone or together with the
    template's: it is zero characters wide, and no special token is found across it.
    """

    marked: str
    barrier: str

    @property
    def text(self) -> str:
        """The text as the template gives it."""
        return self.marked.replace(self.barrier, "")

    def encode(self, tokenizer: ChatTokenizer) -> list[int]:
        """The ids: the template's special tokens parsed, the user's not, BOS exactly once where the model wants it."""
        return tokenizer.encode(self.marked, barrier=self.barrier)


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of a model, by name.

    Attributes:
        sources: name -> template; the one that is used unless another is asked for is called `default`.
        missing: why there is none, for the user; "" where there are some.
    """

    sources: Mapping[str, str]
    missing: str = ""

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "ChatTemplates":
        """The templates of a GGUF: `tokenizer.chat_template` and `tokenizer.chat_template.NAME`.

        One that is empty is none. What can't be a template leaves the reason in `missing` if nothing else is there.
        """
        sources: dict[str, str] = {}
        missing = f"the model has no chat template ({KEY})"
        for key, value in metadata.items():
            if key != KEY and not key.startswith(f"{KEY}."):
                continue
            name = key.removeprefix(KEY).removeprefix(".") or DEFAULT
            if not _is_template(value) or not _NAME.fullmatch(name):
                missing = f"{key[:80]!r} is no template: wanted a text of up to {MOST_TEMPLATE} bytes in UTF-8"
            elif value.strip():
                sources[name] = value
        return cls(sources, "" if sources else missing)

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes every template into a folder, the default one where Hugging Face's libraries look for it.

        Returns:
            What `load` needs: the file of each name, or why there is none.
        """
        files = {name: FILE if name == DEFAULT else f"chat_template.{name}.jinja" for name in self.sources}
        for name, file in files.items():
            (folder / file).write_bytes(self.sources[name].encode())
        return {"templates": files, "missing": self.missing}

    @classmethod
    def load(cls, saved: Mapping[str, Any], read: Callable[[str], Path]) -> "ChatTemplates":
        """What `save` wrote; `read` gives the place of a file by its name."""
        sources = {
            name: read(file).read_bytes().decode("utf-8", "replace") for name, file in saved["templates"].items()
        }
        return cls(sources, saved["missing"])

    @classmethod
    def from_file(cls, path: Path) -> "ChatTemplates":
        """One template that a user gives.

        Raises:
            InputError: the file can't be read, is empty or no UTF-8.
        """
        try:
            with path.open("rb") as file:
                raw = file.read(MOST_TEMPLATE + 1)
            text = raw.decode("utf-8")
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start} is not UTF-8") from None
        if not text.strip() or len(raw) > MOST_TEMPLATE:
            raise InputError(f"{path}: {'empty' if not text.strip() else 'too long'}; wanted a chat template in jinja2")
        return cls({DEFAULT: text})

    def source(self, name: str | None = None, *, tools: bool = False) -> str:
        """A template by name; None is the one for tools where they are given and it exists, else the default.

        Raises:
            InputError: there is none, or none of that name.
            UnsupportedError: it is written in Go's template language.
        """
        if not self.sources:
            raise InputError(f"{self.missing}; give one with --chat-template FILE, or complete a text with ggufc run")
        chosen = name or (TOOL_USE if tools and TOOL_USE in self.sources else DEFAULT)
        if chosen not in self.sources:
            raise InputError(f"no chat template {chosen[:80]!r}; the model has {', '.join(sorted(self.sources))}")
        if is_go_template(self.sources[chosen]):
            raise UnsupportedError(
                f"the chat template {chosen!r} is in Go's template language, as Ollama's are, and ggufc renders "
                "jinja2; give one with --chat-template FILE"
            )
        return self.sources[chosen]

    def render(
        self,
        messages: Sequence[Message],
        tokenizer: ChatTokenizer,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        name: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The text of a conversation.

        Content that is null or missing is empty, parts of text are joined, `developer` is the system's role, and the
        arguments of a tool's call, JSON or a mapping, are both for the template.

        Args:
            messages: mappings with `role`, `content` and what else the template knows.
            tokenizer: whose BOS and EOS texts the template may write, and whose control tokens no user may.
            tools: JSON schemas of functions.
            documents: for templates that read them.
            add_generation_prompt: end where the model's answer begins.
            name: a template's name.
            variables: more for the template, such as `enable_thinking`.

        Raises:
            InputError: no template, messages that are none, or the template's own error, with what it says.
            UnsupportedError: content other than text, or a template in another language.
        """
        source = self.source(name, tools=bool(tools))
        given = {
            "messages": normalised(messages),
            "tools": _listed("tools", tools),
            "documents": _listed("documents", documents),
            **(variables or {}),
        }
        given["add_generation_prompt"] = add_generation_prompt
        for key, token in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id)):
            if token is not None:
                given.setdefault(key, tokenizer.decode([token], render_special=True))
        try:
            everything = json.dumps([source, given], ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the conversation is no JSON data: {error}") from None
        start, end = _free_marks(everything)
        marker = _Marker(tokenizer.control_texts, everything, start, end)
        marked = {key: given[key] if key in _OWN else marker.mark(value) for key, value in given.items()}
        seconds = SECONDS + SECONDS_PER_MESSAGE * len(messages)
        asked = {"template": source, "variables": marked, "marks": start + end, "seconds": seconds}
        request = json.dumps(asked).encode()
        if len(request) > MOST_REQUEST:
            raise InputError(f"a conversation of {len(request)} bytes; at most {MOST_REQUEST} are rendered")
        return Prompt(marker.barred(_render(request)), start)

    def pair(self, query: str, document: str, tokenizer: ChatTokenizer) -> Prompt | None:
        """The text that a reranker's own template, which has their places in braces, makes of a question and what may
        answer it; None where the model has no such template."""
        source = self.sources.get(RERANK)
        if source is None:
            return None
        values = {"query": query, "document": document}
        everything = json.dumps([source, values], ensure_ascii=False)
        start, end = _free_marks(everything)
        marker = _Marker(tokenizer.control_texts, everything, start, end)
        marked = re.sub(r"\{(query|document)\}", lambda place: marker.mark(values[place[1]], place[1]), source)
        return Prompt(marker.barred(marked), start)


_OWN = ("bos_token", "eos_token", "add_generation_prompt")
"""Variables that no user writes."""


def _is_template(value: Any) -> bool:
    """Whether a value can be a template: text, without the surrogates that stand for bytes that are not UTF-8."""
    try:
        return isinstance(value, str) and len(value.encode()) <= MOST_TEMPLATE
    except UnicodeEncodeError:
        return False


def is_go_template(text: str) -> bool:
    """Whether a template is in Go's language, which has other actions in the same braces."""
    return _GO_ACTION.search(text) is not None and "{%" not in text


def normalised(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as templates expect them; see `ChatTemplates.render`.

    Raises:
        InputError: there are none, or one has no role, odd content or arguments that are no JSON object.
        UnsupportedError: a part of a content is no text.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InputError("no messages: wanted a list with one or more")
    return [_normalised(message, f"messages[{n}]") for n, message in enumerate(messages)]


def _normalised(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"{where}: wanted an object with a role and a content")
    found = {key: value for key, value in message.items() if value is not None}
    if found["role"] == "developer":
        found["role"] = "system"
    found["content"] = _content(found.get("content", ""), f"{where}.content")
    reasoning = next((found[key] for key in _REASONING if key in found), None)
    if reasoning is not None:
        found = {"thinking": reasoning, **found, "reasoning_content": reasoning}
    if "tool_calls" in found:
        calls = found["tool_calls"]
        if not isinstance(calls, list | tuple):
            raise InputError(f"{where}.tool_calls: wanted a list")
        found["tool_calls"] = [_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)]
    return found


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not all(isinstance(part, Mapping) for part in content):
        raise InputError(f"{where}: wanted a text or a list of parts")
    for n, part in enumerate(content):
        if part.get("type", "text") != "text":
            raise UnsupportedError(f"{where}[{n}]: of type {str(part['type'])[:40]!r}; models are given text alone")
        if not isinstance(part.get("text"), str):
            raise InputError(f"{where}[{n}]: wanted a part with a text")
    return "".join(part["text"] for part in content)


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool's call whose arguments are the JSON of an object, which the renderer makes a mapping as well."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"{where}: wanted a function with a name")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    try:
        is_object = isinstance(json.loads(text or "{}"), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise InputError(f"{where}.function.arguments: no JSON object")
    function = {**function, "arguments": text or "{}"}
    return {**call, "function": function} if "function" in call else function


def _listed(name: str, value: Any) -> list[Any] | None:
    if value is None or (isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value)):
        return list(value) if value else None
    raise InputError(f"{name}: wanted a list of objects")


def _free_marks(text: str) -> tuple[str, str]:
    """Two characters that no text may interchange, and that this one doesn't hold either."""
    free = [mark for mark in _NONCHARACTERS if mark not in text][:2]
    if len(free) < 2:
        raise InputError("the conversation holds every noncharacter from U+FDD0 on; leave two of them out")
    return free[0], free[1]


class _Marker:
    """Marks what a user wrote where it would make a control token, so that it is found in the rendered text.

    Whole control tokens are enclosed in two marks, so that a template that looks for one still finds it. A text that
    begins or ends with a part of one has a mark there. Roles, names and other single words outside a content are left
    as they are: templates compare them, and one that puts brackets around a role means to write a token.
    """

    def __init__(self, control: Iterable[str], everything: str, start: str, end: str) -> None:
        self._start, self._end = start, end
        self._control = [text for text in control if len(text) > 1]
        # in `everything`, which is JSON, quotes and backslashes are written otherwise; no such token escapes the mark
        inside = [text for text in self._control if json.dumps(text, ensure_ascii=False)[1:-1] in everything]
        pattern = "|".join(map(re.escape, sorted(inside, key=len, reverse=True))) or "(?!)"
        self._whole = re.compile(pattern)
        self._marked = re.compile(f"{start}({pattern}){end}|[{start}{end}]")

    @cached_property
    def _parts(self) -> tuple[frozenset[str], frozenset[str]]:
        """Proper beginnings and ends of control tokens."""
        cuts = [(text[:n], text[n:]) for text in self._control for n in range(1, len(text))]
        return frozenset(a for a, _ in cuts), frozenset(b for _, b in cuts)

    def mark(self, value: Any, key: object = None) -> Any:
        """A value, found under a key, with every text in it marked."""
        match value:
            case str():
                return self._marked_text(value, key in _CONTENT)
            case Mapping():
                return {
                    self._wrapped(inner) if isinstance(inner, str) else inner: self.mark(item, inner)
                    for inner, item in value.items()
                }
            case list() | tuple():
                return [self.mark(item) for item in value]
        return value

    def _wrapped(self, text: str) -> str:
        return self._whole.sub(rf"{self._start}\g<0>{self._end}", text)

    def _marked_text(self, text: str, is_content: bool) -> str:
        core = text.strip()
        marked = self._wrapped(core)
        if core and (is_content or not re.fullmatch(r"[\w-]+", core)):
            first, last = self._parts
            lengths = range(1, max(map(len, self._control), default=0))
            inner = any(core in token for token in self._control)
            if inner or any(core[:n] in last for n in lengths):
                marked = self._start + marked
            if any(core[-n:] in first for n in lengths):
                marked += self._start
        at = text.find(core)
        return text[:at] + marked + text[at + len(core) :]

    def barred(self, rendered: str) -> str:
        """The rendered text with one barrier within each control token that a user wrote, and at each lone mark."""
        return self._marked.sub(self._bar, rendered)

    def _bar(self, found: re.Match[str]) -> str:
        token = found[1]
        return token[0] + self._start + token[1:] if token else self._start


class _Worker:
    """The process that renders, started when it is first needed and again after a template ended it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: bytes) -> dict[str, str]:
        """The answer to a request.

        Raises:
            InputError: the template ended the process.
        """
        with self._lock:
            process = self._started()
            assert process.stdin and process.stdout
            timer = Timer(PATIENCE, process.kill)
            timer.start()
            answer, status = b"", 0
            try:
                with suppress(BrokenPipeError):
                    process.stdin.write(request + b"\n")
                    process.stdin.flush()
                    answer = process.stdout.readline(8 * MOST_REQUEST)
            finally:
                timer.cancel()
                if not answer.endswith(b"\n"):  # the process died, or an exception left its answer unread
                    status = self._stop()
        if answer.endswith(b"\n"):
            return json.loads(answer)
        timed_out = status in (-signal.SIGKILL, -getattr(signal, "SIGPROF", signal.SIGKILL))
        why = "takes more than its time" if timed_out else f"ended its process (status {status})"
        raise InputError(f"the chat template {why}; it was stopped")

    def close(self) -> None:
        """Ends the process, if there is one."""
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            script = Path(__file__).with_name("template_worker.py")
            words = [sys.executable, "-I", "-S", str(script), json.dumps(sys.path), str(MEMORY)]
            try:
                self._process = subprocess.Popen(  # in a group of its own, where no terminal interrupts it
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                )
            except OSError as error:
                raise UnsupportedError(f"chat templates need a process of their own: {error}") from None
        return self._process

    def _stop(self) -> int:
        """Ends the process; its status where it had ended already."""
        process, self._process = self._process, None
        if process is None:
            return 0
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        process.stdout.close()
        return status


_worker = _Worker()


def _render(request: bytes) -> str:
    answer = _worker.ask(request)
    if "error" in answer:
        raise InputError(f"the chat template says: {' '.join(answer['error'].split())[:300]}")
    return answer["text"]
