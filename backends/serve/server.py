"""Listens, serves, and stops in order."""

import signal
import socket
from types import FrameType

import uvicorn

from ...frontend.errors import InputError
from .app import Service
from .engine import Engine
from .requests import Reader

BACKLOG = 512
"""Connections that the system keeps until they are taken."""
SPARE_SECONDS = 5
"""For the last answers to leave, after the engine ended what was running."""


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InputError: the address can't be had.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise InputError(
            f"can't listen at {host} port {port}: {error.strerror}; choose another, --port 0 for any"
        ) from None


def serve(reader: Reader, listener: socket.socket, parallel: int, queue: int, grace: float) -> None:
    """Serves until SIGINT or SIGTERM comes.

    What runs then may end within `grace` seconds, what waits is refused; a second signal ends everything at once.

    Args:
        reader: of requests to the model.
        listener: where clients come.
        parallel: texts that the model continues at a time, step by step in turn; each has its caches.
        queue: requests that may wait for that; one more is answered with 429.
        grace: seconds.
    """
    engine = Engine(reader.session, parallel)
    service = Service(reader, engine, parallel + queue)
    config = uvicorn.Config(
        service.app,
        log_config=None,
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=int(grace + SPARE_SECONDS),
    )
    try:
        _Server(config, engine, grace).run([listener])
    finally:
        engine.close()


class _Server(uvicorn.Server):
    """Ends in order at a signal; the process goes on after it, and is not killed by the signal again."""

    def __init__(self, config: uvicorn.Config, engine: Engine, grace: float) -> None:
        super().__init__(config)
        self._engine, self._grace = engine, grace

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self._engine.drain(0 if self.should_exit else self._grace)
        self.should_exit = True
