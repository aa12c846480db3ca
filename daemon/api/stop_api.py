"""A daemon that ends because it was asked to: what `mlxd stop` does, so that the exit is clean.

Takes the daemon's own token. The answer comes before the end: what runs has its grace, as after
SIGTERM.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.api.authority import require_token
from daemon.api.openai_fields import dump
from daemon.api.responses import json_response

log = logging.getLogger(__name__)


def stop_routes(stop: Callable[[], None]) -> Sequence[BaseRoute]:
    async def end(request: Request) -> Response:
        require_token(request)
        log.info("asked to stop")
        stop()
        return json_response(dump({"stopping": True}))

    return (Route("/mlxd/stop", end, methods=["POST"]),)
