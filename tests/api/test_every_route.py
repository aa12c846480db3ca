"""What holds for every route that there is, and so for the next one, too."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from tests.api.admin_desk import PORT, TOKEN, Desk, desk
from tests.api.route_table import methods_and_paths
from tests.api.test_door import make_app
from tests.api.wires import WIRES
from tests.engine.harness import run

ROUTES = methods_and_paths()
HERE = (b"host", f"localhost:{PORT}".encode())

FOR_AGENTS = {wire.path for wire in WIRES} | {"/v1/messages/count_tokens"}
"""Routes that take a prompt: an agent has no token. They change nothing but what is cached."""

BY_SECRET = {"/v1/responses/x"}
"""Kept responses have ids that nobody can guess, and agents read them with these only."""

MARKER = "ZQXJ"


async def status_of(
    app: Any, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes = b""
) -> int:
    found: list[int] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": headers,
    }

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            found.append(message["status"])

    await app(scope, receive, send)
    [status] = found
    return status


FOREIGN = {
    "another host": [(b"host", f"evil.example:{PORT}".encode())],
    "another port": [(b"host", b"localhost:1")],
    "no host": [],
    "two hosts": [HERE, HERE],
    "another origin": [HERE, (b"origin", b"https://evil.example")],
    "no origin of its own": [HERE, (b"origin", b"null")],
    "two origins": [HERE, (b"origin", b"http://localhost"), (b"origin", b"https://evil.example")],
}


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("kind", [b"application/json", b"text/plain", None])
def test_no_route_is_reached_from_elsewhere(foreign: str, kind: bytes | None) -> None:
    """Whatever the body is called, with the token and without."""
    app = make_app()
    named = [] if kind is None else [(b"content-type", kind)]
    shown = [(b"authorization", f"Bearer {TOKEN}".encode())]

    async def statuses() -> set[int]:
        return {
            await status_of(app, method, path, [*FOREIGN[foreign], *named, *more], b"{}")
            for method, path in [*ROUTES, ("GET", "/no/such/route"), ("BREW", "/")]
            for more in ([], shown)
        }

    assert asyncio.run(statuses()) == {403}


FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]


@pytest.mark.parametrize("kind", FORMS)
def test_what_a_page_could_send_without_asking_changes_nothing(kind: str | None) -> None:
    """Such types need no leave of ours: each route refuses them, or asks for the token."""

    async def scenario() -> None:
        async with desk() as at:
            for method, path in ROUTES:
                if method in ("GET", "HEAD"):
                    continue
                headers = {} if kind is None else {"content-type": kind}
                answer = await at.ask(method, path, content=b"{}", headers=headers)
                if (method, path) == ("DELETE", "/v1/responses/x"):
                    assert answer.status_code == 404
                else:
                    assert answer.status_code in (401, 415), (method, path)

    run(scenario())


def test_whatever_is_not_an_agents_takes_the_token_to_change_anything() -> None:
    async def scenario() -> None:
        async with desk() as at:
            for method, path in ROUTES:
                if method in ("GET", "HEAD") or path in FOR_AGENTS | BY_SECRET:
                    continue
                for headers in ({}, {"authorization": f"Bearer {TOKEN}x"}):
                    refused = await at.ask(method, path, json={}, headers=headers)
                    assert refused.status_code == 401, (method, path)
                    assert refused.json()["error"]["code"] == "token_required"

    run(scenario())


async def seed(at: Desk) -> None:
    """Prompts that hold the marker, in every dialect; a session leaves its own history."""
    for wire in WIRES:
        for text in (f"one {MARKER} two", f"another {MARKER}"):
            body = wire.body(text, session_id="s", store=True)
            answer = await at.ask("POST", wire.path, json=body)
            assert answer.status_code == 200, answer.text


def test_nothing_that_can_be_read_without_the_token_shows_text_of_prompts() -> None:
    async def scenario() -> None:
        async with desk() as at:
            await seed(at)
            for method, path in ROUTES:
                if method != "GET" or path in BY_SECRET:
                    continue
                known = path.replace("/x", "/s")
                for asked in (path, known, f"{path}?id=x"):
                    answer = await at.ask("GET", asked)
                    assert MARKER not in answer.text, asked
            with_token = await at.order("GET", "/mlxd/requests")
            assert MARKER in json.dumps(with_token.json(), ensure_ascii=False)

    run(scenario())


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "PUT", "PATCH", "BREW"])
def test_methods_that_no_route_has_are_refused_everywhere(method: str) -> None:
    async def scenario() -> None:
        async with desk() as at:
            for path in {path for _, path in ROUTES}:
                answer: httpx2.Response = await at.order(method, path)
                assert answer.status_code == 405, path

    run(scenario())
