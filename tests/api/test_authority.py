"""The routes that ask for the daemon's own token: who gets in, and what the others hear."""

import asyncio
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from daemon.api.authority import Authority, has_token, install, require_token
from daemon.api.responses import error_response
from daemon.errors import Unauthorized

TOKEN = "right-token"
AUTHORITY = Authority(TOKEN, "/home/someone/token")


async def guarded(request: Request) -> Response:
    require_token(request)
    return PlainTextResponse("in")


async def open_to_all(request: Request) -> Response:
    return PlainTextResponse(str(has_token(request)))


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Unauthorized)
    return error_response(error)


def ask(path: str, authority: Authority | None = AUTHORITY, **headers: Any) -> httpx2.Response:
    app = Starlette(
        routes=[Route("/guarded", guarded), Route("/open", open_to_all)],
        exception_handlers={Unauthorized: refused},
    )
    install(app, authority)

    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(send())


@pytest.mark.parametrize("spelling", ["Bearer right-token", "bearer  right-token "])
def test_who_has_the_token_gets_in(spelling: str) -> None:
    assert ask("/guarded", authorization=spelling).text == "in"
    assert ask("/open", authorization=spelling).text == "True"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer right-toke",
        "Bearer right-tokens",
        "right-token",
        "Basic right-token",
        "Bearer Bearer right-token",
        b"Bearer right-t\xc3\xb6ken",
    ],
)
def test_a_wrong_token_is_refused_and_says_where_the_right_one_is(given: str | bytes) -> None:
    answer = ask("/guarded", authorization=given)
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error["code"] == "token_required"
    assert AUTHORITY.file in error["message"]
    assert TOKEN not in answer.text
    assert ask("/open", authorization=given).text == "False"


def test_without_any_header_nobody_gets_in() -> None:
    assert ask("/guarded").status_code == 401
    assert ask("/open").text == "False"


@pytest.mark.parametrize("given", ["Bearer right-token", "Bearer ", "Bearer None", ""])
def test_a_daemon_that_has_no_token_lets_nobody_in(given: str) -> None:
    assert ask("/guarded", None, authorization=given).status_code == 401
    assert ask("/open", None, authorization=given).text == "False"
