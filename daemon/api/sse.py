"""A response of server-sent events that is never silent and always says how it ended.

Headers leave at once. Comments follow each other by the clock, whatever the model is doing, and
after a longer silence comes a real event of the dialect. A failure is the stream's last event.
Frames are sent whole, so the two writers (the answer and the clock) cannot tear each other's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType

from starlette.types import Send

from daemon.api.dialect import StreamEncoder
from daemon.api.responses import stopping
from daemon.chat import Event, Opening
from daemon.errors import DaemonError, GenerationFailed

log = logging.getLogger(__name__)

COMMENT = b": reading\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Seconds without any byte before a comment, and without an event before an empty one.

    Comments are promised at most 5 s apart; the margin is for a busy machine.
    """

    comment_seconds: float = 4.0
    event_seconds: float = 15.0


class EventStream:
    """Writes one answer to one client."""

    def __init__(self, send: Send, encoder: StreamEncoder, keep_alive: KeepAlive) -> None:
        self._send = send
        self._encoder = encoder
        self._keep_alive = keep_alive
        self._last_byte = self._last_event = monotonic()

    async def run(
        self,
        opening: Opening,
        events: AsyncIterator[Event],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`headers` are sent beside those of every stream."""
        added = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
        ]
        start = {"type": "http.response.start", "status": 200, "headers": [*HEADERS, *added]}
        await self._send(start)
        await self._write(self._encoder.start(opening) or COMMENT)
        clock = asyncio.create_task(self._fill_silence())
        try:
            await self._write_all(events)
        finally:
            clock.cancel()
            with suppress(asyncio.CancelledError):
                await clock
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_all(self, events: AsyncIterator[Event]) -> None:
        try:
            async for event in events:
                await self._write(self._encoder.encode(event))
        except DaemonError as error:
            await self._write(self._encoder.fail(error))
        except asyncio.CancelledError:  # by the server, which waits for this task to end
            await self._write(self._encoder.fail(stopping()))
        except Exception:
            log.exception("an answer could not be written")
            failure = GenerationFailed("The answer could not be completed.")
            await self._write(self._encoder.fail(failure))

    async def _write(self, frames: bytes, is_event: bool = True) -> None:
        self._last_byte = monotonic()
        if is_event:
            self._last_event = self._last_byte
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def _fill_silence(self) -> None:
        while True:
            now = monotonic()
            event_due = self._last_event + self._keep_alive.event_seconds
            comment_due = self._last_byte + self._keep_alive.comment_seconds
            if event_due <= now:
                await self._write(self._encoder.silence())
            elif comment_due <= now:
                await self._write(COMMENT, is_event=False)
            else:
                await asyncio.sleep(min(event_due, comment_due) - now)
