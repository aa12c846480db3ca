"""The ASGI application: routes, and one handler for everything that goes wrong.

Every answer carries its request's id, every error is JSON. Plain ASGI throughout.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from email.utils import formatdate
from uuid import uuid4

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from daemon.api.admin import Admin, Identity, nothing_known
from daemon.api.anthropic_messages import AnthropicMessages, AnthropicTokenCount
from daemon.api.api_key import KeyHolders
from daemon.api.authority import Authority, install
from daemon.api.cache_api import cache_routes
from daemon.api.cors import NamedOrigins
from daemon.api.dialect import Dialect
from daemon.api.door import REQUEST_ID, Door
from daemon.api.endpoint import Endpoint
from daemon.api.metrics import metrics_routes
from daemon.api.models_api import model_routes
from daemon.api.openai_chat import OpenAIChat
from daemon.api.openai_completions import OpenAICompletions
from daemon.api.openai_responses import OpenAIResponses
from daemon.api.requests_api import request_routes
from daemon.api.response_store import ResponseStore
from daemon.api.responses import error_response
from daemon.api.responses_api import response_routes
from daemon.api.security import Access, LocalOnly
from daemon.api.sessions_api import session_routes
from daemon.api.stop_api import stop_routes
from daemon.api.token_count import CountingDialect, TokenCount
from daemon.api.upgrades import NoWebSocket
from daemon.api.wording import error_body
from daemon.errors import BadRequest, DaemonError, MethodNotAllowed, NotFound
from daemon.status import MachineStatus

log = logging.getLogger(__name__)

DIALECTS: tuple[Dialect, ...] = (OpenAIChat(), OpenAICompletions(), AnthropicMessages())
COUNTING: tuple[CountingDialect, ...] = (AnthropicTokenCount(),)


def new_request_id() -> str:
    return f"req_{uuid4().hex}"


def build_app(
    door: Door,
    identity: Identity,
    new_id: Callable[[], str] = new_request_id,
    authority: Authority | None = None,
    stop: Callable[[], None] = lambda: None,
    machine: Callable[[], Awaitable[MachineStatus]] = nothing_known,
    access: Access = Access(),  # noqa: B008  (frozen)
) -> ASGIApp:
    """Without `authority` the routes that ask for the daemon's own token are closed. `stop` ends
    the daemon, once what was asked is answered. `machine` tells how the machine is doing. `access`
    is who may speak to it at all."""
    routed = Starlette(
        routes=_routes(door, Admin(door, identity, machine), stop),
        exception_handlers={
            DaemonError: _on_error,
            HTTPException: _on_http_exception,
            Exception: _on_unexpected,
        },
    )
    routed.router.redirect_slashes = False
    install(routed, authority)
    return RequestIds(_guarded(NoWebSocket(routed), identity.port, access, authority), new_id)


def _routes(door: Door, admin: Admin, stop: Callable[[], None]) -> Sequence[BaseRoute]:
    kept = ResponseStore()
    dialects = (*DIALECTS, OpenAIResponses(kept))
    return [
        *(Route(each.path, Endpoint(each, door), methods=["POST"]) for each in dialects),
        *(Route(each.path, TokenCount(each, door), methods=["POST"]) for each in COUNTING),
        Route("/v1/models", admin.models),
        Route("/v1/models/{model_id:path}", admin.model),
        Route("/health", admin.health),
        Route("/mlxd/status", admin.status),
        *session_routes(door.engine),
        *cache_routes(door.engine),
        *metrics_routes(door.engine),
        *request_routes(door.engine),
        *response_routes(kept),
        *model_routes(door),
        *stop_routes(stop),
        Route("/", admin.root),
        Route("/api/hello", admin.root),
    ]


def _guarded(app: ASGIApp, port: int, access: Access, authority: Authority | None) -> ASGIApp:
    """What was not set costs a request nothing."""
    if access.api_key is not None:
        app = KeyHolders(app, access.api_key, authority)
    if access.origins:
        app = NamedOrigins(app, access.origins)
    return LocalOnly(app, port, access)


class RequestIds:
    """ASGI middleware: gives each request an id, and its answer the id and the date."""

    def __init__(self, app: ASGIApp, new_id: Callable[[], str]) -> None:
        self.app = app
        self._new_id = new_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = self._new_id()
        added = [
            (b"x-request-id", request_id.encode()),
            (b"request-id", request_id.encode()),  # as Anthropic's clients look for it
            (b"date", formatdate(usegmt=True).encode()),
        ]

        async def send_labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self.app({**scope, REQUEST_ID: request_id}, receive, send_labelled)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DaemonError)
    return _worded(error, request)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or not with this method."""
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:200]
    if error.status_code == 404:
        return _worded(NotFound(f"There is no `{path}` here.", code="not_found"), request)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"`{path}` takes {allowed}, not {request.method}."
        return _worded(MethodNotAllowed(message), request, {"allow": allowed})
    return _worded(BadRequest(str(error.detail)), request)


async def _on_unexpected(request: Request, error: Exception) -> Response:
    """The server logs the exception itself once this has been answered."""
    words = "Something went wrong inside the daemon; its log says what."
    return _worded(DaemonError(words), request)


def _worded(
    error: DaemonError, request: Request, headers: Mapping[str, str] | None = None
) -> Response:
    body = error_body(error, request.scope["path"], request.scope[REQUEST_ID])
    return error_response(error, body, headers)
