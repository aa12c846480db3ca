"""Where the daemon's log goes: the terminal, and a file of bounded size.

Nothing here or elsewhere logs the text of a prompt or an answer; sizes, times and ids only.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from contextlib import suppress
from pathlib import Path

MAX_FILE_BYTES = 5 * 2**20
KEPT_FILES = 3
LINE = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def start_logging(level: str, file: Path | None, *, to_terminal: bool = True) -> None:
    """Log at `level` to standard error, if wanted, and, where it can be written, to `file`.

    Without a file that can be written the daemon still runs: the terminal says so. What a service
    writes there goes to a file that nobody rotates, so it is not told there what `file` has.
    """
    handlers: list[logging.Handler] = []
    refusal: OSError | None = None
    if file is not None:
        try:
            handlers.append(_rotating(file))
        except OSError as error:
            refusal = error
    if to_terminal or not handlers:
        handlers.insert(0, logging.StreamHandler(sys.stderr))
    logging.basicConfig(level=level.upper(), format=LINE, handlers=handlers, force=True)
    for chatty in ("httpcore2", "httpx2", "asyncio", "urllib3", "filelock"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.root.level))
    if refusal is not None:
        logging.getLogger(__name__).warning("no log file: %s", refusal)


def cut_short(file: Path) -> None:
    """Empty a file that only grows, once it is larger than a log may be."""
    with suppress(OSError):
        if file.stat().st_size > MAX_FILE_BYTES:
            os.truncate(file, 0)


def _rotating(file: Path) -> logging.Handler:
    file.parent.mkdir(parents=True, exist_ok=True)
    return logging.handlers.RotatingFileHandler(
        file, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8", delay=False
    )
