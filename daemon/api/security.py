"""Who may speak to the daemon: this machine's own programs, and no web page.

Checked in plain ASGI before routing, on every route. A page that was rebound to this address
still carries its own name in `Host`, a page elsewhere carries its origin; both are refused, and
no CORS header ever invites one. Other accounts of the machine are let in; what they may not do
asks for the daemon's own token (`authority`).
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.api.responses import error_response
from daemon.errors import Forbidden

DEFAULT_PORT = 80


class LocalOnly:
    """ASGI middleware: 403 unless `Host` is a loopback name with `port` and `Origin` is local."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Forbidden | None:
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or not is_local_authority(hosts[0], self._port):
            return Forbidden(
                f"The Host header has to name this machine, as in `localhost:{self._port}`.",
                code="foreign_host",
            )
        if not all(map(is_local_origin, _values(scope, b"origin"))):
            return Forbidden("Web pages of other origins are not served.", code="foreign_origin")
        return None


def is_local_authority(authority: str, port: int) -> bool:
    """Whether `host:port` is a loopback name or address with exactly this port."""
    try:
        parts = urlsplit(f"//{authority}")
        named_port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        return False
    if parts.netloc != authority or parts.username is not None:
        return False
    return named_port == port and is_loopback(parts.hostname or "")


def is_local_origin(origin: str) -> bool:
    """Whether an origin is served by this machine, by whatever port. `null` is not."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a host name or a literal address (without brackets) means this machine."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
