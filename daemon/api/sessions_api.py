"""The open sessions: list, look, forget. Ids are what clients send, so a path may hold anything.

To look is free; what forgets takes the daemon's own token.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.api.authority import require_token
from daemon.api.openai_fields import dump
from daemon.api.responses import json_response
from daemon.engine import Engine, Inspection
from daemon.errors import NotFound
from daemon.status import SessionList, SessionStatus

LIST_JSON = TypeAdapter(SessionList)
SESSION_JSON = TypeAdapter(SessionStatus)


def session_routes(engine: Engine) -> Sequence[BaseRoute]:
    api = _SessionsApi(engine)
    return (
        Route("/v1/sessions", api.list),
        Route("/v1/sessions/{session:path}/reset", api.reset, methods=["POST"]),
        Route("/v1/sessions/{session:path}", api.one),
        Route("/v1/sessions/{session:path}", api.delete, methods=["DELETE"]),
    )


class _SessionsApi:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self, request: Request) -> Response:
        sessions = SessionList(self._engine.status().sessions)
        return json_response(LIST_JSON.dump_json(sessions))

    async def one(self, request: Request) -> Response:
        """As of the latest status: to look never waits for the model."""
        session = request.path_params["session"]
        for found in self._engine.status().sessions:
            if found.id == session:
                return json_response(SESSION_JSON.dump_json(found))
        raise NotFound(f"There is no session `{session[:200]}`.", code="session_not_found")

    async def reset(self, request: Request) -> Response:
        """Forget its state, keep the session and its counters."""
        require_token(request)
        session = request.path_params["session"]

        def reset(inside: Inspection) -> SessionStatus:
            inside.sessions.reset(session)
            return inside.sessions.status(session, inside.now)

        return json_response(SESSION_JSON.dump_json(await self._engine.ask(reset, session=session)))

    async def delete(self, request: Request) -> Response:
        require_token(request)
        session = request.path_params["session"]
        await self._engine.ask(lambda inside: inside.sessions.delete(session), session=session)
        return json_response(dump({"id": session, "object": "session", "deleted": True}))
