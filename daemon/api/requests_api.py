"""The last requests and why they read what they read: `GET /mlxd/requests`, `?id=` for one.

Anyone here may see numbers, codes and labels. What sessions sent and had stored where they left
their own history is text of prompts: it is shown to who holds the daemon's own token.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.api.authority import has_token
from daemon.api.responses import json_response
from daemon.engine import Engine
from daemon.errors import NotFound
from daemon.status import RequestList

LIST_JSON = TypeAdapter(RequestList)
ENDED = frozenset({"done", "cancelled", "failed"})


def request_routes(engine: Engine) -> Sequence[BaseRoute]:
    return (Route("/mlxd/requests", _RequestsApi(engine).list),)


class _RequestsApi:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        """Those that ended, the newest last; or the one that is named, in whatever phase."""
        shows_texts = has_token(request)
        found = self._engine.requests(with_texts=shows_texts)
        named = request.query_params.get("id")
        if named is None:
            listed = tuple(each for each in found if each.phase in ENDED)
        else:
            listed = tuple(each for each in found if each.id == named)
            if not listed:
                raise NotFound(
                    f"There is no request `{named[:200]}` among the last.", code="request_not_found"
                )
        requests = RequestList(data=listed, shows_texts=shows_texts)
        return json_response(LIST_JSON.dump_json(requests))
