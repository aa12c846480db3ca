"""A client that leaves is noticed in every phase, streaming or not, and its work is stopped."""

import json
import socket
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.e2e.processes import Daemon, body, received, request_bytes, running
from tests.fakes import filler

NOTICED_SECONDS = 2.0
CHUNK_TOKENS = 16
LONG = filler(2000, 1)
SEEDS = count(2)
SCRIPT = {"reply": "endless", "chunk_seconds": 0.05, "step_seconds": 0.02}
REQUESTS = [
    ("/v1/chat/completions", body(LONG)),
    ("/v1/chat/completions", body(LONG, stream=True)),
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": LONG, "stream": True}),
    ("/v1/messages", body(LONG)),
    ("/v1/messages", body(LONG, stream=True)),
    ("/v1/responses", {"input": LONG}),
    ("/v1/responses", {"input": LONG, "stream": True}),
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One request at a time; a long prompt takes six seconds to read, an answer has no end."""
    settings = {"chunk_tokens": CHUNK_TOKENS, "max_concurrent_requests": 1}
    with running(script=SCRIPT, settings=settings) as started:
        yield started


def other(payload: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same request about something else, so that nothing of it is cached."""
    return about(payload, filler(2000, seed))


def about(payload: dict[str, Any], text: str) -> dict[str, Any]:
    """The same request with another text."""
    name = next((name for name in ("prompt", "input") if name in payload), None)
    return {**payload, **(body(text) if name is None else {name: text})}


@pytest.mark.parametrize(("path", "payload"), REQUESTS)
def test_leaving_while_the_prompt_is_read_stops_the_reading(
    daemon: Daemon, path: str, payload: dict[str, Any]
) -> None:
    before = daemon.engine()["totals"]["cancelled"]
    connection = daemon.socket_with(other(payload, next(SEEDS)), path)
    daemon.wait_until(lambda engine: any(each["read"] for each in engine["running"]))
    connection.close()
    engine = daemon.wait_for_requests(seconds=NOTICED_SECONDS)
    assert engine["totals"]["cancelled"] == before + 1
    assert 0 < engine["recent"][-1]["read"] < 2000


@pytest.mark.parametrize(("path", "payload"), REQUESTS)
def test_leaving_while_the_answer_is_written_stops_the_writing(
    daemon: Daemon, path: str, payload: dict[str, Any]
) -> None:
    connection = daemon.socket_with(about(payload, "hi"), path)
    daemon.wait_until(lambda engine: any(each["generated"] for each in engine["running"]))
    connection.close()
    engine = daemon.wait_for_requests(seconds=NOTICED_SECONDS)
    assert engine["recent"][-1]["phase"] == "cancelled"


def test_requests_of_clients_that_left_the_queue_never_start(daemon: Daemon) -> None:
    started_before = len(daemon.engine()["recent"])
    first = daemon.socket_with(body("first", stream=True))
    daemon.wait_for_requests(running=1)
    queued = [daemon.socket_with(other(payload, next(SEEDS)), path) for path, payload in REQUESTS]
    last = daemon.socket_with(body("last", max_tokens=1))
    daemon.wait_for_requests(running=1, waiting=len(REQUESTS) + 1)
    for connection in queued:
        connection.close()
    daemon.wait_for_requests(running=1, waiting=1, seconds=NOTICED_SECONDS)
    first.close()
    assert received(last, until=b"\r\n").startswith(b"HTTP/1.1 200 ")
    engine = daemon.wait_for_requests()
    ended = engine["recent"][started_before:]
    assert sum(each["read"] for each in ended if each["prompt"] > 1000) == 0


def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing(daemon: Daemon) -> None:
    requests = daemon.engine()["totals"]["requests"]
    whole = request_bytes(daemon.port, "/v1/chat/completions", json.dumps(body(LONG)).encode())
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=5) as connection:
        connection.sendall(whole[:-100])
    assert daemon.chat("after", max_tokens=1).status_code == 200
    assert daemon.engine()["totals"]["requests"] == requests + 1


def test_after_a_cancelled_reading_the_same_request_goes_on_from_there(daemon: Daemon) -> None:
    payload = body(filler(600, next(SEEDS)), max_tokens=1)
    connection = daemon.socket_with(payload)
    daemon.wait_until(lambda engine: any(each["read"] > 300 for each in engine["running"]))
    connection.close()
    read = daemon.wait_for_requests(seconds=NOTICED_SECONDS)["recent"][-1]["read"]
    usage = daemon.http.post("/v1/chat/completions", json=payload).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= read - CHUNK_TOKENS > 250
