"""Being told to stop while there is nothing to stop yet, or any more: a clean end at once.

Python's own answers to these signals are ends that a supervisor counts as crashes. The event loop
has its own for the time between, in `server`. Imports next to nothing, to be there first.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_OK = 0


def exit_when_told() -> None:
    """From now on SystemExit is raised, in the main thread, wherever that is."""
    for number in STOP_SIGNALS:
        signal.signal(number, _exit)


def ignore_from_now_on() -> None:
    """The end has its exit code, if `exit_when_told` watched until here: the interpreter takes
    handlers away a while before it is gone, and what comes then would be a crash after all."""
    if signal.getsignal(signal.SIGTERM) is _exit:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_OK)
