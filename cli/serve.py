"""`ggufc serve`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..frontend.errors import UnsupportedError
from ..frontend.models import find_model, stored_model
from .options import TEXT, Real, Whole, kv_option, model_argument, template_options
from .output import print_json, printable, tell
from .sessions import Opener, chat_templates, session_options, tell_notes

if TYPE_CHECKING:
    from ..frontend.chat.templates import ChatTemplates


@click.command(short_help="Serve MODEL over HTTP, with OpenAI's routes.")
@model_argument
@click.option("--host", type=TEXT, default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=Whole(0, 65535), default=8080, show_default=True, help="Port to listen at; 0: a free one.")
@click.option(
    "--name",
    type=TEXT,
    metavar="NAME",
    help="What clients call the model; default: its file's name, or what MODEL is called in a store.",
)
@click.option(
    "--parallel",
    type=Whole(1, 256),
    default=4,
    show_default=True,
    metavar="N",
    help="Texts that are continued at a time, in turn; each has its caches.",
)
@click.option(
    "--queue",
    type=Whole(0, 4096),
    default=64,
    show_default=True,
    metavar="N",
    help="Requests that may wait; one more is refused (429).",
)
@click.option(
    "--grace",
    type=Real(0, 3600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long answers may still take when the server is stopped.",
)
@template_options
@kv_option
@session_options
def serve(
    model: Path,
    host: str,
    port: int,
    name: str | None,
    parallel: int,
    queue: int,
    grace: float,
    templates: "ChatTemplates | None",
    template: str | None,
    variables: dict[str, Any],
    opener: Opener,
    as_json: bool,
) -> None:
    """Serve MODEL over HTTP: a chat page at /, and for programs OpenAI's routes /v1/chat/completions, /v1/completions,
    /v1/embeddings and /v1/models, and /health. SIGTERM and Ctrl-C stop it in order.

    \b
    Example: ggufc serve gemma/
             ggufc serve gemma/ --port 9000 --parallel 8 --queue 200
    """
    from ..backends.serve.requests import Reader
    from ..backends.serve.server import Server, listening

    with listening(host, port) as listener:
        session = opener.open(model)
        tell_notes(session.tokenizer)
        templates = templates or chat_templates(session, model)
        name = name or (str(model) if stored_model(model) else find_model(model).absolute().name)
        reader = Reader(name, session, templates, template, variables)
        if not reader.generates and not reader.embeds:
            raise UnsupportedError(
                f"{model}: no route for it: it neither generates text nor gives one embedding for a text"
            )
        if not reader.generates:
            tell("the model generates no text: there are no conversations, and of the routes /v1/embeddings alone")
        elif template or templates.sources:  # one that can't be used is told of now
            templates.source(template)
        else:
            tell(f"no conversations: {templates.missing}; give one with --chat-template FILE")
        server = Server(reader, listener, parallel=parallel, queue=queue, grace=grace)
        address, port, *_ = listener.getsockname()
        url = f"http://{f'[{address}]' if ':' in address else address}:{port}/"
        if as_json:
            print_json({"url": url, "model": reader.name})
        else:
            click.echo(f"{printable(reader.name)} at {url}; Ctrl-C stops it", err=True)
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a client that is gone
        server.run()
