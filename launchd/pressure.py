"""Memory pressure as macOS reports it: an event of the kernel, without a thread and without ticks.

The kernel's event filter for it is the one that libdispatch's memory-pressure source is made of.
Python's `select` has no name for it, only its number does. The queue of events has a descriptor
that an event loop can wait for; each level is reported once, when it is entered.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Protocol

MEMORY_STATUS = -14
"""`EVFILT_MEMORYSTATUS` of sys/event.h; the levels are its `NOTE_MEMORYSTATUS_PRESSURE_*`."""

NORMAL, WARNING, CRITICAL = 1, 2, 4


class Pressure(StrEnum):
    """How short memory is; the system swaps, and then ends programs, when it is critical."""

    NORMAL = "normal"
    WARNING = "warning"
    CRITICAL = "critical"


class EventQueue(Protocol):
    """The kernel's queue of events, as `select.kqueue` has it. Methods raise OSError."""

    def control(
        self, changes: Sequence[Any] | None, max_events: int, timeout: float | None = None
    ) -> Sequence[Any]: ...

    def fileno(self) -> int: ...

    def close(self) -> None: ...


class PressureWatch:
    """Reports memory pressure from now on. `event` makes the kernel's event, as `select.kevent`.

    Raises OSError where the kernel does not report it.
    """

    def __init__(self, queue: EventQueue, event: Callable[..., Any], add: int) -> None:
        self._queue = queue
        levels = NORMAL | WARNING | CRITICAL
        queue.control([event(0, filter=MEMORY_STATUS, flags=add, fflags=levels)], 0, 0)

    def fileno(self) -> int:
        """Readable when there is something to `read`."""
        return self._queue.fileno()

    def read(self) -> Pressure | None:
        """The latest level; None if there was no news. Does not wait."""
        told = self._queue.control(None, 8, 0)
        if not told:
            return None
        latest = told[-1].fflags
        if latest & CRITICAL:
            return Pressure.CRITICAL
        return Pressure.WARNING if latest & WARNING else Pressure.NORMAL

    def close(self) -> None:
        self._queue.close()


def watch_pressure() -> PressureWatch:
    """On this Mac. Raises OSError where there is no such report."""
    if sys.platform != "darwin":
        raise OSError("only macOS reports memory pressure so")
    add = select.KQ_EV_ADD | select.KQ_EV_CLEAR
    return PressureWatch(select.kqueue(), select.kevent, add)
