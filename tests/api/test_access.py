"""Who is let in beyond this machine's programs, and what everybody has to show, as it is set."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.authority import Authority
from daemon.api.door import Door
from daemon.api.security import Access
from daemon.engine import Engine
from daemon.prefix_cache.cache import PrefixCache
from tests.api.test_door import CHAT, PORT, ROUTES, make_app
from tests.fakes import ScriptedModel

KEY = "0123456789abcdef-key"
TOKEN = "the-daemon's-own"
PAGE = "https://chat.example"
KEYED = Access(api_key=KEY)
OPEN_TO_PAGE = Access(origins=frozenset({PAGE, "chrome-extension://abcdef"}))
REMOTE = Access(api_key=KEY, remote_names=frozenset({"studio.local", "studio"}))


def ask(
    access: Access,
    method: str,
    path: str,
    headers: Mapping[str, Any] | None = None,
    **options: Any,
) -> httpx2.Response:
    """An application whose engine was never started."""

    def make_cache(info: Any) -> PrefixCache:
        return PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=0)

    async def send() -> httpx2.Response:
        app = build_app(
            Door(Engine(ScriptedModel, make_cache=make_cache)),
            Identity.of_new_run("this-run", PORT),
            authority=Authority(TOKEN, "/home/someone/token"),
            access=access,
        )
        url = f"http://localhost:{PORT}"
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=url) as client:
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(send())


def needs_token(path: str) -> bool:
    return path.endswith("/clear") or path.startswith("/v1/sessions/")


OPEN = {("GET", "/health"), ("HEAD", "/health"), ("HEAD", "/"), ("HEAD", "/api/hello")}


@pytest.mark.parametrize(("method", "path"), [*ROUTES, *sorted(OPEN), ("HEAD", "/mlxd/status")])
def test_with_a_key_set_every_route_asks_for_it_but_those_that_say_who_is_there(
    method: str, path: str
) -> None:
    without = ask(KEYED, method, path)
    assert (without.status_code == 401) is ((method, path) not in OPEN)
    wrong = ask(KEYED, method, path, {"authorization": f"Bearer {KEY}x", "x-api-key": KEY[:-1]})
    assert wrong.status_code == without.status_code
    assert ask(KEYED, method, path, {"x-api-key": KEY}).status_code != 401 or needs_token(path)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"X-API-Key": f" {KEY}"},
        {"x-api-key": KEY, "authorization": "Bearer something-else"},
        {"authorization": f"Bearer {TOKEN}"},
    ],
)
def test_the_key_comes_as_either_vendor_s_clients_send_it(headers: Mapping[str, str]) -> None:
    assert ask(KEYED, "GET", "/mlxd/status", headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer"},
        {"x-api-key": ""},
        {"x-api-key": f"Bearer {KEY}"},
        {"x-api-key": KEY.upper()},
        {"x-api-key": b"\xff\xfe"},
        {"cookie": f"x-api-key={KEY}"},
    ],
)
def test_what_only_resembles_the_key_is_refused(headers: Mapping[str, Any]) -> None:
    assert ask(KEYED, "GET", "/mlxd/status", headers).status_code == 401


def test_a_refusal_is_in_the_form_of_the_api_and_says_how_the_key_is_sent() -> None:
    openai = ask(KEYED, "POST", CHAT, json={})
    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert "x-api-key" in openai.json()["error"]["message"]
    assert openai.headers["www-authenticate"] == "Bearer"
    assert KEY not in openai.text
    anthropic = ask(KEYED, "POST", "/v1/messages", json={})
    assert (anthropic.status_code, anthropic.json()["type"]) == (401, "error")
    assert anthropic.json()["error"]["type"] == "authentication_error"
    assert anthropic.headers["request-id"] == anthropic.json()["request_id"]


def test_a_key_does_not_open_what_takes_the_daemon_s_own_token() -> None:
    refused = ask(KEYED, "POST", "/mlxd/stop", {"authorization": f"Bearer {KEY}"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "token_required")
    for shown in ({}, {"x-api-key": KEY}):
        headers = {"authorization": f"Bearer {TOKEN}", **shown}
        assert ask(KEYED, "POST", "/mlxd/stop", headers).status_code == 200


def test_a_web_page_is_refused_even_with_the_key() -> None:
    headers = {"x-api-key": KEY, "origin": "https://evil.example"}
    assert ask(KEYED, "GET", "/mlxd/status", headers).status_code == 403


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_named_page_may_read_what_it_asked_for(method: str, path: str) -> None:
    answer = ask(OPEN_TO_PAGE, method, path, {"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["vary"] == "origin"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "https://chat.example.evil.example",
        "http://chat.example",
        "https://chat.example:444",
        "https://chat.example/",
        "https://CHAT.example",
        "chrome-extension://other",
        "null",
        "*",
    ],
)
def test_pages_that_only_resemble_a_named_one_are_refused(origin: str) -> None:
    for method in ("GET", "OPTIONS"):
        asked = {"origin": origin, "access-control-request-method": "POST"}
        answer = ask(OPEN_TO_PAGE, method, CHAT, asked)
        assert answer.status_code == 403
        assert not [name for name in answer.headers if name.startswith("access-control")]


def test_this_machine_s_other_pages_are_let_in_but_not_invited() -> None:
    answer = ask(OPEN_TO_PAGE, "GET", "/", {"origin": "http://localhost:3000"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_browser_s_question_is_answered_without_a_key_and_promises_no_more_than_it_asked() -> (
    None
):
    access = Access(api_key=KEY, origins=frozenset({PAGE}))
    asked = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    invited = ask(access, "OPTIONS", CHAT, asked)
    assert (invited.status_code, invited.text) == (204, "")
    assert invited.headers["access-control-allow-origin"] == PAGE
    assert "POST" in invited.headers["access-control-allow-methods"]
    assert invited.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-private-network" not in invited.headers
    local = {**asked, "access-control-request-private-network": "true"}
    answer = ask(access, "OPTIONS", CHAT, local)
    assert answer.headers["access-control-allow-private-network"] == "true"
    refused = ask(access, "POST", CHAT, {"origin": PAGE}, json={})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8642", 200),
        ("192.168.1.5:8642", 200),
        ("[fe80::1]:8642", 200),
        ("studio.local:8642", 200),
        ("Studio:8642", 200),
        ("evil.example:8642", 403),
        ("studio.local.evil.example:8642", 403),
        ("192.168.1.5.evil.example:8642", 403),
        ("192.168.1.5", 403),
        ("studio.local", 403),
        ("user@studio.local:8642", 403),
        ("", 403),
    ],
)
def test_from_elsewhere_a_daemon_is_asked_by_its_address_or_its_machine_s_name(
    host: str, status: int
) -> None:
    headers = {"host": host, "x-api-key": KEY}
    assert ask(REMOTE, "GET", "/", headers).status_code == status


def test_through_the_unix_socket_a_request_may_name_any_host_but_no_origin() -> None:
    async def statuses() -> list[int]:
        found: list[int] = []
        for headers in ([(b"host", b"mlxd")], [(b"host", b"mlxd"), (b"origin", b"https://e.x")]):
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/api/hello",
                "headers": headers,
                "server": ("/run/mlxd.sock", None),
            }

            async def send(message: dict[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    found.append(message["status"])

            await make_app()(scope, None, send)
        return found

    assert asyncio.run(statuses()) == [200, 403]
