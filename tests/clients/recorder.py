"""An ASGI middleware that writes down every request and its answer, one JSON line each.

The daemon never does: this stands before it in these tests only.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Recorder:
    """Passes everything on as it is. A line is written when the request is over."""

    def __init__(self, app: ASGIApp, journal: Path) -> None:
        self._app = app
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        seen = _Seen()
        try:
            await self._app(scope, seen.receiving(receive), seen.sending(send))
        finally:
            with self._journal.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(seen.line(scope)) + "\n")


class _Seen:
    def __init__(self) -> None:
        self.arrived = time.time()
        self.body = b""
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.answer = b""

    def receiving(self, receive: Receive) -> Receive:
        async def received() -> Message:
            message = await receive()
            self.body += message.get("body", b"")
            return message

        return received

    def sending(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = _text(message.get("headers", ()))
            self.answer += message.get("body", b"")
            await send(message)

        return sent

    def line(self, scope: Scope) -> dict[str, Any]:
        return {
            "arrived": self.arrived,
            "seconds": time.time() - self.arrived,
            "method": scope["method"],
            "path": scope["path"],
            "headers": _text(scope["headers"]),
            "body": self.body.decode("utf-8", "replace"),
            "status": self.status,
            "answer_headers": self.headers,
            "answer": self.answer.decode("utf-8", "replace"),
        }


def _text(headers: Any) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
