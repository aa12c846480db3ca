"""The prefix cache from outside: what it holds, whether it is sound, and how to empty it.

All three are asked of the engine's thread, between two chunks. Token ids stay there: what is told
of an entry is its size and its labels. Emptying it takes the daemon's own token.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.api.authority import require_token
from daemon.api.responses import json_response
from daemon.engine import Engine, Inspection
from daemon.status import CacheCheck, CacheContents, CacheStatus

log = logging.getLogger(__name__)

CONTENTS_JSON = TypeAdapter(CacheContents)
CHECK_JSON = TypeAdapter(CacheCheck)
STATUS_JSON = TypeAdapter(CacheStatus)


def cache_routes(engine: Engine) -> Sequence[BaseRoute]:
    api = _CacheApi(engine)
    return (
        Route("/mlxd/cache", api.contents),
        Route("/mlxd/cache/check", api.check),
        Route("/mlxd/cache/clear", api.clear, methods=["POST"]),
    )


class _CacheApi:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def contents(self, request: Request) -> Response:
        return json_response(CONTENTS_JSON.dump_json(await self._engine.ask(_contents)))

    async def check(self, request: Request) -> Response:
        found = await self._engine.ask(_checked)
        if not found.is_sound:
            log.error("the prefix cache is not sound: %s", found.problem)
        return json_response(CHECK_JSON.dump_json(found))

    async def clear(self, request: Request) -> Response:
        """What running requests use stays until they end."""
        require_token(request)
        return json_response(STATUS_JSON.dump_json(await self._engine.ask(_cleared)))


def _contents(inside: Inspection) -> CacheContents:
    return CacheContents(inside.cache.status(), inside.cache.entries())


def _checked(inside: Inspection) -> CacheCheck:
    try:
        inside.cache.check()
    except AssertionError as broken:
        return CacheCheck(False, inside.cache.status(), str(broken) or "an invariant is broken")
    return CacheCheck(True, inside.cache.status())


def _cleared(inside: Inspection) -> CacheStatus:
    """Sessions forget theirs first, so that their next prompts open them anew."""
    for session in inside.sessions.statuses(inside.now):
        inside.sessions.reset(session.id)
    inside.cache.clear()
    return inside.cache.status()
