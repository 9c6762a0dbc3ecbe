"""Arguments and options that several commands share."""

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..backends import BACKENDS
from ..backends.host.cores import MOST_THREADS
from ..frontend.errors import shown
from ..frontend.given import parse_json
from ..graph.types import CACHE_DTYPES

if TYPE_CHECKING:
    from ..frontend.chat.templates import ChatTemplates


def _set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().obj["debug"] = True


Command = Callable[..., Any]


def options(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, shown in this order."""

    def decorate(function: Command) -> Command:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class _Path(click.Path):
    """The name of a file or folder, which is not empty: to the system that would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if value else self.fail("the name is empty", param, ctx)


class _Text(click.types.StringParamType):
    """A text in UTF-8, whatever the locale is. Python hands on in disguise what isn't of the locale's encoding."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return os.fsencode(super().convert(value, param, ctx)).decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"byte {error.start} is not UTF-8", param, ctx)


_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_REAL = re.compile(r"[+-]?([0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")


class Whole(click.IntRange):
    """A whole number within bounds, in plain digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _WHOLE.fullmatch(str(value)):
            self.fail(f"{shown(value)}: wanted a whole number", param, ctx)
        return super().convert(value, param, ctx)


class Real(click.FloatRange):
    """A number within bounds, in plain digits: neither NaN nor infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not _REAL.fullmatch(str(value)) or not math.isfinite(float(value)):
            self.fail(f"{shown(value)}: wanted a finite number", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)
TEXT = _Text()
debug_option = click.option(
    "--debug", is_flag=True, expose_value=False, is_eager=True, callback=_set_debug, help="Show where an error arose."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
common_options = options(
    click.option(
        "--archdefs", type=PATH, multiple=True, metavar="DIR", help="Look for definitions of architectures here first."
    ),
    json_option,
    debug_option,
)


def _complete_model(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """What may follow on the line for a model: names from the stores, and files beside what was typed."""
    from ..frontend.models import known_names

    head, tail = os.path.split(incomplete)
    found = [name for name in known_names() if name.startswith(incomplete)]
    with suppress(OSError):
        for path in sorted(Path(head).iterdir()):
            if path.name.startswith(tail) and (path.is_dir() or path.suffix == ".gguf"):
                found.append(f"{incomplete.removesuffix(tail)}{path.name}{'/' if path.is_dir() else ''}")
    return list(dict.fromkeys(found))


model_argument = click.argument("model", type=PATH, shell_complete=_complete_model)
optional_model_argument = click.argument("model", type=PATH, required=False, shell_complete=_complete_model)
kv_option = click.option(
    "--kv",
    type=click.Choice(CACHE_DTYPES),
    help="Type of the KV cache, which a bundle has already; default: f16, and f32 where all matrices are f32.",
)
weights_option = click.option(
    "--weights-file",
    type=PATH,
    metavar="FILE",
    help="The GGUF of a bundle that was moved away from it; of several files the first.",
)
layers_option = click.option(
    "--layers",
    type=Whole(min=1),
    metavar="N",
    help="For debugging: the model cut short behind its first N layers.",
)
threads_option = click.option(
    "--threads", type=Whole(1, MOST_THREADS), metavar="N", help="Workers; default: one per core."
)
backend_option = click.option(
    "--backend", type=click.Choice(BACKENDS), default="iree", show_default=True, help="What runs it."
)
against_option = click.option(
    "--against", type=click.Choice(["llama.cpp"]), help="Compare with it too (needs xllamacpp)."
)
tokens_option = click.option(
    "-n", "--tokens", type=Whole(min=0), default=128, show_default=True, help="Most tokens to generate."
)
stop_option = click.option(
    "--stop", type=TEXT, multiple=True, metavar="TEXT", help="End before this text; may be given several times."
)


def sampling_options(**defaults: float) -> Callable[[Command], Command]:
    """The options of sampling, by the names of `Sampling`'s fields, with a command's own defaults."""
    words = {
        "temperature": (Real(0), 0.0, "Above 0 tokens are drawn; 0 takes the likeliest."),
        "top_k": (Whole(0), 0, "Draw from so many of the likeliest tokens; 0: from all."),
        "top_p": (Real(0, 1), 1.0, "Draw from the likeliest tokens that make up this probability."),
        "min_p": (Real(0, 1), 0.0, "Draw from tokens with this part of the likeliest one's probability."),
        "repeat_penalty": (Real(1e-3, 1e3), 1.0, "Above 1 the last 64 tokens are less likely."),
        "seed": (Whole(0), 0, "The same seed gives the same text."),
    }
    return options(
        *(
            click.option(
                f"--{name.replace('_', '-')}",
                type=kind,
                default=defaults.get(name, default),
                show_default=True,
                help=text,
            )
            for name, (kind, default, text) in words.items()
        )
    )


def _settings(ctx: click.Context, _: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE by name; a value is JSON, or text where it is none.

    Raises:
        InputError: a name is the conversation's.
    """
    from ..frontend.chat.templates import check_variables

    found: dict[str, Any] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{word!r}: wanted NAME=VALUE, such as enable_thinking=false", ctx)
        try:
            found[name] = parse_json(value)
        except ValueError:
            found[name] = value
    check_variables(found)
    return found


def _templates(ctx: click.Context, _: click.Parameter, file: Path | None) -> "ChatTemplates | None":
    """The template of a file, which is read before the model is."""
    from ..frontend.chat.templates import ChatTemplates

    return ChatTemplates.from_file(file) if file else None


template_options = options(
    click.option(
        "--chat-template",
        "templates",
        type=PATH,
        metavar="FILE",
        callback=_templates,
        help="A chat template in jinja2 instead of the model's.",
    ),
    click.option(
        "--template", type=TEXT, metavar="NAME", help="Which of the model's chat templates; default: the main one."
    ),
    click.option(
        "--set",
        "variables",
        type=TEXT,
        multiple=True,
        metavar="NAME=VALUE",
        callback=_settings,
        help="A variable of the template, such as enable_thinking=false.",
    ),
)
