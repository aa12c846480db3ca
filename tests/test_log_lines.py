"""What `mlxd logs` shows: the last lines, and each further one once, however files are rotated."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from daemon import paths
from daemon.cli.logs import logs
from daemon.log_lines import follow, last_lines
from tests.e2e.processes import BOUND_SECONDS, ROOT


def test_the_last_lines_come_from_as_many_files_as_they_take(tmp_path: Path) -> None:
    log = tmp_path / "mlxd.log"
    log.write_text("5\n6\n")
    log.with_name("mlxd.log.1").write_text("3\n4\n")
    log.with_name("mlxd.log.2").write_text("1\n2\n")
    assert last_lines(log, 1) == ["6"]
    assert last_lines(log, 5) == ["2", "3", "4", "5", "6"]
    assert last_lines(log, 50) == ["1", "2", "3", "4", "5", "6"]
    assert last_lines(log, 0) == []


def test_a_log_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "mlxd.log", 5) == []


class Writer:
    """Writes in each pause of the one who follows, as a daemon that rotates does."""

    def __init__(self, log: Path, *steps: Callable[[Path], None]) -> None:
        self._log = log
        self._steps: Iterator[Callable[[Path], None]] = iter(steps)

    def __call__(self) -> None:
        next(self._steps)(self._log)


def adds(text: str) -> Callable[[Path], None]:
    def add(log: Path) -> None:
        with log.open("a") as opened:
            opened.write(text)

    return add


def rotates(log: Path) -> None:
    log.rename(log.with_name("mlxd.log.1"))


def nothing(log: Path) -> None:
    pass


def test_who_follows_sees_each_line_once_across_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "mlxd.log"
    log.write_text("old\nlast\n")

    def at_the_end(log: Path) -> None:
        """The last line goes to the file that is renamed before anybody looks again."""
        adds("c\n")(log)
        rotates(log)
        adds("d\ne\n")(log)

    writer = Writer(log, adds("a\nb"), nothing, adds("b\n"), at_the_end, rotates, adds("f\n"))
    assert list(islice(follow(log, writer, 1), 7)) == ["last", "a", "bb", "c", "d", "e", "f"]


def test_a_log_that_is_yet_to_come_is_followed_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "mlxd.log"
    writer = Writer(log, nothing, adds("a\nb\nc\n"), adds("d\n"))
    assert list(islice(follow(log, writer, 1), 4)) == ["a", "b", "c", "d"]


def test_the_command_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    where = "from daemon import paths; print(paths.daemon_log())"
    python = [sys.executable, "-c"]
    found = subprocess.run([*python, where], env=environment, capture_output=True, check=True)
    log = Path(found.stdout.decode().strip())
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\n")
    command = [sys.executable, "-m", "daemon.cli", "logs", "-f", "-n", "1"]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"two\n"
        adds("three\n")(log)
        assert process.stdout.readline() == b"three\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(BOUND_SECONDS) == 0
        assert process.stderr.read() == b""


def test_the_command_says_where_the_last_words_of_a_service_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A crash of the interpreter is in no log of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    logs(follow=False, lines=5)
    assert "no log yet" in capsys.readouterr().err
    paths.logs_folder().mkdir(parents=True)
    paths.daemon_log().write_text("one\n")
    paths.terminal_log().write_text("Fatal Python error\n")
    logs(follow=False, lines=5)
    told = capsys.readouterr()
    assert told.out == "one\n"
    assert str(paths.terminal_log()) in told.err
