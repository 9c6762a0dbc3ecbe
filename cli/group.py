"""The group of all commands."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from ..frontend.near import near
from .errors import NO_READER, explain
from .interrupts import interrupts
from .output import printable

COMMANDS = ("export", "run", "chat", "decide", "embed", "inspect", "verify", "bench", "serve", "status")
"""Each is the function of that name in the module of that name, which is imported when it is used."""
MODEL = """\b
MODEL is one of
  gemma.gguf            a GGUF file; of a split model the first, m-00001-of-00003.gguf
  gemma/                a bundle that `ggufc export` wrote
  gemma3:270m           NAME[:TAG] in the Ollama store
  org/repo:Q8_0         ORG/REPO[:QUANTIZATION] in the Hugging Face cache
`ggufc status` lists those that are here; nothing is ever downloaded."""


class Cli(click.Group):
    """A group that imports a command when it is used, and ends every error in one line and an exit code."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> NoReturn:
        _open_streams()
        state = {"debug": False}
        extra |= {"prog_name": "ggufc", "standalone_mode": False, "obj": state}
        try:
            with interrupts:
                code = super().main(args, **extra)
            sys.exit(code if isinstance(code, int) else 0)
        except Exception as error:
            if state["debug"] and not isinstance(error, click.ClickException):
                traceback.print_exc()
            message, code = explain(error)
            with suppress(OSError):  # a terminal that was closed takes no message
                click.echo(f"ggufc: error: {printable(message)}", err=True)
            sys.exit(code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f".{cmd_name}", __package__), cmd_name)
        if any(parameter.name == "model" for parameter in command.params):
            command.epilog = MODEL
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in COMMANDS and not word.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"no command {word!r}; {_meant(word)}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the interpreter's last flush finds a reader
            ctx.exit(NO_READER)
        except KeyboardInterrupt:
            raise click.Abort from None


def _meant(word: str) -> str:
    """What to type instead of a word that is no command."""
    if os.path.lexists(word) or word.endswith(".gguf"):
        return f"to run a model: ggufc run {word}"
    found = near(word, COMMANDS, 1, 0.5)
    return f"did you mean {found[0]!r}?" if found else f"there are {', '.join(sorted(COMMANDS))}"


def _open_streams() -> None:
    """Lets /dev/null stand for standard streams that were closed, so that no file takes their place."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # the lowest that is free
        os.set_inheritable(null, True)
    os.close(null)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
