"""The client's side of a request: its body, read within a limit, and its leaving, noticed at once.

Plain ASGI: whoever wraps `receive` (as Starlette's BaseHTTPMiddleware does) hides the disconnect,
so nothing in mlxd does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from starlette.datastructures import Headers
from starlette.types import Receive

from daemon.errors import BodyTooLarge, BodyTooSlow, UnsupportedMediaType

BODY_SECONDS = 60.0
"""Programs of this machine send megabytes in no time; a slow network is given its due."""


class ClientLeft(Exception):
    """The client closed the connection before its body was complete: nobody is there to answer."""


async def read_json_body(
    headers: Headers, receive: Receive, max_bytes: int, seconds: float = BODY_SECONDS
) -> bytes:
    """The whole body. Counts what arrives: a length that is announced may be absent or untrue.

    Raises BodyTooSlow when it is not complete after `seconds`, however its bytes drip.
    """
    _require_json(headers)
    announced = headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(seconds):
            return await _read(receive, max_bytes)
    except TimeoutError:
        raise BodyTooSlow(f"The body was not complete after {seconds:g} s.") from None


async def _read(receive: Receive, max_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        body += message.get("body", b"")
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _require_json(headers: Headers) -> None:
    """Also keeps web pages out: a page cannot send this type elsewhere without asking first."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType("The body has to be sent with `content-type: application/json`.")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("The body has to be sent without `content-encoding`.")


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {max_bytes} bytes, the limit of this daemon.")


class Departure:
    """Whether the client has left, and what is to be done at that moment.

    `is_over`, which any thread may read: nobody waits any more for what is done for the request.
    """

    def __init__(self) -> None:
        self.has_left = False
        self.is_over = False
        self._reaction: Callable[[], object] | None = None

    def react(self, reaction: Callable[[], object]) -> None:
        """Call `reaction` when the client leaves; at once if it already has."""
        self._reaction = reaction
        if self.has_left:
            reaction()

    def notice(self) -> None:
        self.has_left = self.is_over = True
        if self._reaction is not None:
            self._reaction()


@asynccontextmanager
async def watching(receive: Receive) -> AsyncIterator[Departure]:
    """Listen for the client's leaving while the block runs; the body has to be read by then."""
    departure = Departure()
    watcher = asyncio.create_task(_listen(receive, departure))
    try:
        yield departure
    finally:
        departure.is_over = True
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher


async def _listen(receive: Receive, departure: Departure) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    departure.notice()
