"""What was written to the disk this day, over all runs: one short line in the cache's folder.

It bounds the wear of an SSD and nothing else: if it cannot be read, the day begins anew.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import date

from daemon.disk_cache.folder import FILE_MODE

NAME = "written-today"
_LINE = re.compile(rb"(\d{4}-\d{2}-\d{2}) (\d{20})\n")
_LINE_BYTES = 32


def written_on(folder: int, day: date) -> int:
    """Bytes that were written on `day`, the ledger's own not counted."""
    with suppress(OSError):
        descriptor = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            line = _LINE.fullmatch(os.read(descriptor, _LINE_BYTES))
        finally:
            os.close(descriptor)
        if line and line[1].decode() == day.isoformat():
            return int(line[2])
    return 0


def add(folder: int, day: date, nbytes: int) -> int:
    """Add to what was written on `day`; the sum. One write of one line: no reader sees half."""
    total = written_on(folder, day) + nbytes
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError):
        descriptor = os.open(NAME, flags, FILE_MODE, dir_fd=folder)
        try:
            os.pwrite(descriptor, f"{day.isoformat()} {total:020d}\n".encode(), 0)
        finally:
            os.close(descriptor)
    return total
