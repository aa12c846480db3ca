"""How a daemon lives and ends: whose the port is, what a stop costs, what a kill leaves behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.client import Client
from daemon.errors import NotRunning
from mlx_backend.tiny_models import write_folder
from tests.e2e.processes import (
    BOUND_SECONDS,
    ROOT,
    Daemon,
    body,
    free_port,
    outcome,
    received,
    running,
    wait_until_up,
)

ENDLESS = {"reply": "endless", "step_seconds": 0.01}
SERVE = [sys.executable, "-m", "daemon.cli", "serve"]


def test_a_second_daemon_names_the_first_and_ends_at_once() -> None:
    """While the first one is still loading, too: liveness is an answer, not a model."""
    with running(script={"load_seconds": 60.0}, wait="loading") as daemon:
        found = daemon.status()
        began = time.monotonic()
        code, said = outcome(daemon.port, {})
        assert code == 78
        assert f"Port {daemon.port} is taken by mlxd {found['version']}" in said
        assert f"process {daemon.process.pid}" in said
        assert found["instance"][:12] in said
        assert time.monotonic() - began < BOUND_SECONDS
        assert daemon.status()["instance"] == found["instance"], "it is unharmed"


def test_after_a_kill_the_status_is_stopped_and_the_next_start_is_another_run() -> None:
    """Whoever has the process id by then: nobody asks for that."""
    with running() as daemon:
        port, first = daemon.port, daemon.status()["instance"]
        idle = daemon.socket_with(body(max_tokens=1))
        assert received(idle, b"}}}")
        daemon.process.kill()
        daemon.process.wait(BOUND_SECONDS)
        with pytest.raises(NotRunning):
            Client(port).status()
        with running(port=port) as next_one:
            found = Client(port).status()
            assert found.instance != first
            assert found.pid == next_one.process.pid


def test_a_second_signal_ends_it_at_once() -> None:
    with running(script=ENDLESS, grace_seconds=10 * BOUND_SECONDS, is_service=True) as daemon:
        daemon.socket_with(body(stream=True))
        daemon.wait_for_requests(running=1)
        daemon.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            daemon.process.wait(0.5)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(BOUND_SECONDS) == 0, "it waited for the grace"
        assert "Traceback" not in daemon.process.stderr.read()


def test_during_the_grace_nothing_new_is_taken() -> None:
    with running(script=ENDLESS, grace_seconds=50) as daemon:
        pooled = daemon.socket_with(body(max_tokens=1))
        assert received(pooled, b"}}}").startswith(b"HTTP/1.1 200 ")
        running_one = daemon.socket_with(body(stream=True))
        daemon.wait_for_requests(running=1)
        daemon.process.send_signal(signal.SIGTERM)
        assert received(pooled) == b"", "an idle connection is closed"
        with pytest.raises(ConnectionRefusedError):
            daemon.socket_with(body())
        running_one.close()
        assert daemon.process.wait(BOUND_SECONDS) == 0, "nobody is left to be waited for"


TELLING_WHEN_IT_IMPORTS = """
import sys
sys.argv = ["mlxd", "serve", "--port", sys.argv[1]]

class Teller:
    def find_spec(self, name, path=None, target=None):
        if name == "daemon.cli.commands":
            print("now", flush=True)

sys.meta_path.insert(0, Teller())
from daemon.cli import main
main()
"""


@pytest.mark.parametrize(("wait_seconds", "codes"), [(0.0, {0}), (0.3, {0, 78})])
def test_a_stop_in_the_first_second_is_clean(
    tmp_path: Path, wait_seconds: float, codes: set[int]
) -> None:
    """Also while it still imports itself. 78: it had found out by then that it has no model."""
    command = [sys.executable, "-c", TELLING_WHEN_IT_IMPORTS, str(free_port())]
    where = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=where, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        time.sleep(wait_seconds)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=BOUND_SECONDS)
    assert process.returncode in codes, said
    assert "Traceback" not in said


TOLD_AT_THE_VERY_END = """
import os, signal, sys
sys.argv = ["mlxd", "serve", "--port", sys.argv[1]]

class Last:
    def __del__(self, kill=os.kill, own=os.getpid(), number=signal.SIGTERM):
        kill(own, number)

last = Last()
from daemon.cli import main
main()
"""


def test_a_stop_while_the_interpreter_goes_away_changes_no_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TOLD_AT_THE_VERY_END, str(free_port())]
    where = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=where, capture_output=True, timeout=BOUND_SECONDS)
    assert ended.returncode == 78, ended.stderr


def bare(home: Path | None) -> dict[str, str]:
    """launchd's environment, or less."""
    found = {"PATH": "/usr/bin:/bin"}
    return found if home is None else {**found, "HOME": str(home)}


def served(environment: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SERVE, *flags],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_home_it_says_so_and_writes_nowhere() -> None:
    for environment in (bare(None), {**bare(None), "HOME": ""}, {**bare(None), "HOME": "here"}):
        done = served(environment)
        assert done.returncode == 78
        assert "HOME" in done.stderr
        assert "Traceback" not in done.stderr
    assert not (ROOT / "~").exists()


def test_launchds_bare_environment_is_enough_to_find_a_model_and_serve_it(tmp_path: Path) -> None:
    snapshots = tmp_path / ".cache" / "huggingface" / "hub" / "models--me--tiny" / "snapshots"
    write_folder("tiny-full", snapshots / "0a")
    (snapshots.parent / "refs").mkdir()
    (snapshots.parent / "refs" / "main").write_text("0a")
    port = free_port()
    command = [*SERVE, "--model", "me/tiny", "--port", str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=bare(tmp_path), stderr=pipe, text=True) as process:
        daemon = Daemon(process, port)
        try:
            wait_until_up(daemon, "ready")
            assert daemon.chat(max_tokens=2).status_code == 200
            assert daemon.stop() == 0
        finally:
            daemon.http.close()
            process.kill()
    assert (tmp_path / ".local" / "state").is_dir() or (tmp_path / "Library").is_dir()
