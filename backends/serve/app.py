"""The routes: HTTP in, jobs for the scheduler, HTTP out."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...frontend.errors import DamagedModelError, GgufcError
from ...frontend.given import parse_json
from .answers import ChatForm, Form, Usage, embeddings_object, error_object, model_object
from .generation import Piece, embeddings, generation
from .requests import Completion, Reader, RequestError
from .scheduler import Job, Scheduler, Steps, StoppedError

MOST_BODY = 16 << 20
"""Bytes of a request's body."""
BODY_SECONDS = 60.0
"""How long a client may take to send it."""
MOST_COMING = 8 * MOST_BODY
"""Bytes of bodies that have come in part; of a request that would exceed it, the client is told to come again."""
READERS = 4
"""Requests that are read at a time, so that a long one keeps no short one waiting."""
RETRY_SECONDS = 1
PAGE = Path(__file__).with_name("page.html")
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_log = logging.getLogger("ggufc")
_Read = TypeVar("_Read")


class Service:
    """One model behind HTTP.

    Attributes:
        app: the ASGI application.
    """

    def __init__(self, reader: Reader, scheduler: Scheduler, most_requests: int) -> None:
        """Makes the routes.

        Args:
            reader: of requests to the model.
            scheduler: which runs it; whoever made it closes it.
            most_requests: that are read, waiting or answered at a time; one more is told to come again (429). One whose
                body hasn't come is none of them yet, so that nobody who sends slowly takes another's place.
        """
        self._reader, self._scheduler, self._most = reader, scheduler, most_requests
        self._created = int(time.time())
        self._requests = self._coming = 0
        # reading renders templates and cuts texts into tokens, and nobody's stream waits for it
        self._readers = ThreadPoolExecutor(READERS, "ggufc requests")
        self.app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/v1/chat/completions", _Counted(self, self._chat), methods=["POST"]),
                Route("/v1/completions", _Counted(self, self._text), methods=["POST"]),
                Route("/v1/embeddings", _Counted(self, self._embeddings), methods=["POST"]),
            ],
            exception_handlers={HTTPException: _no_route},
        )

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Around a request, while it is one of those that the server has at a time.

        Raises:
            RequestError: there are as many as there may be, or the server stops.
        """
        self._check_room()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def _check_room(self) -> None:
        if self._scheduler.stopping:
            raise RequestError(503, "the server stops", "stopping")
        if self._requests >= self._most:
            raise RequestError(429, f"{self._requests} requests are being served or wait; try again", "queue_full")

    async def body(self, request: Request) -> bytes:
        """A request's body, once all of it is there.

        Raises:
            ClientDisconnect: its client goes.
            RequestError: it is too long or too slow, or the server is full.
        """
        self._check_room()
        raw = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    raw += part
                    self._coming += len(part)
                    if len(raw) > MOST_BODY:
                        raise RequestError(413, f"the body is longer than {MOST_BODY} bytes")
                    if self._coming > MOST_COMING:
                        raise RequestError(429, "too many long requests come at once; try again", "queue_full")
        except TimeoutError:
            raise RequestError(408, f"the body did not come within {BODY_SECONDS:g} seconds") from None
        finally:
            self._coming -= len(raw)
        return bytes(raw)

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(PAGE.read_bytes(), headers={"content-security-policy": PAGE_POLICY})

    async def _health(self, request: Request) -> Response:
        """Whether it serves, how many requests there are, and how many texts the model is at and has before it."""
        stopping = self._scheduler.stopping
        state = {
            "status": "stopping" if stopping else "ok",
            "model": self._reader.name,
            "requests": self._requests,
            "running": self._scheduler.running,
            "waiting": self._scheduler.waiting,
        }
        return JSONResponse(state, 503 if stopping else 200)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model_object(self._reader.name, self._created)]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._reader.name:
            return error_response(RequestError(404, f"no model {name[:80]!r}", "model_not_found", "model"))
        return JSONResponse(model_object(name, self._created))

    async def _chat(self, request: Request, body: bytes) -> Response:
        return await self._completion(request, await self._read(body, self._reader.chat), ChatForm)

    async def _text(self, request: Request, body: bytes) -> Response:
        return await self._completion(request, await self._read(body, self._reader.text), Form)

    async def _embeddings(self, request: Request, body: bytes) -> Response:
        asked = await self._read(body, self._reader.embeddings)
        found: list[np.ndarray] = []
        async with self._running(request, [partial(embeddings, asked.texts)]) as events:
            async for _, row in events:
                found.append(row)
        tokens = sum(map(len, asked.texts))
        return JSONResponse(embeddings_object(self._reader.name, found, asked.base64, tokens))

    async def _completion(self, request: Request, asked: Completion, form_of: type[Form]) -> Response:
        form = form_of(self._reader.name, self._reader.session.tokenizer, asked.asked[0].top is not None)
        if asked.stream:
            stream = self._stream(request, asked, form)
            return _Events(await anext(stream), stream)
        choices: list[list[Piece]] = [[] for _ in asked.asked]
        async with self._running(request, [partial(generation, one) for one in asked.asked]) as events:
            async for n, piece in events:
                choices[n].append(piece)
        if not all(pieces and pieces[-1].stop for pieces in choices):
            raise ClientDisconnect
        usage = Usage(asked.prompt_tokens, sum(pieces[-1].tokens for pieces in choices))
        return JSONResponse(form.whole(choices, usage))

    async def _stream(self, request: Request, asked: Completion, form: Form) -> AsyncGenerator[str, None]:
        """The events of a stream, the first when the model has begun. An error after that is the last of them."""
        tokens: list[int] = []
        try:
            async with self._running(request, [partial(generation, one) for one in asked.asked]) as events:
                async for n, piece in events:
                    if not tokens:
                        tokens = [0] * len(asked.asked)
                        for begin in form.begins(len(asked.asked)):
                            yield _event(begin)
                    tokens[n] = piece.tokens
                    if piece.text or piece.chances or piece.stop:
                        yield _event(form.chunk(n, piece))
        except Exception as error:
            if not tokens:
                raise
            refused = as_request_error(error)
            yield _event(error_object(str(refused), refused.status, refused.code))
            return
        if asked.usage:
            yield _event(form.counted(Usage(asked.prompt_tokens, sum(tokens))))
        yield "data: [DONE]\n\n"

    async def _read(self, body: bytes, read: Callable[[Any], _Read]) -> _Read:
        """A request's body as what it asks for.

        Raises:
            RequestError, GgufcError: it can't be served.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, lambda: read(_parsed(body)))

    @asynccontextmanager
    async def _running(
        self, request: Request, works: Sequence[Callable[..., Steps]]
    ) -> AsyncIterator[AsyncIterator[tuple[int, Any]]]:
        """Around what the scheduler gives for a request: the number of a job and what it yielded, as it comes.

        Jobs end when the block is left, and when the client goes.
        """
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()

        def tell(n: int, found: Any) -> None:
            with suppress(RuntimeError):  # the loop has ended, and everybody is gone
                loop.call_soon_threadsafe(events.put_nowait, (n, found))

        jobs = [Job(work, partial(tell, n)) for n, work in enumerate(works)]

        def end() -> None:
            for job in jobs:
                job.unwanted.set()

        async def until_gone() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            end()

        async def told() -> AsyncGenerator[tuple[int, Any], None]:
            left = len(jobs)
            while left:
                n, found = await events.get()
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield n, found

        watcher = asyncio.ensure_future(until_gone())
        for job in jobs:
            self._scheduler.submit(job)
        try:
            async with aclosing(told()) as found:
                yield found
        finally:
            end()
            watcher.cancel()


class _Events(StreamingResponse):
    """A stream of events, which ends with its answer, whatever ends that."""

    def __init__(self, first: str, others: AsyncGenerator[str, None]) -> None:
        self._first, self._others = first, others
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(self._all(), media_type="text/event-stream", headers=headers)

    async def _all(self) -> AsyncIterator[str]:
        yield self._first
        async for event in self._others:
            yield event

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._others):
            await super().__call__(scope, receive, send)


class _Counted:
    """A route's ASGI application, whose request counts from its body's last byte to the answer's."""

    def __init__(self, service: Service, answer: Callable[[Request, bytes], Awaitable[Response]]) -> None:
        self._service, self._answer = service, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await self._service.body(request)
            async with self._service.admitted():
                try:
                    response = await self._answer(request, body)
                except Exception as error:
                    response = error_response(as_request_error(error))
                await response(scope, receive, send)
        except (RequestError, ClientDisconnect) as error:
            await error_response(as_request_error(error))(scope, receive, send)


def as_request_error(error: Exception) -> RequestError:
    """What a client is told of an error; one that nobody expected goes to the log."""
    match error:
        case RequestError():
            return error
        case DamagedModelError():
            return RequestError(500, str(error), "damaged_model")
        case GgufcError():
            return RequestError(400, str(error))
        case StoppedError():
            return RequestError(503, "the server stops", "stopping")
        case ClientDisconnect():
            return RequestError(499, "the client is gone")
    _log.error("a fault of ggufc while it served a request", exc_info=error)
    return RequestError(500, f"a fault of ggufc, {type(error).__name__}; the server's log has more")


def error_response(error: RequestError) -> Response:
    """An error as an answer."""
    headers = {"retry-after": str(RETRY_SECONDS)} if error.status in (429, 503) else None
    return JSONResponse(error_object(str(error), error.status, error.code, error.param), error.status, headers)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:80]}: {error.detail}"
    return JSONResponse(error_object(message, error.status_code), error.status_code, error.headers)


def _parsed(raw: bytes) -> Any:
    try:
        return parse_json(raw)
    except ValueError as error:
        raise RequestError(400, f"the body is no JSON: {error}") from None


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'), allow_nan=False)}\n\n"
