"""The log goes to the terminal and to a file that cannot grow without end."""

import subprocess
import sys

from daemon.logs import KEPT_FILES, MAX_FILE_BYTES

DEADLINE_SECONDS = 60


def log_lines(file, lines, level="info"):
    """What reaches the terminal when a process logs `lines`."""
    code = (
        "import logging, pathlib, sys\n"
        "from daemon.logs import start_logging\n"
        f"start_logging({level!r}, pathlib.Path(sys.argv[1]))\n"
        f"{lines}"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(file)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=True,
    ).stderr


def test_a_line_is_in_the_terminal_and_in_the_file(tmp_path):
    file = tmp_path / "logs" / "mlxd.log"
    terminal = log_lines(file, "logging.getLogger('daemon.x').info('ready in %d s', 3)")
    assert terminal.endswith("INFO    daemon.x: ready in 3 s\n")
    assert file.read_text() == terminal


def test_lines_below_the_level_are_left_out(tmp_path):
    assert log_lines(tmp_path / "log", "logging.getLogger('x').debug('detail')") == ""
    assert "detail" in log_lines(
        tmp_path / "log", "logging.getLogger('x').debug('detail')", level="debug"
    )


def test_the_file_is_rotated_and_only_a_few_are_kept(tmp_path):
    lines = (
        "logging.root.removeHandler(logging.root.handlers[0])\n"
        f"for _ in range({(KEPT_FILES + 2) * MAX_FILE_BYTES // 2**20}):\n"
        "    logging.info('x' * 2**20)\n"
    )
    log_lines(tmp_path / "mlxd.log", lines)
    files = sorted(tmp_path.iterdir())
    assert len(files) == KEPT_FILES + 1
    assert all(file.stat().st_size <= MAX_FILE_BYTES for file in files)


def test_a_file_that_cannot_be_written_does_not_stop_the_daemon(tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    terminal = log_lines(tmp_path / "taken" / "mlxd.log", "logging.info('still running')")
    assert "no log file" in terminal
    assert "still running" in terminal
