"""An API key, where one is set: asked for on every route but those that only say who is there.

It comes as `Authorization: Bearer KEY`, as OpenAI's clients send it, or as `x-api-key: KEY`, as
Anthropic's do. The daemon's own token counts as well: whoever has that may do more.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from daemon.api.authority import SCHEME, Authority
from daemon.api.door import REQUEST_ID
from daemon.api.responses import error_response
from daemon.api.wording import error_body
from daemon.errors import InvalidApiKey

OPEN_PATHS = frozenset({"/health"})
PROBED_PATHS = frozenset({"/", "/api/hello"})
"""Where agents look, by HEAD, whether anyone is at home."""


class KeyHolders:
    """ASGI middleware: 401 unless a request shows `key`, or the token of `authority`."""

    def __init__(self, app: ASGIApp, key: str, authority: Authority | None) -> None:
        self.app = app
        self._accepted = [key.encode()] + ([authority.token.encode()] if authority else [])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_open(scope) or self._has_key(scope):
            await self.app(scope, receive, send)
            return
        refusal = InvalidApiKey(
            "This daemon asks for an API key, as `Authorization: Bearer KEY` or `x-api-key: KEY`; "
            "the one that was sent, if any, is not it."
        )
        body = error_body(refusal, scope["path"], scope[REQUEST_ID])
        headers = {"www-authenticate": "Bearer"}
        await error_response(refusal, body, headers)(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        """Compares each with each, in a time that says nothing of how much is right."""
        matches = [
            hmac.compare_digest(given, accepted)
            for given in _given(scope)
            for accepted in self._accepted
        ]
        return any(matches)


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    return path in OPEN_PATHS or (scope["method"] == "HEAD" and path in PROBED_PATHS)


def _given(scope: Scope) -> Iterator[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == SCHEME.encode():
                yield key.strip()
