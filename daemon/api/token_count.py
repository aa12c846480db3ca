"""How many tokens the prompt of a request has: encoded as it would be, and not queued.

Agents ask for dozens at once. They share the places that prompts are encoded in; the engine and
its cache hear nothing of it.
"""

from __future__ import annotations

from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from daemon.api.dialect import Dialect
from daemon.api.door import REQUEST_ID, Door, Incoming
from daemon.api.encoding import prompt_of
from daemon.api.endpoint import Endpoint
from daemon.api.ignored_header import ignored_header
from daemon.api.incoming import read_json_body, watching
from daemon.api.leasing import leased
from daemon.api.responses import json_response


class CountingDialect(Dialect, Protocol):
    def count(self, tokens: int) -> bytes:
        """The answer: a prompt's length."""


class TokenCount(Endpoint):
    """An ASGI application that counts one dialect's prompts."""

    def __init__(self, dialect: CountingDialect, door: Door) -> None:
        super().__init__(dialect, door)
        self._counting = dialect

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        door = self._door
        body = await read_json_body(headers, receive, door.max_body_bytes, door.body_seconds)
        async with watching(receive) as departure:
            request = await self._parsed(body)
            incoming = Incoming(scope[REQUEST_ID], headers, len(body), departure)
            async with leased(request.model, self._door, departure) as found:
                prompt = await prompt_of(request, found.model, self._door, incoming)
        answer = self._counting.count(len(prompt))
        told = ignored_header(request.ignored)
        await json_response(answer, headers=told)(scope, receive, send)
