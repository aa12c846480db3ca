"""From the bound port to the exit code: starting, idling, stopping."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.client import Client
from daemon.errors import NotAnswering, NotRunning
from tests.e2e.processes import BOUND_SECONDS, ROOT, body, free_port, outcome, received, running

ENDLESS = {"reply": "endless", "step_seconds": 0.01}
HEAVY = {"pydantic", "starlette", "uvicorn", "httpx2", "numpy", "rich"}


def test_while_the_model_loads_the_port_says_so_and_requests_wait_for_it() -> None:
    with running(script={"load_seconds": 1.0}, wait="loading") as daemon:
        answer = daemon.http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "loading")
        assert int(answer.headers["retry-after"]) >= 1
        assert daemon.http.get("/v1/models").status_code == 200
        stream = daemon.socket_with(body(stream=True, max_tokens=1))
        assert daemon.chat(max_tokens=1).status_code == 200
        assert received(stream, until=b"[DONE]").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_short_answers_end_cuts_endless_ones_and_exits_with_zero(number: int) -> None:
    with running(script=ENDLESS, grace_seconds=0.7) as daemon:
        endless = [daemon.socket_with(body(f"{n}", stream=True)) for n in range(3)]
        whole = daemon.socket_with(body("whole"))
        short = daemon.socket_with(body("short", stream=True, max_tokens=30))
        daemon.wait_for_requests(running=5)
        daemon.process.send_signal(number)
        assert received(short).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        for connection in endless:
            written = received(connection)
            last = json.loads(written.split(b"data: ")[-1].partition(b"\n\n")[0])
            assert set(last) == {"error"}
            assert b"[DONE]" not in written
            assert written.endswith(b"0\r\n\r\n")
        answer = received(whole)
        assert answer.split()[1] in (b"500", b"503")
        assert b'{"error":' in answer
        assert daemon.process.wait(BOUND_SECONDS) == 0
        assert "Traceback" not in daemon.process.stderr.read()


def test_a_stop_in_the_middle_of_a_chunk_lets_the_chunk_end() -> None:
    with running(script={"reply": "x", "chunk_seconds": 1.5}, grace_seconds=0.2) as daemon:
        stream = daemon.socket_with(body(stream=True))
        daemon.wait_for_requests(running=1)
        daemon.process.send_signal(signal.SIGTERM)
        assert b'data: {"error":' in received(stream)
        assert daemon.process.wait(BOUND_SECONDS) == 0
        said = daemon.process.stderr.read()
        assert "the interpreter ends" in said
        assert "Traceback" not in said


def test_a_stop_in_the_middle_of_a_chunk_that_takes_too_long_tells_the_clients_and_ends() -> None:
    """And the interpreter does not take down what the thread stands on: that crashes mlx."""
    script = {"reply": "x", "chunk_seconds": 10 * BOUND_SECONDS}
    with running(script=script, grace_seconds=0.2) as daemon:
        stream, whole = daemon.socket_with(body(stream=True)), daemon.socket_with(body("other"))
        daemon.wait_for_requests(running=1, waiting=1)
        daemon.process.send_signal(signal.SIGTERM)
        assert b'data: {"error":' in received(stream)
        answer = received(whole)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b'{"error":' in answer
        assert daemon.process.wait(BOUND_SECONDS) == 0
        said = daemon.process.stderr.read()
        assert "stopped in the middle of a chunk" in said
        assert "the interpreter ends" not in said
        assert "Traceback" not in said


def test_a_stop_does_not_wait_for_a_client_that_does_not_read() -> None:
    """Each frame repeats the model's name: soon more is written than the system holds for it."""
    with running(script={"reply": "endless"}, grace_seconds=0.2) as daemon:
        daemon.socket_with(body(stream=True, model="gpt-" + "x" * 50_000))
        daemon.wait_until(lambda engine: engine["totals"]["steps"] > 2000)
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.process.stderr.read()


def test_an_idle_daemon_stops_at_once_also_with_open_connections_or_a_model_half_loaded() -> None:
    with running(grace_seconds=5.0) as daemon:
        assert daemon.chat(max_tokens=1).status_code == 200
        assert daemon.stop() == 0
        assert "the interpreter ends" in daemon.process.stderr.read()
    with running(script={"load_seconds": 1.0}, wait="loading") as daemon:
        assert daemon.stop() == 0


def test_a_stop_does_not_wait_for_a_model_that_loads() -> None:
    with running(script={"load_seconds": 60.0}, wait="loading") as daemon:
        waiting = daemon.socket_with(body(stream=True))
        daemon.http.get("/mlxd/status")  # so that it has arrived by now
        assert daemon.stop() == 0
        assert received(waiting).startswith(b"HTTP/1.1 503 ")
        assert "Traceback" not in daemon.process.stderr.read()


def test_an_idle_model_gives_its_memory_back_and_comes_again_when_it_is_asked_for() -> None:
    with running(settings={"keep_alive": "1s"}) as daemon:
        daemon.wait_until(lambda engine: engine["model"]["state"] == "unloaded")
        assert daemon.http.get("/health").status_code == 200
        assert daemon.chat(max_tokens=1).status_code == 200
        assert daemon.engine()["model"]["state"] == "ready"


def test_a_port_that_is_taken_is_a_wrong_setting() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, said = outcome(port, {})
    assert code == 78
    assert f"refused: Port {port} is taken" in said


def test_a_model_that_can_never_be_served_is_a_wrong_setting() -> None:
    code, said = outcome(free_port(), {"load_error": "the weights are cut short"})
    assert code == 78
    assert "refused: the weights are cut short" in said
    assert "Traceback" not in said


def wake_ups(pid: int) -> int:
    """How often the process's threads have gone to sleep, which is how often they woke."""
    lines = (
        line
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
    )
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts by /proc")
def test_an_idle_daemon_sleeps() -> None:
    with running() as daemon:
        assert daemon.chat(max_tokens=3).status_code == 200
        time.sleep(0.5)
        before = wake_ups(daemon.process.pid)
        time.sleep(2.5)
        assert wake_ups(daemon.process.pid) - before <= 2


def test_a_pooled_connection_outlives_the_pause_between_two_turns() -> None:
    """Stock uvicorn closes an idle connection after five seconds."""
    with running() as daemon:
        connection = daemon.socket_with(body(max_tokens=1))
        assert received(connection, until=b"}}}").startswith(b"HTTP/1.1 200 ")
        connection.settimeout(5.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_a_client_learns_the_status_of_a_running_daemon() -> None:
    with running() as daemon:
        status = Client(daemon.port).status()
        assert (status.pid, status.engine.model.state) == (daemon.process.pid, "ready")


def test_a_client_tells_a_closed_port_from_a_stranger() -> None:
    with pytest.raises(NotRunning, match="mlxd serve"):
        Client(free_port()).status()
    with socket.create_server(("127.0.0.1", 0)) as stranger, pytest.raises(NotAnswering):
        Client(stranger.getsockname()[1]).status(seconds=0.2)


def test_a_client_imports_nothing_heavy_before_somebody_answers() -> None:
    code = (
        "import sys; from daemon.client import Client, NotRunning\n"
        f"try: Client({free_port()}).status()\n"
        "except NotRunning: pass\n"
        f"print(sorted({HEAVY} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
