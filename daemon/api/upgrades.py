"""Refuses what wants to leave HTTP: no route here speaks WebSocket.

The status tells some agents to go on over HTTP at once, where a mere 404 or 405 makes them try
again for seconds.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.api.responses import error_response
from daemon.errors import UpgradeRefused


class NoWebSocket:
    """ASGI middleware: 426 for a request to upgrade to WebSocket, on whatever path."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _wants_websocket(scope):
            refusal = UpgradeRefused("WebSocket is not spoken here; send a POST over HTTP.")
            return await error_response(refusal)(scope, receive, send)
        return await self.app(scope, receive, send)


def _wants_websocket(scope: Scope) -> bool:
    headers = scope["headers"]
    return any(
        key.lower() == b"upgrade" and b"websocket" in value.lower() for key, value in headers
    )
