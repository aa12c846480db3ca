"""Answers over a socket: streamed and whole, limits, bytes, crowds and nonsense."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.processes import BOUND_SECONDS, Daemon, body, received, request_bytes, running
from tests.fakes import TURN_END, VOCABULARY_SIZE, filler

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
SAID = "Grüße, 👩‍👩‍👧! beta gamma"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """Says SAID, a token for each byte, whatever it is asked; its context holds 1000 tokens."""
    with running(script={"reply": SAID, "context_size": 1000}) as started:
        yield started


def streamed(daemon: Daemon, path: str, payload: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a stream that ended well."""
    with daemon.http.stream("POST", path, json={**payload, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        frames = response.read().decode().split("\n\n")
    data = [frame.removeprefix("data: ") for frame in frames if frame.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    return [json.loads(item) for item in data[:-1]]


def text_of(chunks: list[dict[str, Any]]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(each.get("text") or each.get("delta", {}).get("content", "") for each in choices)


def reason_of(chunks: list[dict[str, Any]]) -> str:
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    return reasons[-1]


@pytest.mark.parametrize(
    ("path", "payload"),
    [(CHAT, body("hello")), (COMPLETIONS, {"prompt": "hello"}), (COMPLETIONS, {"prompt": [1, 2]})],
)
@pytest.mark.parametrize(
    ("extra", "text", "reason"),
    [
        ({}, SAID, "stop"),
        ({"max_tokens": 4}, "Grü", "length"),
        ({"max_tokens": 3}, "Gr\ufffd", "length"),
        ({"stop": "eta g"}, SAID.partition("eta g")[0], "stop"),
        ({"stop": ["never", "gamma?"]}, SAID, "stop"),
    ],
)
def test_a_stream_says_what_a_whole_answer_says(
    daemon: Daemon,
    path: str,
    payload: dict[str, Any],
    extra: dict[str, Any],
    text: str,
    reason: str,
) -> None:
    daemon.http.post(path, json={**payload, "max_tokens": 1})  # what is cached is equal from now on
    whole = daemon.http.post(path, json={**payload, **extra}).json()
    options = {"stream_options": {"include_usage": True}}
    chunks = streamed(daemon, path, {**payload, **extra, **options})
    [choice] = whole["choices"]
    assert text_of(chunks) == (choice.get("text") or choice["message"]["content"]) == text
    assert reason_of(chunks) == choice["finish_reason"] == reason
    assert [chunk["usage"] for chunk in chunks if not chunk["choices"]] == [whole["usage"]]
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_the_end_token_and_what_follows_a_stop_string_are_not_counted(daemon: Daemon) -> None:
    whole = daemon.chat().json()["usage"]
    assert whole["completion_tokens"] == len(SAID.encode())
    stopped = daemon.chat(stop=["ü"]).json()["usage"]
    assert stopped["completion_tokens"] == len("Grü".encode())
    for usage in (whole, stopped):
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stop_string_ends_the_generation_too_which_is_done_then_not_cancelled() -> None:
    with running(script={"reply": "endless", "step_seconds": 0.001}) as daemon:
        for stream in (False, True):
            assert daemon.chat(stop="aaaaa", stream=stream).status_code == 200
            engine = daemon.wait_for_requests()
            assert engine["recent"][-1]["phase"] == "done"
            assert engine["totals"]["cancelled"] == 0
            assert not any(session["cancelled"] for session in engine["sessions"])


def test_usage_comes_exactly_when_it_is_asked_for_and_the_role_comes_first(daemon: Daemon) -> None:
    unasked = streamed(daemon, CHAT, body())
    assert unasked[0]["choices"][0]["delta"]["role"] == "assistant"
    assert not any("usage" in chunk for chunk in unasked)
    asked = streamed(daemon, CHAT, body(stream_options={"include_usage": True}))
    assert [bool(chunk.get("usage")) for chunk in asked] == [False] * (len(asked) - 1) + [True]
    assert {chunk["id"] for chunk in asked} == {asked[0]["id"]}


def test_nothing_cached_is_zero_not_null(daemon: Daemon) -> None:
    usage = daemon.http.post(COMPLETIONS, json={"prompt": "never seen before"}).json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_the_answer_names_the_model_that_was_asked_for(daemon: Daemon) -> None:
    assert daemon.chat().json()["model"] == "scripted"
    assert daemon.chat(model="claude-haiku-4-5").json()["model"] == "claude-haiku-4-5"
    assert streamed(daemon, CHAT, body(model="gpt-5"))[0]["model"] == "gpt-5"
    unknown = daemon.chat(model="nonsense")
    assert unknown.status_code == 404
    assert "`scripted`" in unknown.json()["error"]["message"]


def test_a_prompt_as_long_as_the_context_is_refused_before_it_is_read(daemon: Daemon) -> None:
    chunks_before = daemon.engine()["totals"]["chunks"]
    for length in (1000, 1001):
        for stream in (False, True):
            answer = daemon.http.post(COMPLETIONS, json={"prompt": [7] * length, "stream": stream})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert f"resulted in {length} tokens" in error["message"]
    assert daemon.chat(filler(1000, 1)).json()["error"]["param"] == "messages"
    assert daemon.engine()["totals"]["chunks"] == chunks_before


def test_an_answer_ends_where_the_context_does() -> None:
    """Without a limit there is no hidden default; a limit that does not fit is cut, not refused."""
    endless = {"script": {"reply": "endless", "context_size": 1000}}
    with running(**endless) as daemon:
        for prompt, limit, generated in ((990, {}, 10), (600, {"max_tokens": 800}, 400)):
            payload = {"prompt": [7] * prompt, **limit}
            answer = daemon.http.post(COMPLETIONS, json=payload).json()
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == generated
        ten = daemon.chat(max_completion_tokens=10).json()
        assert ten["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize(
    ("path", "payload", "field"),
    [
        (COMPLETIONS, {"prompt": [1, VOCABULARY_SIZE]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt[0]"),
        (COMPLETIONS, {"prompt": [2**31]}, "prompt[0]"),
        (CHAT, body(logit_bias={str(VOCABULARY_SIZE): 1}), f"logit_bias.{VOCABULARY_SIZE}"),
        (CHAT, body(logit_bias={"99999999999": 1}), "logit_bias.99999999999"),
    ],
)
def test_ids_outside_the_vocabulary_never_reach_the_model(
    daemon: Daemon, path: str, payload: dict[str, Any], field: str
) -> None:
    answer = daemon.http.post(path, json=payload)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


NONSENSE = [
    b"",
    b"{",
    b"null",
    b"[" * 100_000,
    b'{"messages":' + b"[" * 100_000,
    b'{"x":' * 100_000,
    b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b"\x00" * 1000,
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_nonsense_is_refused_and_the_next_request_is_served(daemon: Daemon, path: str) -> None:
    for nonsense in NONSENSE:
        headers = {"content-type": "application/json"}
        answer = daemon.http.post(path, content=nonsense, headers=headers)
        assert answer.status_code == 400, nonsense[:50]
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert daemon.chat().status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 403),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_what_is_not_a_request_to_this_machine_is_refused_in_json(
    daemon: Daemon, head: bytes, status: int
) -> None:
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=BOUND_SECONDS) as connection:
        connection.sendall(head)
        answer = connection.recv(65536)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"application/json" in answer


def test_a_body_that_is_too_large_is_answered_while_it_still_comes() -> None:
    with running(settings={"max_body_bytes": 10_000}) as daemon:
        payload = body("x" * 5_000_000)
        assert daemon.http.post(CHAT, json=payload).status_code == 413
        assert daemon.chat().status_code == 200


def test_forty_requests_at_once_are_all_answered() -> None:
    settings = {"max_concurrent_requests": 4, "max_queued_requests": 40}
    with running(script={"reply": "echo", "step_seconds": 0.001}, settings=settings) as daemon:

        def ask(number: int) -> str:
            text = f"{filler(200, number % 5)} CODE-{number}"
            if number % 2:
                return daemon.chat(text).json()["choices"][0]["message"]["content"]
            return text_of(streamed(daemon, CHAT, body(text)))

        with ThreadPoolExecutor(40) as crowd:
            answers = list(crowd.map(ask, range(40)))
        assert answers == [f"CODE-{number}" for number in range(40)]
        engine = daemon.wait_for_requests()
        assert engine["totals"]["requests"] == 40


def test_a_full_queue_says_when_to_come_back() -> None:
    script = {"reply": "endless", "step_seconds": 0.01}
    settings = {"max_concurrent_requests": 1, "max_queued_requests": 2}
    with running(script=script, settings=settings) as daemon:
        connections = []
        for running_now, waiting in ((1, 0), (1, 1), (1, 2)):
            connections.append(daemon.socket_with(body(f"{waiting} first")))
            daemon.wait_for_requests(running_now, waiting)
        refused = daemon.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        for connection in connections:
            connection.close()
        daemon.wait_for_requests()
        assert daemon.engine()["totals"]["refused"] == 1


def test_a_body_may_come_in_pieces(daemon: Daemon) -> None:
    head, _, rest = request_bytes(
        daemon.port, CHAT, json.dumps(body()).encode(), "Expect: 100-continue", "Connection: close"
    ).partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=BOUND_SECONDS) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(rest[:10])
        connection.sendall(rest[10:])
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["finish_reason"] == "stop"


def test_the_turn_end_is_never_text(daemon: Daemon) -> None:
    with running(script={"reply": [72, 105, TURN_END, 33]}) as other:
        assert other.chat().json()["choices"][0]["message"]["content"] == "Hi"
