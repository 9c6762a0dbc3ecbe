"""A server in this process over a tiny model, and clients of it."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ggufc import Session
from ggufc.backends.serve.requests import Reader
from ggufc.backends.serve.server import Server, listening
from ggufc.frontend.chat.templates import ChatTemplates

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)
NAME = "tiny"


@dataclass(frozen=True)
class Running:
    """A server that runs, at a port of this machine."""

    server: Server
    port: int
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the object that a request is answered with; a body that is no bytes is sent as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            with urlopen(Request(self.url + path, data, {"content-type": "application/json"}), timeout=60) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)


@contextmanager
def running(
    session: Session, templates: str = TEMPLATE, *, parallel: int = 4, queue: int = 64, grace: float = 10.0
) -> Iterator[Running]:
    """Around a server over a session's model, which is stopped in order at the end."""
    listener = listening("127.0.0.1", 0)
    reader = Reader(NAME, session, ChatTemplates({"default": templates}))
    server = Server(reader, listener, parallel=parallel, queue=queue, grace=grace)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield Running(server, listener.getsockname()[1], thread)
    finally:
        if thread.is_alive():
            server.stop()
        thread.join(30)
        assert not thread.is_alive()


async def post(port: int, path: str, body: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which a request was sent, and no more: the cheapest client, which may vanish at any moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\nconnection: close\r\n\r\n".encode()
        + data
    )
    await writer.drain()
    return reader, writer
