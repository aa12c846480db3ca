"""Who is let in, and that everybody gets JSON: the whole application, without a model."""

import asyncio
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.endpoint import Door
from daemon.engine import Engine
from daemon.prefix_cache.cache import PrefixCache
from tests.fakes import ScriptedModel

PORT = 8642
CHAT = "/v1/chat/completions"
ROUTES = [
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/mlxd/status"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/x"),
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/responses/x"),
    ("GET", "/no/such/route"),
    ("OPTIONS", CHAT),
    ("GET", "/v1/sessions"),
    ("DELETE", "/v1/sessions/x"),
    ("GET", "/mlxd/cache"),
    ("POST", "/mlxd/cache/clear"),
    ("GET", "/mlxd/requests"),
    ("GET", "/metrics"),
]


def make_app(max_body_bytes: int = 1000) -> Any:
    """An application whose engine was never started: it says that it is loading."""

    def make_cache(info: Any) -> PrefixCache:
        return PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=0)

    engine = Engine(ScriptedModel, make_cache=make_cache)
    door = Door(engine, max_body_bytes, load_seconds=0.02)
    return build_app(door, Identity.of_new_run("this-run", PORT))


def ask(
    method: str, path: str, app: Any = None, raise_errors: bool = True, **options: Any
) -> httpx2.Response:
    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(app or make_app(), raise_app_exceptions=raise_errors)
        async with httpx2.AsyncClient(
            transport=transport, base_url=f"http://localhost:{PORT}"
        ) as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8642",
        "LOCALHOST.:8642",
        "LocalHost:8642",
        "127.0.0.1:8642",
        "127.9.8.7:8642",
        "[::1]:8642",
    ],
)
def test_names_of_this_machine_are_let_in(host: str) -> None:
    assert ask("GET", "/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:8642",
        "localhost.evil.example:8642",
        "127.0.0.1.evil.example:8642",
        "evil.example@localhost:8642",
        "localhost:8643",
        "localhost",
        "127.0.0.1",
        "[::1]",
        "localhost:",
        "localhost:x",
        "localhost:8642/",
        "localhost:8642?",
        "0.0.0.0:8642",
        "192.168.1.5:8642",
        "[::2]:8642",
        "::1:8642",
        "[::1",
        "",
    ],
)
@pytest.mark.parametrize(("method", "path"), ROUTES[:1])
def test_other_names_and_ports_are_not(host: str, method: str, path: str) -> None:
    answer = ask(method, path, headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_host")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_is_behind_the_door(method: str, path: str) -> None:
    foreign_host = ask(method, path, headers={"host": f"evil.example:{PORT}"})
    foreign_origin = ask(method, path, headers={"origin": "https://evil.example"})
    assert foreign_host.status_code == foreign_origin.status_code == 403
    assert foreign_origin.json()["error"]["code"] == "foreign_origin"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("https://127.0.0.1", 200),
        ("http://[::1]:8642", 200),
        ("null", 403),
        ("", 403),
        ("https://evil.example", 403),
        ("https://localhost.evil.example", 403),
        ("file://", 403),
        ("chrome-extension://localhost", 403),
        ("http://[::1", 403),
    ],
)
def test_only_pages_of_this_machine_may_ask(origin: str, status: int) -> None:
    assert ask("GET", "/", headers={"origin": origin}).status_code == status


def test_two_hosts_or_none_are_refused() -> None:
    async def statuses() -> list[int]:
        found: list[int] = []
        for hosts in ([], [(b"host", b"localhost:8642"), (b"host", b"localhost:8642")]):
            scope = {"type": "http", "method": "GET", "path": "/", "headers": hosts}

            async def send(message: dict[str, Any]) -> None:
                if message["type"] == "http.response.start":
                    found.append(message["status"])

            await make_app()(scope, None, send)
        return found

    assert asyncio.run(statuses()) == [403, 403]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nobody_is_invited_from_elsewhere(method: str, path: str) -> None:
    answer = ask(method, path, headers={"origin": "http://localhost:3000"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("content_type", [None, "text/plain", "application/jsonp", "x/y; json"])
def test_a_body_that_is_not_called_json_is_not_read(path: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = ask("POST", path, content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


def test_a_packed_body_is_refused_as_such() -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = ask("POST", CHAT, content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert "content-encoding" in answer.json()["error"]["message"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_json_in_any_spelling(content_type: str) -> None:
    answer = ask("POST", CHAT, content=b"{}", headers={"content-type": content_type})
    assert answer.json()["error"]["param"] == "messages"


def test_a_body_over_the_limit_is_refused_by_what_it_announces() -> None:
    headers = {"content-type": "application/json"}
    assert ask("POST", CHAT, content=b" " * 1001, headers=headers).status_code == 413
    assert ask("POST", CHAT, content=b" " * 1000, headers=headers).status_code == 400


def test_a_body_over_the_limit_is_refused_by_what_arrives() -> None:
    async def chunks():
        for _ in range(11):
            yield b" " * 100

    headers = {"content-type": "application/json"}
    answer = ask("POST", CHAT, content=chunks(), headers=headers)
    assert "content-length" not in answer.request.headers
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


def test_what_is_not_there_is_said_in_json() -> None:
    missing = ask("GET", "/v1/models/")
    assert missing.status_code == 404
    for method, path, status in (
        ("GET", "/api/tags", 404),
        ("GET", "/health/", 404),
        ("GET", CHAT, 405),
        ("OPTIONS", CHAT, 405),
        ("POST", "/health", 405),
        ("DELETE", "/v1/models", 405),
    ):
        answer = ask(method, path)
        assert answer.status_code == status, path
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert ("allow" in answer.headers) == (status == 405)
        assert answer.headers["x-request-id"].startswith("req_")


def test_what_waits_too_long_for_a_model_that_loads_hears_when_to_come_back() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answers = [
        ask("POST", CHAT, json=body),
        ask("POST", "/v1/completions", json={"prompt": "hi"}),
        ask("GET", "/health"),
    ]
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_unavailable"
        assert int(answer.headers["retry-after"]) >= 1
    assert answers[-1].json()["status"] == "loading"


def test_status_answers_before_the_model_does() -> None:
    status = ask("GET", "/mlxd/status").json()
    assert (status["instance"], status["port"]) == ("this-run", PORT)
    assert status["engine"]["model"]["state"] == "loading"


def test_anyone_at_home_is_answered() -> None:
    assert ask("HEAD", "/").status_code == 200


class BrokenEngine:
    """Raises what no contract allows."""

    def model(self) -> None:
        raise RuntimeError("a bug")

    status = model


@pytest.mark.parametrize(("method", "path"), ROUTES[1:7])
def test_a_bug_is_answered_in_json_without_its_details(method: str, path: str) -> None:
    engine: Any = BrokenEngine()
    app = build_app(Door(engine), Identity.of_new_run("this-run", PORT))
    body = {"messages": [{"role": "user"}], "prompt": "p"}
    answer = ask(method, path, app, json=body, raise_errors=False)
    assert answer.status_code == 500
    assert "a bug" not in answer.text
    assert answer.json()["error"]["type"] == "server_error"


def test_no_middleware_stands_between_an_endpoint_and_its_client() -> None:
    """BaseHTTPMiddleware swaps `receive`, after which a client's leaving is never seen."""
    seen: list[Any] = []
    layer = make_app()
    while layer is not None:
        seen.append(layer)
        is_starlette = isinstance(layer, Starlette)
        layer = layer.build_middleware_stack() if is_starlette else getattr(layer, "app", None)
    assert any(isinstance(each, Starlette) for each in seen)
    assert not any(isinstance(each, BaseHTTPMiddleware) for each in seen)
