"""The I/O of every dialect: body in, admitted, answer followed and told.

Errors that are found before the first byte have their status; a stream begins only when the
request was admitted. A client that leaves cancels its generation in whatever phase that is.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from daemon.api.admission import Admission
from daemon.api.dialect import Dialect
from daemon.api.door import LARGE_BYTES, REQUEST_ID, Door, Incoming
from daemon.api.exchange import Exchange
from daemon.api.ignored_header import ignored_header
from daemon.api.incoming import ClientLeft, read_json_body, watching
from daemon.api.leasing import leased
from daemon.api.responses import error_response, json_response, stopping
from daemon.api.reuse_header import reuse_header
from daemon.api.sse import EventStream
from daemon.chat import ChatRequest
from daemon.errors import DaemonError
from daemon.generation import Started

__all__ = ["LARGE_BYTES", "REQUEST_ID", "Door", "Endpoint"]

log = logging.getLogger(__name__)

HEADERS_SECONDS = 0.5
"""How long a stream's headers wait for its turn to come, so that they can say what is reused."""


class Endpoint:
    """An ASGI application that answers one dialect's requests."""

    def __init__(self, dialect: Dialect, door: Door) -> None:
        self._dialect = dialect
        self._door = door
        self._admission = Admission(dialect, door)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except ClientLeft:
            log.debug("a client left before its request was served")
        except DaemonError as error:
            self._door.engine.count_refusal(error.status)
            await self._refuse(error, scope, receive, send)
        except asyncio.CancelledError:  # by the server, which waits for this task to end
            await self._refuse(stopping(), scope, receive, send)

    async def _refuse(self, error: DaemonError, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._dialect.error(error, scope[REQUEST_ID])
        await error_response(error, body)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        door = self._door
        body = await read_json_body(headers, receive, door.max_body_bytes, door.body_seconds)
        async with watching(receive) as departure:
            request = await self._parsed(body)
            incoming = Incoming(scope[REQUEST_ID], headers, len(body), departure)
            del body
            async with leased(request.model, self._door, departure) as model:
                exchange = await self._admission.admit(request, model, incoming)
                departure.react(exchange.answer.generation.cancel)
                try:
                    if request.stream:
                        await self._stream(exchange, send)
                    else:
                        await self._reply(exchange, scope, receive, send)
                except DaemonError as error:  # it was not refused: it failed
                    await self._refuse(error, scope, receive, send)
                finally:
                    exchange.close()

    async def _parsed(self, body: bytes) -> ChatRequest:
        if len(body) < LARGE_BYTES:
            return self._dialect.parse(body)
        return await asyncio.to_thread(self._dialect.parse, body)

    async def _stream(self, exchange: Exchange, send: Send) -> None:
        answer, request = exchange.answer, exchange.request
        started = await answer.generation.begun(HEADERS_SECONDS)
        encoder = self._dialect.stream(exchange.envelope, request)
        stream = EventStream(send, encoder, self._door.keep_alive)
        await stream.run(answer.opening, exchange.events(), _told(request, started))

    async def _reply(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        async for _ in exchange.events():
            pass
        request = exchange.request
        told = _told(request, exchange.answer.generation.started)
        body = self._dialect.reply(exchange.completion, request)
        await json_response(body, headers=told)(scope, receive, send)


def _told(request: ChatRequest, started: Started | None) -> dict[str, str]:
    """The headers that help in debugging."""
    return {**reuse_header(started), **ignored_header(request.ignored)}
