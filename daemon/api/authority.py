"""Who may read prompts and destroy state: whoever holds the daemon's own token.

A route that shows text of prompts, or forgets what was read, begins with `require_token(request)`
(401 in JSON unless `Authorization: Bearer <token>` is right); one that only shows more to who has
it asks `has_token(request)`. What to compare with stands in the application's state, where
`build_app` puts it; without it nobody has the token. Routes for agents never ask for one: an
agent's own API key, which comes in the same header, is neither right nor wrong there.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request

from daemon.errors import Unauthorized

SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Authority:
    """The token, and the name of the file where its holders find it."""

    token: str
    file: str


def install(app: Starlette, authority: Authority | None) -> None:
    """Make `authority` the one that every route of `app` asks."""
    app.state.authority = authority


def has_token(request: Request) -> bool:
    """Whether the request carries the daemon's own token; compared in constant time."""
    authority: Authority | None = request.app.state.authority
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if authority is None or scheme.lower() != SCHEME:
        return False
    return hmac.compare_digest(given.strip().encode(), authority.token.encode())


def require_token(request: Request) -> None:
    """Raises Unauthorized, which says where the token is, unless the request carries it."""
    if has_token(request):
        return
    authority: Authority | None = request.app.state.authority
    if authority is None:
        raise Unauthorized("This daemon could not keep a token, so nobody may do this.")
    raise Unauthorized(
        "This takes the daemon's own token, as in `Authorization: Bearer TOKEN`. "
        f"It is in {authority.file}, which only the account that runs the daemon can read."
    )
