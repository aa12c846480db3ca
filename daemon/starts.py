"""What one start of the daemon leaves for the next one, and for `mlxd status`: a small file.

Why the last start was refused, if it was; and, of the service's starts, which ended in a crash. A
start that left no end behind crashed, and the next one counts it. Times are monotonic, which is
one clock for all processes between two boots; what lies ahead of it is from before the last boot.
No liveness is read here: who wants to know asks the socket. A file that cannot be kept costs
these memories and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

log = logging.getLogger(__name__)

CRASH_WINDOW_SECONDS = 300.0
MAX_CRASHES = 3
"""So many within the window: the next start goes without the model, which is likely the cause."""


@dataclass(frozen=True, slots=True)
class Memory:
    """`refusal` is why the last start came to nothing, `refused_at` its date. `is_open`: a start
    of the service has not told its end. `crashes` are times."""

    refusal: str = ""
    refused_at: float = 0.0
    is_open: bool = False
    crashes: tuple[float, ...] = ()


class Starts:
    """The memory in `file`. Only the starts of a service are `counted`: in the foreground somebody
    sees a crash, and several may run at once."""

    def __init__(
        self,
        file: Path,
        *,
        counted: bool = False,
        clock: Callable[[], float] = time.monotonic,
        date: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._counted = counted
        self._clock = clock
        self._date = date

    def read(self) -> Memory:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            memory = Memory(**{**found, "crashes": tuple(map(float, found["crashes"]))})
        except (OSError, ValueError, TypeError, KeyError):
            return Memory()
        now = self._clock()
        recent = (at for at in memory.crashes if now - CRASH_WINDOW_SECONDS < at <= now)
        return replace(memory, crashes=tuple(recent))

    def begin(self) -> int:
        """A start: how many crashed within the last minutes, this one's forerunner included."""
        if not self._counted:
            return 0
        before = self.read()
        crashes = (*before.crashes, self._clock()) if before.is_open else before.crashes
        self._write(replace(before, is_open=True, crashes=crashes))
        return len(crashes)

    def forget_refusal(self) -> None:
        """The port is bound, or a new start is being made: what refused an earlier one is past."""
        before = self.read()
        if before.refusal:
            self._write(replace(before, refusal="", refused_at=0.0))

    def refused(self, why: str) -> None:
        """This start cannot work, and the next one would not either."""
        memory = replace(self.read(), refusal=why, refused_at=self._date())
        self._write(replace(memory, is_open=False) if self._counted else memory)

    def ended(self) -> None:
        """A clean end; whoever starts it again begins anew."""
        if self._counted:
            self._write(replace(self.read(), is_open=False, crashes=()))

    def _write(self, memory: Memory) -> None:
        made = self._file.with_name(f".{self._file.name}-{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(json.dumps(asdict(memory)), encoding="utf-8")
            made.replace(self._file)
        except OSError as error:
            log.warning("nothing is remembered of this start: %s", error)


def crash_words(crashes: int) -> str:
    """What to tell instead of loading the model, after too many crashes; "" if there were few."""
    if crashes < MAX_CRASHES:
        return ""
    return (
        f"not loaded, because the daemon crashed {crashes} times within five minutes; "
        "`mlxd logs` shows what led to it, `mlxd load` tries the model again"
    )
