"""Too little memory, as a client sees it: streams that pause, refusals with numbers, no failure."""

import json
from concurrent.futures import ThreadPoolExecutor

from tests.e2e.processes import body, received, running
from tests.fakes import SPAN_TOKEN_BYTES, filler

ANSWER_TOKENS = 3_000
MEMORY_BYTES = 5_000 * SPAN_TOKEN_BYTES
"""One row with its whole answer fits, and not another one beside it."""


def test_a_stream_whose_request_is_parked_stays_open_and_loses_nothing() -> None:
    script = {"reply": "endless", "step_seconds": 0.0005}
    settings = {"memory_bytes": MEMORY_BYTES, "max_concurrent_requests": 2}
    with running(script=script, settings=settings, keep_alive=[0.05, 0.5]) as daemon:
        fields = {"stream": True, "max_tokens": ANSWER_TOKENS}
        connections = [daemon.socket_with(body(filler(50, seed), **fields)) for seed in range(2)]
        with ThreadPoolExecutor() as threads:
            streams = list(threads.map(lambda c: received(c, b"[DONE]"), connections))
        totals = daemon.engine()["totals"]
        assert totals["parked"] >= 1
        assert totals["failed"] == 0
    for stream in streams:
        assert stream.count(b'"content":"a') > 0
        assert b'"finish_reason":"length"' in stream
        said = [json.loads(line[6:]) for line in stream.split(b"\n") if line.startswith(b"data: {")]
        text = "".join(
            choice["delta"].get("content") or "" for frame in said for choice in frame["choices"]
        )
        assert text == "a" * ANSWER_TOKENS
    parked = max(streams, key=lambda stream: stream.rpartition(b'"content":"a')[0].count(b"\n: "))
    assert b"\n: " in parked.partition(b'"content":"a')[2], "it was silent while it was parked"


def test_what_can_never_fit_is_told_the_numbers_before_any_reading() -> None:
    script = {"reply": "endless", "context_size": 50_000}
    with running(script=script, settings={"memory_bytes": MEMORY_BYTES}) as daemon:
        for stream in (False, True):
            answer = daemon.chat(filler(6_000, 1), stream=stream)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert str(MEMORY_BYTES) in error["message"]
        assert daemon.engine()["totals"]["chunks"] == 0
        assert daemon.engine()["memory"]["budget_bytes"] == MEMORY_BYTES
        assert daemon.chat("hi", max_tokens=3).status_code == 200


def test_the_size_of_the_context_is_published_and_enforced() -> None:
    with running(script={"reply": "endless", "context_size": 1_000}) as daemon:
        [model] = daemon.http.get("/v1/models").json()["data"]
        assert model["context_length"] == model["max_model_len"] == 1_000
        prompt = {"prompt": [7] * model["context_length"]}
        assert daemon.http.post("/v1/completions", json=prompt).status_code == 400
        prompt["prompt"].pop()
        answer = daemon.http.post("/v1/completions", json=prompt).json()
        assert answer["usage"]["total_tokens"] == model["context_length"]


def test_beyond_the_queue_the_answer_is_429_with_a_time_to_come_back() -> None:
    settings = {"max_concurrent_requests": 1, "max_queued_requests": 1}
    script = {"reply": "endless", "step_seconds": 0.01}
    with running(script=script, settings=settings) as daemon:
        for running_now, waiting in ((1, 0), (1, 1)):
            daemon.socket_with(body(stream=True))
            daemon.wait_for_requests(running_now, waiting)
        refused = daemon.chat()
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["error"]["code"] == "queue_full"
