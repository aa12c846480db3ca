"""The port: loopback only, and taken is said."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
from starlette.responses import Response

from daemon.errors import ConfigurationError
from daemon.listening import bind_loopback
from daemon.server import KEEP_ALIVE_SECONDS, Server
from tests.e2e.processes import free_port


def test_only_addresses_of_this_machine_are_bound_all_with_one_port() -> None:
    port = free_port()
    bound = bind_loopback(port)
    names = [listener.getsockname()[:2] for listener in bound]
    for listener in bound:
        listener.close()
    assert names[0] == ("127.0.0.1", port)
    assert set(names) <= {("127.0.0.1", port), ("::1", port)}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_on_either_address_is_refused(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        other = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with other, pytest.raises(ConfigurationError, match="is taken"):
        bind_loopback(other.getsockname()[1])


def test_of_two_daemons_that_start_at_once_one_is_refused() -> None:
    port = free_port()
    first = bind_loopback(port)
    try:
        with pytest.raises(ConfigurationError, match="is taken"):
            bind_loopback(port)
    finally:
        for listener in first:
            listener.close()


def test_a_pooled_connection_is_kept_for_the_pause_between_two_turns() -> None:
    assert KEEP_ALIVE_SECONDS >= 120


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


def test_a_connection_that_never_gets_a_request_together_is_closed() -> None:
    """However slowly its bytes come; one whose request is answered is not, but for idling."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1.5)
        await Response("here")(scope, receive, send)

    async def close(grace_seconds: float) -> None:
        pass

    async def drip(writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> bytes:
        """What comes until the other side closes, while a byte of a head is sent now and then.

        A byte that was not taken any more makes the close a reset.
        """
        with suppress(ConnectionError):
            while not reader.at_eof() and reader.exception() is None:
                writer.write(b"X")
                await asyncio.sleep(0.1)
            return await reader.read()
        return b""

    async def scenario() -> None:
        port = free_port()
        server = Server(app, close, grace_seconds=0, keep_alive_seconds=1)
        serving = asyncio.create_task(server.serve(bind_loopback(port)))
        while not server.started:
            await asyncio.sleep(0.01)
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        (silent, _), (dripping, dripper), (asking, asker) = opened
        asker.write(HEAD + b"\r\n")
        assert await drip(dripper, dripping) == b""
        assert await silent.read() == b""
        answer = await asking.readuntil(b"here")
        assert answer.startswith(b"HTTP/1.1 200 ")
        asker.write(HEAD)
        assert await asking.read() == b""
        for _, writer in opened:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        server.stop()
        await serving

    asyncio.run(asyncio.wait_for(scenario(), 15))


def test_a_request_to_upgrade_is_the_applications_to_answer_and_nothing_to_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(f"{scope['type']} it is")(scope, receive, send)

    async def close(grace_seconds: float) -> None:
        pass

    async def scenario() -> None:
        port = free_port()
        server = Server(app, close, grace_seconds=0)
        serving = asyncio.create_task(server.serve(bind_loopback(port)))
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"http it is")
        writer.close()
        await writer.wait_closed()
        server.stop()
        await serving

    with caplog.at_level("WARNING"):
        asyncio.run(asyncio.wait_for(scenario(), 15))
    assert not caplog.records
