"""Arguments and options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

MOST_THREADS = 1024


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


PATH = click.Path(path_type=Path)
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
model_argument = click.argument("model", type=PATH)
kv_option = click.option(
    "--kv",
    type=click.Choice(["f32", "f16"]),
    help="Type of the KV cache; default: f16, and f32 for a model whose matrices are all f32.",
)
weights_option = click.option(
    "--weights-file", type=PATH, metavar="FILE", help="The GGUF of a bundle that was moved away from it."
)
threads_option = click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), metavar="N", help="Workers; default: one per core."
)
backend_option = click.option(
    "--backend", type=click.Choice(["iree", "native", "xla"]), default="iree", show_default=True, help="What runs it."
)
against_option = click.option(
    "--against", type=click.Choice(["llama.cpp"]), help="Compare with it too (needs xllamacpp)."
)
