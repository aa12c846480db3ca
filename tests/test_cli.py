"""The command as a person or a script runs it: what it prints, and how it exits."""

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from daemon import __version__
from daemon.cli import ExitCode
from daemon.status import CacheStatus, DaemonStatus, EngineStatus, ModelStatus

DEADLINE_SECONDS = 60
HEAVY = {"mlx", "mlx_lm", "transformers", "numpy", "starlette", "uvicorn"}
HEAVY |= {"rich", "httpx2", "asyncio"}
READY = ModelStatus(state="ready", name="SmolLM2", cache_kind="sliceable", context_size=8192)
STATUS = DaemonStatus(
    version=__version__,
    instance="i",
    pid=1,
    port=1,
    uptime_seconds=5.0,
    engine=EngineStatus(READY, CacheStatus(entries=2, max_entries=9)),
)


@pytest.fixture
def home(tmp_path):
    """An environment in which nothing was ever fetched or set."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("MLXD_")}
    folders = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return keep | folders | {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def mlxd(*arguments, environment, code="import daemon.cli; daemon.cli.main()"):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


@contextmanager
def answering(body: bytes, status=200, key=None):
    """A port that answers every GET with `body`, or those only that have the `key`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_let_in = key is None or self.headers["authorization"] == key
            self.send_response(status if is_let_in else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def answer(status: DaemonStatus) -> bytes:
    return json.dumps(asdict(status)).encode()


def in_state(state: str, error=None) -> DaemonStatus:
    model = replace(READY, state=state, error=error)
    return replace(STATUS, engine=replace(STATUS.engine, model=model))


def test_status_of_a_stopped_daemon_says_what_to_do(home, closed_port):
    result = mlxd("status", "--port", closed_port, environment=home)
    assert result.returncode == ExitCode.STOPPED
    assert result.stdout == ""
    assert f"port {closed_port}" in result.stderr
    assert "mlxd serve" in result.stderr


def test_status_of_a_stopped_daemon_imports_nothing_heavy(home, closed_port):
    code = "\n".join(
        [
            "import atexit, sys",
            "atexit.register(lambda: print(*sorted(sys.modules)))",
            "import daemon.cli; daemon.cli.main()",
        ]
    )
    result = mlxd("status", "--port", closed_port, environment=home, code=code)
    loaded = set(result.stdout.split())
    assert "typer" in loaded
    assert not loaded & HEAVY


def test_status_takes_its_port_from_the_environment_too(home, closed_port):
    result = mlxd("status", environment=home | {"MLXD_PORT": str(closed_port)})
    assert f"port {closed_port}" in result.stderr


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("ready", ExitCode.READY),
        ("unloaded", ExitCode.READY),
        ("loading", ExitCode.STARTING),
        ("failed", ExitCode.DEGRADED),
        ("closed", ExitCode.DEGRADED),
    ],
)
def test_status_exits_with_what_the_daemon_is(home, state, code):
    with answering(answer(in_state(state))) as port:
        result = mlxd("status", "--port", port, environment=home)
    assert result.returncode == code
    assert f"mlxd {__version__}: {state}" in result.stdout


def test_status_as_json_is_what_the_daemon_said(home):
    with answering(answer(STATUS)) as port:
        result = mlxd("status", "--json", "--port", port, environment=home)
    assert json.loads(result.stdout) == json.loads(answer(STATUS))


def test_a_daemon_of_another_version_is_noticed_and_how_to_renew_it(home):
    with answering(answer(replace(STATUS, version="0.0.9"))) as port:
        result = mlxd("status", "--port", port, environment=home)
    assert result.returncode == ExitCode.READY
    assert "mlxd 0.0.9" in result.stderr
    assert "mlxd restart" in result.stderr
    hello = json.dumps({"name": "mlxd", "version": "9.9", "entries": "of another kind"}).encode()
    with answering(hello) as port:
        result = mlxd("cache", "--port", port, environment=home)
    assert result.returncode == ExitCode.DEGRADED
    assert "mlxd 9.9" in result.stderr


def test_where_an_api_key_is_set_the_own_token_stands_in_for_it(home):
    token = Path(home["XDG_STATE_HOME"]) / "mlxd" / "private" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("the token\n")
    with answering(answer(STATUS), key="Bearer the token") as port:
        assert mlxd("status", "--port", port, environment=home).returncode == ExitCode.READY
        token.unlink()
        assert mlxd("status", "--port", port, environment=home).returncode == ExitCode.DEGRADED


def test_status_in_a_pipe_has_no_colours(home):
    with answering(answer(STATUS)) as port:
        result = mlxd("status", "--port", port, environment=home)
    assert "\x1b" not in result.stdout
    assert "2 of 9 entries" in result.stdout


@pytest.mark.parametrize(("body", "status"), [(b"<html>", 200), (b"{}", 200), (b"no", 404)])
def test_another_program_on_the_port_is_not_taken_for_a_daemon(home, body, status):
    with answering(body, status) as port:
        result = mlxd("status", "--port", port, environment=home)
    assert result.returncode == ExitCode.DEGRADED
    assert f"Port {port}" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["serve", "status"])
def test_a_wrong_setting_exits_as_one(home, command):
    result = mlxd(command, "--port", "0", environment=home)
    assert result.returncode == ExitCode.CONFIGURATION
    assert "--port is '0'" in result.stderr


def test_a_wrong_variable_exits_as_a_wrong_setting(home):
    result = mlxd("serve", environment=home | {"MLXD_KV_BITS": "3"})
    assert result.returncode == ExitCode.CONFIGURATION
    assert "MLXD_KV_BITS is '3'" in result.stderr


def test_serve_without_a_model_says_what_to_do(home):
    result = mlxd("serve", environment=home)
    assert result.returncode == ExitCode.CONFIGURATION
    assert "mlxd demo" in result.stderr
    assert "--model" in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_with_a_model_that_is_not_there_exits_as_a_wrong_setting(home, closed_port):
    folder = "/no/such/model"
    result = mlxd("serve", "--model", folder, "--port", closed_port, environment=home)
    assert result.returncode == ExitCode.CONFIGURATION
    assert folder in result.stderr.splitlines()[-1]


def test_no_folder_is_taken_for_mlxds_own_that_others_keep_things_in(home, tmp_path):
    shared = tmp_path / "shared"
    (shared / "Letters").mkdir(parents=True)
    shared.chmod(0o755)
    named = ("--disk-cache-folder", shared)
    for command in (("serve",), ("cache", "--disk")):
        refused = mlxd(*command, *named, environment=home)
        assert refused.returncode == ExitCode.CONFIGURATION
        assert "has something else in it (Letters)" in refused.stderr
        assert shared.stat().st_mode & 0o777 == 0o755
    unused = mlxd("serve", *named, "--disk-cache-bytes", "0", environment=home)
    (shared / "written-today").touch()  # as a daemon leaves its own, whoever came later
    used_before = mlxd("serve", *named, environment=home)
    assert all("No model is configured" in each.stderr for each in (unused, used_before))


@pytest.mark.parametrize("arguments", [["--peer", "vllm"], ["--kind", "tiny"]])
def test_bench_refuses_what_it_does_not_know(home, arguments):
    result = mlxd("bench", *arguments, environment=home)
    assert result.returncode == ExitCode.CONFIGURATION
    assert arguments[0] in result.stderr


def test_demo_with_a_model_that_is_not_there_says_so(home):
    result = mlxd("demo", "--model", "/no/such/model", environment=home)
    assert result.returncode == ExitCode.FAILED
    assert "/no/such/model" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_command_is_a_wrong_command_line(home):
    assert mlxd("sevre", environment=home).returncode == 2


def test_without_a_command_the_help_is_shown(home):
    result = mlxd(environment=home)
    assert "serve" in result.stdout + result.stderr


def test_version_is_the_packages(home):
    assert mlxd("version", environment=home).stdout == f"mlxd {__version__}\n"


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, *arguments, environment):
        self.descriptor, inner = pty.openpty()
        self.found = termios.tcgetattr(inner)
        code = "import daemon.cli; daemon.cli.main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=environment,
            stdin=inner,
            stdout=inner,
        )
        self.inner = inner
        self.written = b""

    def wait_for(self, written: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while written not in self.written:
            assert time.monotonic() < deadline, self.written
            if select.select([self.descriptor], [], [], 0.1)[0]:
                self.written += os.read(self.descriptor, 65536)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.descriptor)
        os.close(self.inner)


ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


@pytest.mark.parametrize("end", ["q", signal.SIGINT])
def test_top_goes_on_until_it_is_told_to_end_and_leaves_the_terminal_as_it_was(home, end):
    with (
        answering(answer(STATUS)) as port,
        closing(Terminal("top", "--port", port, environment=home)) as at,
    ):
        at.wait_for(b"ready on port 1")
        assert ENTER_SCREEN in at.written
        os.write(at.descriptor, b"q") if end == "q" else at.process.send_signal(end)
        at.wait_for(LEAVE_SCREEN)
        assert at.process.wait(DEADLINE_SECONDS) == 0
        assert termios.tcgetattr(at.inner) == at.found


def test_top_in_a_pipe_is_one_look(home):
    with answering(answer(STATUS)) as port:
        result = mlxd("top", "--port", port, environment=home)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    assert "SmolLM2, ready on port 1" in result.stdout
