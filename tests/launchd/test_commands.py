"""The service's commands, as far as a machine without launchd has them."""

import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from daemon import logs
from daemon.cli.menubar import Bar
from daemon.cli.stopped import refusal_words, service_words
from daemon.errors import CommandFailed, NotRunning
from daemon.starts import Memory
from daemon.status import DaemonStatus, EngineStatus, ModelStatus
from launchd.launchctl import AgentState
from launchd.menubar import Action
from launchd.specs import SUPERVISED, daemon_spec, menubar_spec

LOG = Path("/Users/me/Library/Logs/mlxd/launchd.log")


@pytest.fixture
def account(tmp_path):
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MLXD_", "XDG_"))
    }
    return kept | {"HOME": str(tmp_path)}


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield str(other.getsockname()[1])


def mlxd(*arguments, environment):
    command = [sys.executable, "-m", "daemon.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def written_logs(account) -> str:
    return "".join(path.read_text() for path in Path(account["HOME"]).rglob("mlxd.log"))


def test_under_launchd_a_start_that_cannot_work_is_kept_and_logged_and_exits_with_zero(
    account, taken_port, tmp_path
):
    words = daemon_spec(("mlxd",), {}, LOG, 5.0).program[1:]
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    given = account | {"MLXD_PORT": taken_port, "MLXD_MODEL": str(tmp_path)}
    done = mlxd(*words, environment=given)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    refusal = f"Port {taken_port} "
    assert refusal in written_logs(account)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        asked = mlxd("status", "--port", str(probe.getsockname()[1]), environment=account)
    assert asked.returncode == 3
    assert "was refused" in asked.stderr
    assert refusal in asked.stderr


def test_a_wrong_setting_is_kept_too_and_in_the_foreground_exits_as_one(account):
    given = account | {"MLXD_PORT": "no number"}
    assert mlxd("serve", SUPERVISED, environment=given).returncode == 0
    assert "'no number'" in written_logs(account)
    done = mlxd("serve", environment=account | {"MLXD_PORT": "99999"})
    assert (done.returncode, done.stderr.count("'99999'")) == (78, 1)
    assert "refused: MLXD_PORT is '99999'" in written_logs(account)


@pytest.mark.skipif(platform.system() == "Darwin", reason="it would do it")
@pytest.mark.parametrize("command", ["install", "uninstall", "start", "stop", "restart"])
def test_without_launchd_the_commands_say_what_to_do_instead(account, command):
    done = mlxd(command, environment=account)
    assert done.returncode == 1
    assert "mlxd serve" in done.stderr
    assert not list(Path(account["HOME"]).rglob("*.plist"))


def test_what_nobody_rotates_is_emptied_before_it_is_larger_than_a_log(tmp_path):
    file = tmp_path / "launchd.log"
    logs.cut_short(file)
    file.write_bytes(b"x" * 1000)
    logs.cut_short(file)
    assert file.stat().st_size == 1000
    os.truncate(file, logs.MAX_FILE_BYTES + 1)
    logs.cut_short(file)
    assert file.stat().st_size == 0


def test_what_is_known_of_a_stopped_service_is_told():
    assert list(service_words(None)) == []
    assert "mlxd start" in next(service_words(AgentState(is_loaded=True, last_exit=0)))
    assert "mlxd start" in next(service_words(AgentState()))
    assert "exit code 1" in next(service_words(AgentState(is_loaded=True, last_exit=1)))
    killed = AgentState(is_loaded=True, killed_by="Killed: 9")
    assert "Killed: 9" in next(service_words(killed))
    assert "process 7" in next(service_words(AgentState(is_loaded=True, pid=7)))
    assert list(refusal_words(Memory())) == []
    assert "no such model" in next(refusal_words(Memory("no such model", 1.7e9)))


def test_the_menu_bars_agent_runs_the_same_command():
    spec = menubar_spec(("/opt/bin/mlxd",), {"PATH": "/bin"}, LOG)
    assert list(spec.program) == ["/opt/bin/mlxd", "menubar"]
    assert spec.label != daemon_spec(("/opt/bin/mlxd",), {}, LOG, 5.0).label


class Daemon:
    """What a menu bar asks of its daemon and its agent, and the tools that it runs."""

    def __init__(self):
        model = ModelStatus("ready", name="Qwen")
        self.answer = DaemonStatus("0.1.0", "i", 7, 9000, 5.0, EngineStatus(model))
        self.done = []

    def status(self, seconds):
        if self.answer is None:
            raise NotRunning("nobody")
        return self.answer

    def stop(self):
        self.done.append("stop")

    def unload_model(self, model):
        assert model is None  # all of them
        self.done.append("unload")

    def start(self):
        raise CommandFailed("launchd does not like it")

    def run(self, arguments):
        self.done.append(list(arguments))
        return CompletedProcess(arguments, 0, "", "")


def test_the_menu_bar_shows_the_daemon_and_does_what_is_clicked(caplog):
    daemon = Daemon()
    bar = Bar(daemon, daemon, 9000, daemon.run)
    assert bar.look().items[0].title == "Qwen: ready"
    bar.act(Action.STOP, "")
    bar.act(Action.UNLOAD, "")
    bar.act(Action.OPEN_LOG, "")
    bar.act(Action.COPY, "Codex")
    *asked, opened, copied = daemon.done
    assert asked == ["stop", "unload"]
    assert opened[0] == "/usr/bin/open"
    assert opened[1].endswith("mlxd.log")
    assert copied[0] == "/usr/bin/osascript"
    assert 'base_url = "http://127.0.0.1:9000/v1"' in copied[-1]
    daemon.answer = None
    assert bar.look().title == "mlxd –"
    bar.act(Action.START, "")
    assert "does not like it" in caplog.text
