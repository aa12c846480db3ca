"""Pages of named origins may ask, and read the answers: CORS, and only where it was set.

Browsers ask first (`OPTIONS`), without any key; that is answered here, before a key is asked for.
Nothing is ever said to pages of other origins, and never `*`. Answers tell what stands in our own
headers, too.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_AGE_SECONDS = 600
METHODS = b"GET, HEAD, POST, DELETE"
EXPOSED = b"x-request-id, x-mlxd-reuse, x-mlxd-ignored, retry-after"
ASKED_HEADERS = b"access-control-request-headers"
ASKED_METHOD = b"access-control-request-method"
ASKED_NETWORK = b"access-control-request-private-network"


class NamedOrigins:
    """ASGI middleware: invites the pages of `origins`, and nobody else."""

    def __init__(self, app: ASGIApp, origins: frozenset[str]) -> None:
        self.app = app
        self._origins = frozenset(origin.encode("latin-1") for origin in origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        origin = headers.get(b"origin")
        if origin not in self._origins:
            await self.app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and ASKED_METHOD in headers:
            await _invite(origin, headers, send)
        else:
            await self.app(scope, receive, _labelled(origin, send))


async def _invite(origin: bytes, asked: dict[bytes, bytes], send: Send) -> None:
    """Whatever headers such a page wants to send: it is one that was named."""
    headers = [
        *_for_origin(origin),
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", asked.get(ASKED_HEADERS, b"")),
        (b"access-control-max-age", str(MAX_AGE_SECONDS).encode()),
    ]
    if ASKED_NETWORK in asked:
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _labelled(origin: bytes, send: Send) -> Send:
    added = [*_for_origin(origin), (b"access-control-expose-headers", EXPOSED)]

    async def send_labelled(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_labelled


def _for_origin(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
