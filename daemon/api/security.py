"""Who may speak to the daemon: this machine's own programs, and no web page.

Checked in plain ASGI before routing, on every route. A page that was rebound to this address
still carries its own name in `Host`, a page elsewhere carries its origin; both are refused. Only
pages of origins that were named are let in (`cors`). Other accounts of the machine are let in
unless an API key is set (`api_key`); what they may not do asks for the daemon's own token
(`authority`).

A request through the Unix socket may name any host: no page can send one there.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.api.responses import error_response
from daemon.errors import Forbidden

DEFAULT_PORT = 80


@dataclass(frozen=True, slots=True)
class Access:
    """Who is let in beyond this machine's own programs, and what they all have to show.

    `origins` are pages that may ask and read, as browsers write them. `remote_names` are this
    machine's names, in lower case, where other machines may ask; None where they may not.
    """

    api_key: str | None = None
    origins: frozenset[str] = frozenset()
    remote_names: frozenset[str] | None = None


class LocalOnly:
    """ASGI middleware: 403 unless `Host` means this machine with `port` and `Origin` is let in."""

    def __init__(self, app: ASGIApp, port: int, access: Access = Access()) -> None:
        self.app = app
        self._port = port
        self._access = access
        self._last_known: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await error_response(refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Forbidden | None:
        hosts = [value for key, value in scope["headers"] if key == b"host"]
        if not _is_unix(scope) and (len(hosts) != 1 or not self._is_known(hosts[0])):
            return Forbidden(
                f"The Host header has to name this machine, as in `localhost:{self._port}`.",
                code="foreign_host",
            )
        origins = [value for key, value in scope["headers"] if key == b"origin"]
        if not all(self._may_ask(origin.decode("latin-1")) for origin in origins):
            return Forbidden("Web pages of other origins are not served.", code="foreign_origin")
        return None

    def _is_known(self, authority: bytes) -> bool:
        """An agent names the same host each time: the last that was let in is not taken apart."""
        if authority != self._last_known:
            if not self._is_this_machine(authority.decode("latin-1")):
                return False
            self._last_known = authority
        return True

    def _is_this_machine(self, authority: str) -> bool:
        """From elsewhere by this machine's names, or by an address: neither can be rebound."""
        names = self._access.remote_names
        if names is None:
            return is_local_authority(authority, self._port)
        host = host_with_port(authority, self._port)
        return host is not None and (is_loopback(host) or is_address(host) or host in names)

    def _may_ask(self, origin: str) -> bool:
        return is_local_origin(origin) or origin in self._access.origins


def is_local_authority(authority: str, port: int) -> bool:
    """Whether `host:port` is a loopback name or address with exactly this port."""
    return is_loopback(host_with_port(authority, port) or "")


def host_with_port(authority: str, port: int) -> str | None:
    """The host of `host:port` in lower case; None if it is no such thing, or another port."""
    try:
        parts = urlsplit(f"//{authority}")
        named_port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        return None
    if parts.netloc != authority or parts.username is not None or named_port != port:
        return None
    return parts.hostname


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


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_unix(scope: Scope) -> bool:
    """Whether the request came by a Unix socket, whose address has no port."""
    server = scope.get("server")
    return server is not None and server[1] is None
