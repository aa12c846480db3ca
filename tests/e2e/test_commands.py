"""The commands that ask a daemon, against one that runs: what they say, do and refuse.

The daemon is a process; the commands run in this one, which saves the imports of each. That they
run in one of their own is told by `tests/test_cli.py`.
"""

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from daemon.cli import ExitCode, main
from tests.e2e.processes import Daemon, free_port, running

WIDEST = 80


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


class Shell:
    """Runs `mlxd` in a pipe against one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def run(self, *arguments: str) -> Done:
        return mlxd(*arguments, "--port", str(self.daemon.port))

    def text(self, *arguments: str) -> str:
        """What a command that does its work prints; no line is too long."""
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert max(map(len, done.stdout.splitlines())) <= WIDEST, done.stdout
        assert "\x1b" not in done.stdout
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


def mlxd(*arguments: str) -> Done:
    out, errors = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["mlxd", *arguments]),
        redirect_stdout(out),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Done(int(ended.value.code or 0), out.getvalue(), errors.getvalue())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account of its own: the daemon's token is made there, and read there."""
    for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", str(WIDEST))


@contextmanager
def shell(**options: Any) -> Iterator[Shell]:
    with running(has_token=True, script={"reply": "so it is"}, **options) as daemon:
        yield Shell(daemon)


def test_what_was_asked_is_seen_in_every_command() -> None:
    head = "The same beginning. " * 20
    with shell() as at:
        for session in ("main", "main", "other"):
            at.daemon.chat(head + session, session_id=session)
        status = at.text("status")
        assert "Sessions" in status
        assert re.search(r"^main +2 ", status, flags=re.MULTILINE)
        assert at.text("top").startswith("mlxd ")
        assert at.text("cache").count("of main") >= 1
        assert "●" in at.text("cache", "--tree")
        assert re.search(r"^other +1 ", at.text("sessions"), flags=re.MULTILINE)
        assert at.text("cache", "check").startswith("Sound: every invariant holds")


def test_json_is_what_the_daemon_says() -> None:
    with shell() as at:
        at.daemon.chat("hello", session_id="main")
        said = at.daemon.http.get("/mlxd/cache").json()["cache"]
        assert at.json("cache")["cache"] == said
        assert at.json("top")["instance"] == at.json("status")["instance"]
        assert at.json("sessions")["data"][0]["id"] == "main"
        assert at.json("cache", "check")["is_sound"] is True
        assert at.json("sessions", "reset", "main")["live_tokens"] == 0
        assert at.json("sessions", "rm", "main") == {"id": "main", "deleted": True}
        assert at.json("cache", "clear")["entries"] == 0


def test_sessions_are_reset_and_removed_and_the_cache_is_cleared() -> None:
    with shell() as at:
        at.daemon.chat("hello", session_id="a/b")
        assert "starts afresh" in at.text("sessions", "reset", "a/b")
        assert at.json("sessions")["data"][0]["live_tokens"] == 0
        assert at.text("sessions", "rm", "a/b") == "Removed: a/b.\n"
        assert at.text("sessions") == "No sessions.\n"
        at.daemon.chat("hello")
        assert at.text("cache", "clear") == "Cleared: 0 entries are left.\n"
        assert "Nothing is kept yet." in at.text("cache")


def test_an_unknown_session_is_named() -> None:
    with shell() as at:
        done = at.run("sessions", "rm", "nobody")
        assert done.returncode == ExitCode.FAILED
        assert "nobody" in done.stderr


def test_who_has_no_token_cannot_clear_and_is_told_where_it_is() -> None:
    with shell() as at:
        at.daemon.chat("hello")
        (token,) = Path(os.environ["HOME"]).rglob("private/token")
        token.write_text("another\n")
        done = at.run("cache", "clear")
        assert done.returncode == ExitCode.FAILED
        assert str(token) in done.stderr
        assert at.json("cache")["entries"]


def test_why_tells_one_request_by_the_beginning_of_its_id() -> None:
    with shell() as at:
        first = at.daemon.chat("The same beginning. " * 20, session_id="main")
        at.daemon.chat("The same beginning. " * 20, session_id="other")
        request = first.headers["x-request-id"]
        told = at.text("why", request)
        assert request in told
        assert "session main" in told
        assert "nothing stored begins" in " ".join(told.split())
        assert at.text("why", request[: len("req_") + 12]).splitlines()[2:] == told.splitlines()[2:]
        assert at.json("why", first.json()["id"])["id"] == request
        assert "session other" in at.text("why")
        assert at.json("why", "main")["id"] == request
        done = at.run("why", "req_none")
        assert done.returncode == ExitCode.FAILED
        assert "req_none" in done.stderr


def test_why_shows_the_line_that_a_session_changed() -> None:
    with shell() as at:
        for day in ("Saturday", "Sunday"):
            text = "The same beginning. " * 20 + f"Today is {day}. " + "And so on. " * 20
            at.daemon.chat(text, session_id="main")
        told = " ".join(at.text("why").split())
        assert "stored 'day is Saturday." in told
        assert "sent 'day is Sunday." in told


def test_while_the_model_loads_the_commands_say_so() -> None:
    with running(script={"load_seconds": 30.0}, wait="loading", grace_seconds=0.0) as daemon:
        at = Shell(daemon)
        assert at.run("status").returncode == ExitCode.STARTING
        done = at.run("cache")
        assert done.returncode == ExitCode.DEGRADED
        assert "being loaded" in done.stderr
        daemon.process.kill()


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["top"], ["cache"], ["cache", "clear"], ["cache", "check"], ["sessions"], ["why"]],
)
def test_every_command_says_when_nothing_listens(arguments: list[str]) -> None:
    port = free_port()
    done = mlxd(*arguments, "--port", str(port))
    assert done.returncode == ExitCode.STOPPED
    assert done.stdout == ""
    assert f"port {port}" in done.stderr
    assert "mlxd serve" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["cache", "burn"], ["sessions", "reset"], ["sessions", "burn", "main"]]
)
def test_a_wrong_action_is_a_wrong_command_line(arguments: list[str]) -> None:
    assert mlxd(*arguments).returncode == 2
