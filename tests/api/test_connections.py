"""Connections that ask for nothing, or never to the end: none stays, and none is in the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.responses import Response

from daemon.listening import bind_loopback
from daemon.server import Server
from tests.api.admin_desk import PORT, desk
from tests.e2e.processes import free_port

DEADLINE_SECONDS = 15
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    def __init__(self, port: int) -> None:
        self._port = port
        self._opened: list[Connection] = []

    async def connect(self) -> Connection:
        self._opened.append(await asyncio.open_connection("127.0.0.1", self._port))
        return self._opened[-1]

    async def close(self) -> None:
        for _, writer in self._opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[Clients]:
    async def close(grace_seconds: float) -> None:
        pass

    port = free_port()
    server = Server(app, close, grace_seconds=0, **options)
    task = asyncio.create_task(server.serve(bind_loopback(port)))
    clients = Clients(port)
    try:
        while not server.started:
            await asyncio.sleep(0.01)
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield clients
    finally:
        await clients.close()
        server.stop()
        await task


async def answers_at_once(scope: Any, receive: Any, send: Any) -> None:
    await Response("here")(scope, receive, send)


async def dripped(connection: Connection) -> bytes:
    """What comes until the other side closes, while a byte is sent now and then."""
    reader, writer = connection
    with suppress(ConnectionError):
        while not reader.at_eof() and reader.exception() is None:
            writer.write(b"x")
            await asyncio.sleep(0.1)
    with suppress(ConnectionError):
        return await reader.read()
    return b""


async def is_closed(connection: Connection) -> bool:
    try:
        return await connection[0].read(1) == b""
    except ConnectionError:
        return True


def test_a_body_that_goes_on_after_its_answer_is_not_listened_to_for_ever() -> None:
    async def scenario() -> None:
        async with serving(answers_at_once, keep_alive_seconds=1) as clients:
            for length in (b"Content-Length: 999999", b"Transfer-Encoding: chunked"):
                reader, writer = await clients.connect()
                writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
                if b"chunked" in length:
                    writer.write(b"ffffff\r\n")
                assert (await reader.readuntil(b"here")).startswith(b"HTTP/1.1 200 ")
                await dripped((reader, writer))

    asyncio.run(scenario())


def test_a_request_after_one_whose_body_came_late_is_answered() -> None:
    async def scenario() -> None:
        async with serving(answers_at_once, keep_alive_seconds=1) as clients:
            reader, writer = await clients.connect()
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
            await reader.readuntil(b"here")
            writer.write(b"abc" + GET)
            assert b"200 OK" in await reader.readuntil(b"here")
            await asyncio.sleep(0.6)
            writer.write(GET)  # its own time began anew
            await asyncio.sleep(0.6)
            assert b"200 OK" in await reader.readuntil(b"here")

    asyncio.run(scenario())


def test_a_body_that_never_ends_is_answered_and_its_connection_closed() -> None:
    async def scenario() -> None:
        async with (
            desk(door={"body_seconds": 0.3}) as at,
            serving(at.app) as clients,
        ):
            for path in (b"/v1/chat/completions", b"/v1/messages/count_tokens"):
                reader, writer = await clients.connect()
                lines = (
                    b"POST " + path + b" HTTP/1.1",
                    b"Host: localhost:" + str(PORT).encode(),
                    b"Content-Type: application/json",
                    b"Content-Length: 999999",
                )
                writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
                answer = asyncio.create_task(reader.readuntil(b"}"))
                while not answer.done():
                    writer.write(b" ")
                    await asyncio.sleep(0.05)
                assert (await answer).startswith(b"HTTP/1.1 408 ")
                assert b"0.3 s" in await answer
                await dripped((reader, writer))

    asyncio.run(scenario())


def test_where_too_many_are_connected_one_that_never_asked_makes_room() -> None:
    waits = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await waits.wait()
        await Response("here")(scope, receive, send)

    async def scenario() -> None:
        async with serving(app, most_connections=3) as clients:
            busy = await clients.connect()
            busy[1].write(GET.replace(b"/ ", b"/slow ", 1))
            used = await clients.connect()
            used[1].write(GET)
            await used[0].readuntil(b"here")
            silent, newcomer = await clients.connect(), await clients.connect()
            assert await is_closed(silent)
            for connection in (newcomer, used):
                connection[1].write(GET)
                assert b"200 OK" in await connection[0].readuntil(b"here")
            for connection in (newcomer, used):
                connection[1].write(GET.replace(b"/ ", b"/slow ", 1))
            await asyncio.sleep(0.1)
            assert await is_closed(await clients.connect())
            waits.set()
            for connection in (busy, newcomer, used):
                assert b"200 OK" in await connection[0].readuntil(b"here")

    asyncio.run(scenario())
