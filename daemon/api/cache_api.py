"""The prefix cache from outside: what it holds, whether it is sound, and how to empty it.

All three are asked of the engine's thread, between two chunks. Token ids stay there: what is told
of an entry is its size and its labels. Emptying it takes the daemon's own token. So do all changes
of what is on disk, and its check, which reads everything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.api.authority import require_token
from daemon.api.responses import json_response
from daemon.disk_status import DiskCheck, DiskContents
from daemon.engine import Engine, Inspection
from daemon.errors import ModelUnavailable
from daemon.status import CacheCheck, CacheContents, CacheStatus

log = logging.getLogger(__name__)

CONTENTS_JSON = TypeAdapter(CacheContents)
CHECK_JSON = TypeAdapter(CacheCheck)
STATUS_JSON = TypeAdapter(CacheStatus)
DISK_JSON = TypeAdapter(DiskContents)
DISK_CHECK_JSON = TypeAdapter(DiskCheck)


def cache_routes(engine: Engine) -> Sequence[BaseRoute]:
    api = _CacheApi(engine)
    return (
        Route("/mlxd/cache", api.contents),
        Route("/mlxd/cache/check", api.check),
        Route("/mlxd/cache/clear", api.clear, methods=["POST"]),
        Route("/mlxd/cache/disk", api.disk),
        Route("/mlxd/cache/disk/check", api.check_disk, methods=["POST"]),
        Route("/mlxd/cache/disk/clear", api.clear_disk, methods=["POST"]),
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

    async def disk(self, request: Request) -> Response:
        return json_response(DISK_JSON.dump_json(await self._engine.disk_contents()))

    async def check_disk(self, request: Request) -> Response:
        """What is found to be wrong is gone afterwards."""
        require_token(request)
        found = await self._engine.check_disk()
        for bad in found.bad:
            log.error("the disk cache is not sound: %s", bad)
        return json_response(DISK_CHECK_JSON.dump_json(found))

    async def clear_disk(self, request: Request) -> Response:
        """In memory as well: what is kept there would be on disk again at the next idle moment."""
        require_token(request)
        with suppress(ModelUnavailable):  # there is no tree yet
            await self._engine.ask_each(_cleared)
        await self._engine.clear_disk()
        return json_response(DISK_JSON.dump_json(await self._engine.disk_contents()))


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
