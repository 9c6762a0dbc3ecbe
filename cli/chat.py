"""`ggufc chat`."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from ..frontend.errors import GgufcError, InputError
from ..frontend.given import parse_json, read_file
from ..frontend.near import nearest
from .interrupts import interrupts
from .options import TEXT, Whole, kv_option, model_argument, sampling_options, stop_option, template_options
from .output import print_table, printable, stream_text, write_file
from .prompts import MOST_BYTES
from .sessions import Opener, chat_templates, session_options, tell_notes

if TYPE_CHECKING:
    from ..backends.sessions.chat import Chat
    from ..frontend.chat.templates import ChatTemplates

MOST_SAVED = 64 << 20
QUOTES = '"""'
HELP = """\
/clear           forget the conversation, not the system prompt
/system [TEXT]   show the system prompt, or give another; "/system -" gives none
/save FILE       write the conversation to a file
/load FILE       go on with one that was saved
/stats           what the last answer cost, and how full the context is
/help            this
/bye             leave, as Ctrl-D does
Ctrl-C ends an answer. A line that ends in \\ goes on in the next one; so does a text that begins with three double
quotes, up to the next three. A line that begins with a space is no command.
"""


@click.command(short_help="Talk with MODEL.")
@model_argument
@click.option("--system", type=TEXT, metavar="TEXT", help="The system prompt.")
@template_options
@click.option("-n", "--tokens", type=Whole(min=1), metavar="N", help="Most tokens of an answer.")
@sampling_options(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
@stop_option
@kv_option
@session_options
def chat(
    model: Path,
    system: str | None,
    templates: "ChatTemplates | None",
    template: str | None,
    variables: dict[str, Any],
    tokens: int | None,
    stop: tuple[str, ...],
    opener: Opener,
    as_json: bool,
    **sampling: float,
) -> None:
    """Talk with MODEL. Without a terminal each line of standard input is a turn; with --json each answer is a line.

    A model without a chat template, as one that was never taught to converse, is given one by --chat-template: how the
    turns of a conversation are written, in jinja2. The repository has examples/gemma.jinja.

    \b
    Example: ggufc chat gemma3:270m --system "Answer in one sentence."
             ggufc chat gemma/ --chat-template examples/gemma.jinja
             echo "Why is the sky blue?" | ggufc chat gemma/ --chat-template examples/gemma.jinja -n 64
    """
    from ..backends.sessions.chat import Chat
    from ..backends.sessions.sampling import Sampling
    from ..backends.sessions.stopping import checked_stops

    Sampling.of(sampling)  # before the model is opened
    options = {"max_tokens": tokens, "stop": checked_stops(stop), **sampling}
    session = opener.open(model)
    tell_notes(session.tokenizer)
    talk = Chat(session, templates or chat_templates(session, model), template=template, variables=variables)
    if system:
        talk.set_system(system)
    terminal = sys.stdin.isatty()
    if terminal and sys.stdout.isatty():
        click.echo(f"{printable(model.name)}: /help tells of commands, Ctrl-D leaves", err=True)
    room = _Room(talk, model.name, options, as_json)
    for words in _typed() if terminal else _piped():
        try:
            with _Stop(terminal) as ctrl_c:
                if not room.hear(words, ctrl_c.asked):
                    return
        except GgufcError as error:
            if not terminal:
                raise
            click.echo(f"ggufc: {printable(str(error))}", err=True)


_WITH_WORDS = ("system", "save", "load")
"""Commands that take what stands behind their name."""


class _Room:
    """Where the turns of a conversation and the commands between them are heard."""

    def __init__(self, talk: "Chat", model: str, options: dict[str, Any], as_json: bool) -> None:
        self._talk = talk
        self._model = model
        self._options = options
        self._as_json = as_json
        self._commands: dict[str, Callable[[str], None]] = {
            "clear": self._clear,
            "system": self._system,
            "save": self._save,
            "load": self._load,
            "stats": self._stats,
            "help": lambda _: stream_text(HELP),
        }

    def hear(self, words: str, interrupted: Callable[[], bool]) -> bool:
        """Answers a turn, until it is interrupted, or does a command; false when it was the last one.

        Raises:
            InputError: a command that is none, or as `Chat.say`.
        """
        if not words.strip():
            return True
        if not words.startswith("/"):
            self._answer(words, interrupted)
            return True
        name, _, rest = words[1:].strip().partition(" ")
        if name in ("bye", "exit", "quit") and not rest.strip():
            return False
        if name not in self._commands:
            hint = nearest(f"/{name}", [f"/{command}" for command in (*self._commands, "bye")])
            raise InputError(
                f"no command /{name[:40]}{hint}; /help lists them, and a space before the / makes it a turn"
            )
        if rest.strip() and name not in _WITH_WORDS:
            raise InputError(f"/{name} takes no words; a space before the / makes it a turn")
        self._commands[name](rest.strip())
        return True

    def _answer(self, words: str, interrupted: Callable[[], bool]) -> None:
        written = ""
        for piece in self._talk.say(words, interrupted=interrupted, **self._options):
            written += piece
            if not self._as_json:
                stream_text(_harmless(piece) if sys.stdout.isatty() else piece)
        if self._as_json:
            turn = vars(self._talk.turn)
            stream_text(json.dumps({"role": "assistant", "content": written, **turn}) + "\n")
        else:
            stream_text("" if written.endswith("\n") else "\n")
        if self._talk.turn.stop in ("length", "context", "interrupted") and sys.stderr.isatty():
            click.echo(f"(ended by {self._talk.turn.stop})", err=True)

    def _clear(self, _: str) -> None:
        self._talk.clear()

    def _system(self, text: str) -> None:
        if text:
            self._talk.set_system("" if text == "-" else text)
        else:
            stream_text(f"{self._talk.system or '(no system prompt)'}\n")

    def _save(self, name: str) -> None:
        path = _named(name, "save")
        saved = {"model": self._model, "messages": self._talk.messages}
        write_file(path, json.dumps(saved, indent=1, ensure_ascii=False) + "\n")
        click.echo(f"{len(self._talk.messages)} messages in {printable(str(path))}", err=True)

    def _load(self, name: str) -> None:
        path = _named(name, "load")
        try:
            saved = parse_json(read_file(path, MOST_SAVED))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        except ValueError:
            saved = None
        if not isinstance(saved, dict) or not isinstance(saved.get("messages"), list):
            raise InputError(f"{path}: no conversation that /save wrote")
        self._talk.replace(saved["messages"])
        click.echo(f"{len(self._talk.messages)} messages from {printable(str(path))}", err=True)

    def _stats(self, _: str) -> None:
        turn, session = self._talk.turn, self._talk.session
        rows = [("context", f"{self._talk.kept} of {session.context_length} tokens")]
        if turn.prompt_tokens:
            kept = turn.prompt_tokens - turn.fed
            rows.append(("last prompt", f"{turn.fed} tokens fed in {turn.prefill_s:.2f} s, {kept} were in the cache"))
        if turn.tokens > 1:
            rows.append(("last answer", f"{turn.tokens} tokens, {(turn.tokens - 1) / turn.decode_s:.1f} tok/s"))
        rows.append(("cache", f"{session.cache_bytes() / 1e6:.1f} MB"))
        print_table(rows)


class _Stop:
    """Ctrl-C after a turn or a command: a person's first one ends an answer, and a second one the program."""

    def __init__(self, person: bool) -> None:
        self._person = person
        self._count = 0

    def asked(self) -> bool:
        """Whether the answer shall end."""
        return self._count > 0

    def __enter__(self) -> "_Stop":
        self._handler = signal.getsignal(signal.SIGINT)
        if self._person and self._handler is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1 and callable(self._handler):
            self._handler(number, frame)


def _typed() -> Iterator[str]:
    """What a user types at a terminal, turn by turn; Ctrl-C forgets the line."""
    with suppress(ImportError):
        import readline  # input() edits lines with it and remembers them

        readline.parse_and_bind("set convert-meta off")  # in the locale C letters beyond ASCII would be commands of it
    while True:
        try:
            yield _turn(_line(">>> "))
        except EOFError:
            stream_text("\n")
            return
        except UnicodeError:
            click.echo("ggufc: that line is not UTF-8", err=True)
        except KeyboardInterrupt:
            if interrupts.pending not in (0, signal.SIGINT):
                raise
            interrupts.pending = 0  # heard: nothing else is to end for it
            click.echo("\n(Ctrl-D or /bye leaves)", err=True)


def _line(prompt: str) -> str:
    """A line; the prompt is for people who see it.

    Raises:
        UnicodeError: it is not UTF-8.
    """
    line = input(prompt if sys.stdout.isatty() else "")
    return os.fsencode(line).decode()  # what isn't of the locale's encoding Python hands on in disguise


def _turn(first: str) -> str:
    """A turn that begins with a line, and may go on in others."""
    if first.lstrip().startswith(QUOTES):
        text = first.lstrip().removeprefix(QUOTES)
        while QUOTES not in text:
            text += "\n" + _line("... ")
        return " " + text[: text.index(QUOTES)] if text.startswith("/") else text[: text.index(QUOTES)]
    while first.endswith("\\"):
        first = first[:-1] + "\n" + _line("... ")
    return first


def _piped() -> Iterator[str]:
    """Lines of standard input."""
    lines = iter(lambda: sys.stdin.buffer.readline(MOST_BYTES + 1), b"")
    for number, raw in enumerate(lines, 1):
        if len(raw) > MOST_BYTES:
            raise InputError(f"standard input: line {number} is longer than {MOST_BYTES} bytes; give shorter ones")
        try:
            yield raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"standard input, line {number}: byte {error.start} is not UTF-8") from None


def _named(name: str, command: str) -> Path:
    if not name:
        raise InputError(f"/{command} needs the name of a file")
    return Path(os.fsdecode(name.encode())).expanduser()  # in a locale without its letters names are in disguise


def _harmless(text: str) -> str:
    """A model's words without what could move a terminal's cursor or do worse."""
    return "".join(c for c in text if c in "\n\t" or not (c < " " or "\x7f" <= c < "\xa0"))
