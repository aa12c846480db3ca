"""Kept responses over HTTP: read one, forget one."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from daemon.api.openai_fields import dump
from daemon.api.response_store import ResponseStore
from daemon.api.responses import json_response

PATH = "/v1/responses/{response_id}"


def response_routes(kept: ResponseStore) -> list[Route]:
    async def read(request: Request) -> Response:
        return json_response(kept.get(request.path_params["response_id"]).body)

    async def forget(request: Request) -> Response:
        response_id = request.path_params["response_id"]
        kept.forget(response_id)
        return json_response(dump({"id": response_id, "object": "response", "deleted": True}))

    return [Route(PATH, read, methods=["GET"]), Route(PATH, forget, methods=["DELETE"])]
