"""A daemon behind a key, on a Unix socket, and with more clients than it may have files."""

import http.client
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest

from tests.e2e.processes import BOUND_SECONDS, ROOT, Daemon, free_port, outcome, running

KEY = "0123456789abcdef-key"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    return str(file)


def over_unix(path: Path, key: str = "") -> int:
    """The status of a request that comes by the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(BOUND_SECONDS)
        client.connect(str(path))
        head = f"GET /mlxd/status HTTP/1.1\r\nHost: mlxd\r\nX-Api-Key: {key}\r\n\r\n"
        client.sendall(head.encode())
        response = http.client.HTTPResponse(client)
        response.begin()
        return response.status


def status_command(port: int) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "daemon.cli", "status", "--port", str(port), "--json"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=3 * BOUND_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_key_closes_every_door_but_to_who_has_it(tmp_path: Path, key_file: str) -> None:
    path = tmp_path / "mlxd.sock"
    settings = {"api_key_file": key_file, "unix_socket": str(path)}
    with running(settings=settings, has_token=True, key=KEY) as daemon:
        assert daemon.chat(max_tokens=1).status_code == 200
        assert (over_unix(path), over_unix(path, KEY)) == (401, 200)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        refused = httpx2.post(f"{daemon.base_url}/v1/messages", json={}, trust_env=False)
        assert (refused.status_code, refused.json()["error"]["type"]) == (
            401,
            "authentication_error",
        )
        assert httpx2.get(f"{daemon.base_url}/health", trust_env=False).status_code == 200
        assert status_command(daemon.port)[0] == 0
        code, said = outcome(daemon.port, {})
        assert (code, "asks for an API key" in said) == (78, True)
        assert daemon.stop() == 0
        assert daemon.process.stderr is not None
        assert KEY not in daemon.process.stderr.read()
    assert not path.exists()


def test_a_key_that_others_can_read_is_a_wrong_setting(key_file: str) -> None:
    Path(key_file).chmod(0o644)
    code, said = outcome(free_port(), {"settings": {"api_key_file": key_file}})
    assert (code, "chmod 600" in said) == (78, True)
    assert KEY not in said


def open_files(daemon: Daemon) -> int:
    return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))


def half_closed(daemon: Daemon) -> int:
    """Connections to the daemon's port that only the other side has closed."""
    listed = Path("/proc/net/tcp").read_text().splitlines()[1:]
    rows = (line.split() for line in listed)
    port = f":{daemon.port:04X}"
    return sum(1 for row in rows if row[1].endswith(port) and row[3] == "08")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts by /proc")
@pytest.mark.parametrize("hard", [4096, 256])
def test_idle_connections_do_not_stop_a_daemon_however_few_files_it_may_open(hard: int) -> None:
    """launchd allows 256 at first; where that is all, the longest idle ones make room."""
    with running(file_limits=[256, hard]) as daemon:
        before = open_files(daemon)
        idle = daemon.connections
        for _ in range(300):
            idle.append(socket.create_connection(("127.0.0.1", daemon.port), BOUND_SECONDS))
        assert daemon.http.get("/health").status_code == 200
        assert daemon.chat(max_tokens=1).status_code == 200
        if hard > 300:
            assert open_files(daemon) >= before + 300
        for connection in idle:
            connection.close()
        deadline = time.monotonic() + BOUND_SECONDS
        while open_files(daemon) > before + 2:
            assert time.monotonic() < deadline, "connections are left open"
            time.sleep(0.02)
        assert half_closed(daemon) == 0
