"""A client's connection: HTTP/1.1 as uvicorn speaks it, within bounds of time and number.

What cannot be parsed is refused in the form of every other error. A connection that does not get a
request's head together, or goes on sending the body of a request that was answered, is closed like
one that is idle: uvicorn would wait for it without end, and each holds one of the files that a
process may open. Where too many are open, the least useful of those that idle makes room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from daemon.api.openai_fields import dump, error_fields
from daemon.errors import BadRequest

FAVOUR_SECONDS = 60.0
"""By so much an agent's pooled connection outlives those that never asked for anything."""


class JsonProtocol(H11Protocol):
    """`most_connections` are open at once; None: as many as there can be."""

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, most_connections: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most_connections = most_connections
        self.last_used = self.loop.time()

    @property
    def is_idle(self) -> bool:
        """Nobody waits for an answer on it."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def usefulness(self) -> float:
        """When it was used, or would have been: who asked before is likely to ask again."""
        return self.last_used if self.cycle is None else self.last_used + FAVOUR_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        most = self._most_connections
        if most is not None and len(self.connections) > most:
            _make_room(self.connections, most)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._drop_deadline()

    def on_response_complete(self) -> None:
        self.last_used = self.loop.time()
        super().on_response_complete()
        if self._goes_on_for_nobody():
            self._watch()

    def _watch(self) -> None:
        """The deadline counts from the connection's or the head's first byte, not from its last."""
        if self.conn.their_state is not h11.IDLE and not self._goes_on_for_nobody():
            self._drop_deadline()
        elif self._deadline is None:
            close = self.timeout_keep_alive_handler
            self._deadline = self.loop.call_later(self.timeout_keep_alive, close)

    def _goes_on_for_nobody(self) -> bool:
        """The request was answered before its body was complete."""
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _should_upgrade(self) -> bool:
        """Never: `api/upgrades` answers. uvicorn would log what to install for it."""
        return False

    def send_400_response(self, msg: str) -> None:
        body = dump(error_fields(BadRequest(msg, code="invalid_http")))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _make_room(connections: Iterable[Any], most: int) -> None:
    """Close the idle ones that were not used for longest, those first that never asked."""
    open_ones = [each for each in connections if not each.transport.is_closing()]
    idle = sorted((each for each in open_ones if each.is_idle), key=lambda each: each.usefulness)
    for each in idle[: max(0, len(open_ones) - most)]:
        each.timeout_keep_alive_handler()
