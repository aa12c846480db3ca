"""A program in a terminal, for what an agent does nowhere else: it is typed to, as by a person."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path

ROWS, COLUMNS = 40, 160
READY_SECONDS = 60
SETTLE_SECONDS = 1.0
QUIET_SECONDS = 6.0
LOOK_SECONDS = 0.2


def start_typed(
    words: list[str], cwd: Path, env: Mapping[str, str], output: Path, ready: str, text: str
) -> subprocess.Popen[bytes]:
    """Start a program, wait for `ready` on its screen, type `text` and enter it.

    All that it shows goes to `output` until it ends.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    output.write_bytes(b"")
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**env, "TERM": "xterm-256color"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    threading.Thread(target=_copy, args=(ours, output), daemon=True).start()
    deadline = time.monotonic() + READY_SECONDS
    while ready.encode() not in output.read_bytes():
        assert time.monotonic() < deadline, f"`{ready}` is not to be seen"
        time.sleep(LOOK_SECONDS)
    for typed in (text, "\r"):
        time.sleep(SETTLE_SECONDS)
        os.write(ours, typed.encode())
    return process


def wait_until_quiet(output: Path, seconds: float) -> None:
    """Until a program has shown nothing for a while, as one that waits to be typed to."""
    deadline = time.monotonic() + seconds
    while time.time() - output.stat().st_mtime < QUIET_SECONDS:
        assert time.monotonic() < deadline, "it does not come to rest"
        time.sleep(LOOK_SECONDS)


def _copy(terminal: int, output: Path) -> None:
    with output.open("ab", buffering=0) as file:
        try:
            while data := os.read(terminal, 65536):
                file.write(data)
        except OSError:  # it ended
            pass
    os.close(terminal)
