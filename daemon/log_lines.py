"""The daemon's log, read from outside: its last lines, and those that come.

The daemon renames a full file (`mlxd.log` to `mlxd.log.1`, that to `.2`, …) and begins a new one
under the name. Whoever follows reads the renamed one to its end first, so that no line is lost.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

LOOK_SECONDS = 0.25


def last_lines(file: Path, count: int) -> list[str]:
    """The last `count` lines of `file` and its forerunners, the oldest first."""
    try:
        with _opened(file) as log:
            return _last_of(log, file, count)
    except FileNotFoundError:
        return []


def follow(file: Path, pause: Callable[[], None], last: int = 0) -> Iterator[str]:
    """The `last` lines, and for ever those that are written from then on.

    `pause` is called whenever there is nothing new. A file that is not there is waited for, and
    read from its beginning.
    """
    was_there = file.exists()
    while True:
        try:
            log = _opened(file)
        except FileNotFoundError:
            pause()
            continue
        with log:
            if was_there:
                yield from _last_of(log, file, last)
                was_there = False
            yield from _until_renamed(log, file, pause)


def _last_of(log: TextIO, file: Path, count: int) -> list[str]:
    """Reads `log`, which is the newest, to its end."""
    lines = deque(map(_plain, log), maxlen=count)
    number = 1
    while len(lines) < count and (older := file.with_name(f"{file.name}.{number}")).exists():
        with _opened(older) as opened:
            missing = deque(map(_plain, opened), maxlen=count - len(lines))
        lines.extendleft(reversed(missing))
        number += 1
    return list(lines)


def _until_renamed(log: TextIO, file: Path, pause: Callable[[], None]) -> Iterator[str]:
    line = ""
    while True:
        is_complete = _is_renamed(log, file)  # asked before what is left is read
        while piece := log.readline():
            line += piece
            if line.endswith("\n"):
                yield _plain(line)
                line = ""
        if is_complete:
            return
        pause()


def _is_renamed(log: TextIO, file: Path) -> bool:
    try:
        return not os.path.samestat(os.fstat(log.fileno()), file.stat())
    except FileNotFoundError:  # the new one is about to come
        return False


def _opened(file: Path) -> TextIO:
    return file.open(encoding="utf-8", errors="replace")


def _plain(line: str) -> str:
    return line.removesuffix("\n")
