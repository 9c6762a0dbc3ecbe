"""The chat templates of a model: from a conversation to the text that the model was trained on."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError, UnsupportedError
from .marks import Marker, free_marks
from .messages import Message, normalised
from .renderer import rendered

KEY = "tokenizer.chat_template"
FILE = "chat_template.jinja"
DEFAULT = "default"
TOOL_USE = "tool_use"
"""The name of the template for conversations with tools, where a model has a second one for them."""
RERANK = "rerank"
"""The name of the template of rerankers: text with `{query}` and `{document}`, no jinja2 (llama.cpp's server)."""
SECONDS, SECONDS_PER_MESSAGE = 1.5, 0.01
"""Processor time of a rendering; some milliseconds are usual, and some templates look back from each message."""
MOST_TEMPLATE = 4 << 20

_UNMARKED = ("bos_token", "eos_token", "add_generation_prompt")
"""Variables whose values no user writes."""
OWN = ("messages", "tools", "documents", *_UNMARKED)
"""Variables that a rendering makes of its arguments, and that nobody else may give."""

_GO_ACTION = re.compile(
    r"\{\{-?\s*(?:(?:if|with|range|else if|template|define|block)\s+[.$\"(]|end\s*-?\}\}|[.$][A-Za-z])"
)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


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

    def reads_tools(self, name: str | None = None) -> bool:
        """Whether the template that is chosen where tools are given has a place for them; as `source`."""
        return re.search(r"\btools\b", self.source(name, tools=True)) is not None

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
            variables: more for the template, such as `enable_thinking`; none of `OWN`.

        Raises:
            InputError: no template, messages that are none, a variable that can't be given, or the template's own
                error, with what it says.
            UnsupportedError: content other than text, or a template in another language.
        """
        check_variables(variables or {})
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
        start, end = free_marks(everything)
        marker = Marker(tokenizer.control_texts, everything, start, end)
        marked = {key: given[key] if key in _UNMARKED else marker.mark(value) for key, value in given.items()}
        seconds = SECONDS + SECONDS_PER_MESSAGE * len(messages)
        asked = {"template": source, "variables": marked, "marks": start + end, "seconds": seconds}
        return Prompt(marker.barred(rendered(json.dumps(asked).encode())), start)

    def pair(self, query: str, document: str, tokenizer: ChatTokenizer) -> Prompt | None:
        """The text that a reranker's own template, which has their places in braces, makes of a question and what may
        answer it; None where the model has no such template."""
        source = self.sources.get(RERANK)
        if source is None:
            return None
        values = {"query": query, "document": document}
        everything = json.dumps([source, values], ensure_ascii=False)
        start, end = free_marks(everything)
        marker = Marker(tokenizer.control_texts, everything, start, end)
        marked = re.sub(r"\{(query|document)\}", lambda place: marker.mark(values[place[1]], place[1]), source)
        return Prompt(marker.barred(marked), start)


def check_variables(names: Iterable[str]) -> None:
    """Refuses variables for a template that it has already.

    Raises:
        InputError: there is one.
    """
    for name in names:
        if name in OWN:
            raise InputError(f"the template's variable {name!r} is made of the conversation and can't be set")


def _is_template(value: Any) -> bool:
    """Whether a value can be a template: text, without the surrogates that stand for bytes that are not UTF-8."""
    try:
        return isinstance(value, str) and len(value.encode()) <= MOST_TEMPLATE
    except UnicodeEncodeError:
        return False


def is_go_template(text: str) -> bool:
    """Whether a template is in Go's language, which has other actions in the same braces."""
    return _GO_ACTION.search(text) is not None and "{%" not in text


def _listed(name: str, value: Any) -> list[Any] | None:
    if value is None or (isinstance(value, list | tuple) and all(isinstance(item, Mapping) for item in value)):
        return list(value) if value else None
    raise InputError(f"{name}: wanted a list of objects")
