"""Listens, serves, and stops in order."""

import logging
import math
import socket
from types import FrameType

import uvicorn

from ...frontend.errors import InputError
from .app import Service
from .requests import Reader
from .scheduler import Scheduler

BACKLOG = 512
"""Connections that the system keeps until they are taken."""
READ_SECONDS = 60
"""How long a client may leave what it was sent unread; then its connection ends, so that it takes nobody's place."""
SPARE_SECONDS = 5
"""For the last answers to leave, after the scheduler ended what was running."""

_http_log = logging.getLogger("uvicorn.error")


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InputError: the address can't be had.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise InputError(f"can't listen at {host}: {error.strerror or error}; choose another --host") from None
    try:
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"can't listen at {host} port {port}: {reason}; choose another, --port 0 for any") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, READ_SECONDS * 1000)
    return listener


class Server:
    """Serves one model until it is told to stop."""

    def __init__(self, reader: Reader, listener: socket.socket, *, parallel: int, queue: int, grace: float) -> None:
        """Makes a server that `run` starts.

        Args:
            reader: of requests to the model.
            listener: where clients come.
            parallel: texts that the model continues at a time, step by step in turn; each has its caches.
            queue: requests that may wait for that; one more is answered with 429.
            grace: seconds that running answers may still take after `stop`.

        Raises:
            InputError: `grace` is no finite number from 0.
        """
        if not 0 <= grace < math.inf:
            raise InputError(f"grace {grace}: wanted a finite number of seconds from 0")
        self._listener, self._grace = listener, grace
        self._scheduler = Scheduler(reader.session, parallel)
        config = uvicorn.Config(
            Service(reader, self._scheduler, parallel + queue).app,
            log_config=None,
            log_level="error",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=int(grace + SPARE_SECONDS),
        )
        self._http = _Http(config, self)

    def run(self) -> None:
        """Serves until `stop`, which SIGINT and SIGTERM call where this is the main thread."""
        level = _http_log.level
        try:
            self._http.run([self._listener])
        finally:
            self._scheduler.close()
            _http_log.setLevel(level)

    def stop(self) -> None:
        """Stops in order: what runs may end, what waits is refused; the second time, at once."""
        self._scheduler.drain(0 if self._http.should_exit else self._grace)
        _http_log.setLevel(logging.CRITICAL)  # who reads nothing is cut off, which is no error
        self._http.force_exit = self._http.should_exit
        self._http.should_exit = True


class _Http(uvicorn.Server):
    """The process goes on after a signal ended the server, and is not killed by it again."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._server.stop()
