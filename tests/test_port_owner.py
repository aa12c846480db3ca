"""Whose port it is, whatever is there."""

import socket
import threading
import time

import pytest

from daemon.port_owner import owner_of
from tests.e2e.processes import free_port

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"


def answering(pieces: list[bytes], pause: float = 0.0) -> int:
    """The port of a program that answers one connection so."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(4096)
            try:
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(pause)
            except OSError:
                pass

    threading.Thread(target=answer, daemon=True).start()
    return int(listener.getsockname()[1])


def test_a_daemon_is_named_with_version_process_and_run() -> None:
    """Of whatever version: other fields may be there or not."""
    body = b'{"version": "9.9", "pid": 4242, "instance": "0123456789abcdef", "more": [1]}'
    assert owner_of("127.0.0.1", answering([HEAD, body])) == (
        "mlxd 9.9 (process 4242, instance 0123456789ab)"
    )


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"220 mail ready\r\n"],
        [HEAD, b"[]"],
        [HEAD, b"{}"],
        [HEAD, b'{"version": "\x1b[31m", "pid": 1, "instance": "a"}'],
        [HEAD, b'{"version": "\\u001b[31m", "pid": 1, "instance": "a"}'],
        [HEAD, b'{"version": "1", "pid": "not a number", "instance": "a"}'],
        [HEAD, b"\xff\xfe"],
    ],
)
def test_whoever_answers_otherwise_is_a_stranger(pieces: list[bytes]) -> None:
    assert owner_of("127.0.0.1", answering(pieces)) == "another program"


def test_one_that_drips_or_is_silent_is_not_waited_for() -> None:
    before = time.monotonic()
    assert owner_of("127.0.0.1", answering([b"x"] * 1000, 0.05), 0.3) == "another program"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert owner_of("127.0.0.1", silent.getsockname()[1], 0.3) == "another program"
    assert time.monotonic() - before < 2


def test_nobody_is_a_stranger_too() -> None:
    assert owner_of("127.0.0.1", free_port()) == "another program"
