"""A model that breaks: every client is told, nothing looks like success, then it works again."""

import json
from typing import Any

from tests.e2e.processes import Daemon, body, received, running


def broken_step(after: int, **script: Any) -> dict[str, Any]:
    return {
        "script": {"reply": "endless", "step_seconds": 0.02, **script},
        "faults": {"steps": 1, "steps_before": after},
    }


def wait_for_health(daemon: Daemon) -> None:
    daemon.wait_until(lambda engine: engine["model"]["state"] == "ready")
    assert daemon.http.get("/health").json() == {"status": "ok"}


def test_streams_that_a_failing_step_cuts_end_with_an_error() -> None:
    with running(**broken_step(after=30, load_seconds=0.6)) as daemon:
        streams = [daemon.socket_with(body(f"number {n}", stream=True)) for n in range(2)]
        for connection in streams:
            written = received(connection, until=b"\r\n0\r\n\r\n")
            last = written.split(b"data: ")[-1].partition(b"\n\n")[0]
            assert json.loads(last)["error"]["code"] == "generation_failed"
            assert b"[DONE]" not in written
            assert b'"content":"a' in written
        sick = daemon.http.get("/health")
        assert (sick.status_code, sick.headers["retry-after"]) == (503, "5")
        assert daemon.chat(max_tokens=3).status_code == 200  # after it was loaded again
        wait_for_health(daemon)
        assert daemon.chat(max_tokens=3).json()["usage"]["completion_tokens"] == 3


def test_before_the_first_byte_a_failure_has_its_status() -> None:
    with running(**broken_step(after=5)) as daemon:
        answer = daemon.chat()
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        wait_for_health(daemon)
        assert daemon.chat(max_tokens=3).status_code == 200


def test_one_failing_row_fails_alone() -> None:
    options = {"script": {"reply": "fine"}, "faults": {"rows": 1}}
    with running(**options) as daemon:
        assert daemon.chat().status_code == 500
        assert daemon.chat().json()["choices"][0]["message"]["content"] == "fine"
        assert daemon.engine()["totals"]["failed"] == 1
