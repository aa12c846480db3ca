"""While a long prompt is read: headers at once, bytes by the clock, and everybody else served."""

import json
import time
from itertools import pairwise

from daemon.api.sse import KeepAlive
from tests.e2e.processes import body, received, running
from tests.fakes import filler

CHUNK_SECONDS = 3.0
COMMENT_SECONDS, EVENT_SECONDS = 0.2, 0.65


def test_the_promised_intervals_are_the_default() -> None:
    assert KeepAlive().comment_seconds < 5
    assert KeepAlive().event_seconds <= 15


def test_a_stream_is_never_silent_also_inside_one_long_chunk() -> None:
    script = {"reply": "done", "chunk_seconds": CHUNK_SECONDS}
    with running(script=script, keep_alive=[COMMENT_SECONDS, EVENT_SECONDS]) as daemon:
        sent = time.monotonic()
        connection = daemon.socket_with(body(stream=True))
        arrivals: list[tuple[float, bytes]] = []
        while not arrivals or b"[DONE]" not in arrivals[-1][1]:
            data = connection.recv(65536)
            assert data, "the stream broke off"
            arrivals.append((time.monotonic() - sent, data))
            if len(arrivals) == 2:  # inside the chunk, and it does not hold up the rest
                [request] = daemon.engine()["running"]
                assert (request["phase"], request["read"]) == ("reading", 0)
                assert daemon.http.get("/health").status_code == 200
    times = [when for when, _ in arrivals]
    assert times[0] < CHUNK_SECONDS / 2
    assert arrivals[0][1].startswith(b"HTTP/1.1 200 ")
    assert max(later - earlier for earlier, later in pairwise(times)) < CHUNK_SECONDS / 2
    everything = b"".join(data for _, data in arrivals)
    before_text, _, _ = everything.partition(b'"content":"d')
    assert before_text.count(b": reading") >= 3
    assert before_text.count(b'"delta":{"role":"assistant","content":""}') >= 1 + 1


def test_a_refusal_that_is_found_before_the_first_byte_has_its_status() -> None:
    with running(script={"context_size": 100}) as daemon:
        answer = daemon.chat("x" * 200, stream=True)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/json"


def test_a_long_reading_lets_other_streams_go_on() -> None:
    """At most one chunk between two tokens of the stream that is being written."""
    script = {"reply": "endless", "chunk_seconds": 0.05, "step_seconds": 0.005}
    with running(script=script, settings={"chunk_tokens": 32}) as daemon:
        with daemon.http.stream("POST", "/v1/chat/completions", json=body(stream=True)) as first:
            lines = first.iter_lines()
            while 'content":"a' not in next(lines):
                pass
            before = daemon.engine()
            reader = daemon.socket_with(body(filler(320, 3), max_tokens=1))
            assert received(reader, until=b"\r\n").startswith(b"HTTP/1.1 200 ")
            after = daemon.engine()
        chunks = after["totals"]["chunks"] - before["totals"]["chunks"]
        written = [engine["running"][0]["generated"] for engine in (before, after)]
        assert chunks >= 10
        assert written[1] - written[0] >= chunks - 2


def test_comments_are_comments_and_frames_are_json() -> None:
    script = {"reply": "ok", "chunk_seconds": 0.5}
    with (
        running(script=script, keep_alive=[0.1, 0.3]) as daemon,
        daemon.http.stream("POST", "/v1/completions", json={"prompt": "p", "stream": True}) as got,
    ):
        lines = [line for line in got.iter_lines() if line]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert all(line.startswith((": ", "data: ")) for line in lines)
    assert data.pop() == "[DONE]"
    assert "".join(json.loads(item)["choices"][0]["text"] for item in data) == "ok"
