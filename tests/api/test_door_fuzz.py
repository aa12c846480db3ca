"""Whatever comes to the door: no route fails, and none tells of this program's inside.

Requests with any method, path, query, header and body, as an application gets them, and bytes that
hardly are requests, as a socket gets them.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.admin_desk import PORT, TOKEN, desk
from tests.api.route_table import methods_and_paths
from tests.api.test_connections import serving

EXAMPLES = 250
BYTES_EXAMPLES = 60
INSIDE = (
    "Traceback",
    'File "',
    "object at 0x",
    "site-packages",
    "daemon.",
    "NoneType",
    "starlette",
)

HOST = (b"host", f"localhost:{PORT}".encode())
SHOWN = (b"authorization", f"Bearer {TOKEN}".encode())
JSON = (b"content-type", b"application/json")

ODD_TEXTS = st.text(max_size=8) | st.sampled_from(
    ["../..", "%2e%2e", "\x00", "x" * 3000, "a/b/c", " ", "é", "😀", "{session}", "'\"<>", "reset"]
)
ODD_BYTES = st.binary(max_size=12) | st.sampled_from(
    [b"", b"*", b"\xff", b"-1", b"99999999999999999999", b"gzip", b"websocket", b"100-continue"]
)
NAMES = st.sampled_from(
    b"host origin content-type content-length content-encoding authorization x-api-key upgrade "
    b"connection expect accept range session_id x-session-id thread-id accept-encoding "
    b"access-control-request-method transfer-encoding te if-none-match".split()
)
HEADERS = st.lists(st.tuples(NAMES, ODD_BYTES), max_size=3)
ROUTES = st.sampled_from(methods_and_paths("{}"))
METHODS = st.none() | st.sampled_from(["GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "", "é"])
QUERIES = st.sampled_from([b"", b"id=", b"id=x&id=y", b"model=%ff", b"&&==", b"id=%zz"]) | ODD_BYTES
BODIES = st.binary(max_size=20) | st.sampled_from(
    [b"{}", b"[]", b"null", b"{", b'{"messages": 1}', b"[" * 5000, b'"\\ud800"', b"1e999"]
)


async def answered(app: Any, scope: Mapping[str, Any], body: bytes) -> tuple[int, bytes]:
    """The whole of it. A stream's client does not leave before its end."""
    incoming = iter([{"type": "http.request", "body": body, "more_body": False}])
    status: list[int] = []
    told = b""

    async def receive() -> Mapping[str, Any]:
        message = next(incoming, None)
        if message is None:
            await asyncio.Event().wait()
        assert message is not None
        return message

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal told
        if message["type"] == "http.response.start":
            status.append(message["status"])
        told += message.get("body", b"")

    await asyncio.wait_for(app(scope, receive, send), 10)
    assert len(status) == 1
    return status[0], told


def check(status: int, told: bytes) -> None:
    assert 200 <= status < 500, told
    if status >= 400:
        text = told.decode()
        assert not [word for word in INSIDE if word in text], text


@pytest.mark.parametrize("shown", [[], [SHOWN]], ids=["without the token", "with it"])
def test_no_request_makes_a_route_fail(shown: list[tuple[bytes, bytes]]) -> None:
    with asyncio.Runner() as runner:
        context = desk()
        at = runner.run(context.__aenter__())

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(ROUTES, METHODS, ODD_TEXTS, QUERIES, HEADERS, st.booleans(), BODIES)
        def ask(
            route: tuple[str, str],
            method: str | None,
            parameter: str,
            query: bytes,
            headers: list[tuple[bytes, bytes]],
            is_json: bool,
            body: bytes,
        ) -> None:
            named, path = route
            path = path.replace("{}", parameter)
            scope = {
                "type": "http",
                "method": named if method is None else method,
                "path": path,
                "raw_path": path.encode(),
                "query_string": query,
                "headers": [HOST, *shown, *([JSON] if is_json else []), *headers],
            }
            check(*runner.run(answered(at.app, scope, body)))

        try:
            ask()
        finally:
            runner.run(context.__aexit__(None, None, None))


WHOLE = (
    b"POST /v1/chat/completions HTTP/1.1\r\n"
    b"Host: localhost:%d\r\n"
    b"Content-Type: application/json\r\n"
    b"Content-Length: 2\r\n\r\n{}" % PORT
)
PIECES = [b"\r\n", b"\n", b"\x00", b":", b" ", b"\xff\xfe", b"HTTP/9.9", b"GET", b"%", b"\r\n\r\n"]
CHUNKED = b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"


@st.composite
def nearly_requests(draw: st.DrawFn) -> bytes:
    """A request whose bytes were cut, repeated or mixed with others."""
    data = WHOLE * draw(st.integers(1, 2))
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, len(data))), draw(st.sampled_from([0, 0, 1, 7, 40]))
        data = data[:at] + draw(st.sampled_from([*PIECES, CHUNKED])) + data[at + length :]
    return data


def test_no_bytes_make_the_port_fail(caplog: pytest.LogCaptureFixture) -> None:
    async def exchange(clients: Any, data: bytes) -> bytes:
        """What comes at once; a request that is not complete is not answered."""
        reader, writer = await clients.connect()
        writer.write(data)
        try:
            told: bytes = await asyncio.wait_for(reader.read(65536), 0.02)
        except (TimeoutError, ConnectionError):
            told = b""
        finally:
            writer.close()
        return told

    with asyncio.Runner() as runner, caplog.at_level(logging.DEBUG):
        at = desk()
        found = runner.run(at.__aenter__())
        server = serving(found.app)
        clients = runner.run(server.__aenter__())

        @settings(max_examples=BYTES_EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(nearly_requests())
        def send(data: bytes) -> None:
            told = runner.run(exchange(clients, data))
            if told:
                status = re.match(rb"HTTP/1.1 (\d{3}) ", told)
                assert status is not None, told
                check(int(status[1]), told)

        try:
            send()
            assert b" 400 " in runner.run(exchange(clients, WHOLE))
            assert not [record for record in caplog.records if record.exc_info]
        finally:
            runner.run(server.__aexit__(None, None, None))
            runner.run(at.__aexit__(None, None, None))
