"""Daemons as processes, and what a test wants to know of one."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 60.0
BOUND_SECONDS = 30.0
"""What a busy machine may take for what is soon done: more is a hang."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Daemon:
    """A running daemon. `http` is a client with a bounded wait."""

    def __init__(self, process: subprocess.Popen[str], port: int, key: str = "") -> None:
        self.process = process
        self.port = port
        self.connections: list[socket.socket] = []
        self.base_url = f"http://127.0.0.1:{port}"
        self.http = httpx2.Client(
            base_url=self.base_url,
            timeout=BOUND_SECONDS,
            trust_env=False,
            headers={"x-api-key": key} if key else {},
            limits=httpx2.Limits(max_connections=200),
        )

    def status(self) -> dict[str, Any]:
        return self.http.get("/mlxd/status").json()

    def engine(self) -> dict[str, Any]:
        return self.status()["engine"]

    def wait_until(
        self, is_true: Callable[[dict[str, Any]], bool], seconds: float = BOUND_SECONDS
    ) -> dict[str, Any]:
        """The engine's status once `is_true` of it."""
        deadline = time.monotonic() + seconds
        while not is_true(engine := self.engine()):
            assert time.monotonic() < deadline, f"not within {seconds} s: {engine}"
            time.sleep(0.02)
        return engine

    def wait_for_requests(
        self, running: int = 0, waiting: int = 0, seconds: float = BOUND_SECONDS
    ) -> dict[str, Any]:
        """The engine's status once so many requests run and wait."""
        expected = (running, waiting)
        return self.wait_until(
            lambda engine: (len(engine["running"]), len(engine["waiting"])) == expected, seconds
        )

    def saved(self) -> dict[str, Any]:
        """The disk's status once everything is on it that is to be."""

        def is_saved(engine: dict[str, Any]) -> bool:
            stage = next(each for each in engine["model"]["stages"] if each["name"] == "saved")
            is_over = stage["is_reached"] or stage["in_seconds"] is None
            return is_over and not engine["disk"]["pending_bytes"]

        return self.wait_until(is_saved)["disk"]

    def chat(self, text: str = "hi", **fields: Any) -> httpx2.Response:
        return self.http.post("/v1/chat/completions", json=body(text, **fields))

    def socket_with(
        self, payload: dict[str, Any], path: str = "/v1/chat/completions"
    ) -> socket.socket:
        """A raw connection on which a request has been sent; closed with the daemon at last."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=BOUND_SECONDS)
        self.connections.append(connection)
        connection.sendall(request_bytes(self.port, path, json.dumps(payload).encode()))
        return connection

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND_SECONDS)


def received(connection: socket.socket, until: bytes | None = None) -> bytes:
    """All that comes up to and with `until`, or to the end of the connection."""
    data = b""
    while (piece := connection.recv(65536)) != b"":
        data += piece
        if until is not None and until in data:
            break
    return data


def body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def request_bytes(port: int, path: str, payload: bytes, *headers: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: localhost:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


def start(port: int, options: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tests/e2e/scripted_daemon.py")]
    return subprocess.Popen(
        [*command, str(port), json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(port: int, options: dict[str, Any]) -> tuple[int, str]:
    """The exit code of a daemon that ends by itself, and what it said."""
    with start(port, options) as process:
        try:
            _, said = process.communicate(timeout=BOUND_SECONDS)
        finally:
            process.kill()
    return process.returncode, said


@contextmanager
def running(**options: Any) -> Iterator[Daemon]:
    """A daemon with a scripted model that is ready, unless its script makes it wait to load.

    `key` is the API key that its client sends.
    """
    port = options.pop("port", None) or free_port()
    with start(port, options) as process:
        daemon = Daemon(process, port, options.get("key", ""))
        try:
            wait_until_up(daemon, options.get("wait", "ready"))
            yield daemon
        finally:
            daemon.http.close()
            for connection in daemon.connections:
                connection.close()
            if process.poll() is None:
                process.kill()


def wait_until_up(daemon: Daemon, wait: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert daemon.process.poll() is None, daemon.process.stderr.read()
        assert time.monotonic() < deadline, "the daemon did not come up"
        try:
            state = daemon.engine()["model"]["state"]
        except httpx2.TransportError:
            state = "down"
        if state == wait:
            return
        time.sleep(0.05)
