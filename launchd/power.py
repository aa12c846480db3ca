"""The Mac's power: keeping it from idle sleep while there is work, and how it is doing itself.

`caffeinate` keeps it awake and is told whom it works for, so that it ends with that process even
if nobody can end it any more. Low-power mode is what `pmset` says, heat what the system's own
notification says; what cannot be found out is unknown, and costs nothing else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from launchd.tools import Run

CAFFEINATE = "/usr/bin/caffeinate"
PMSET = "/usr/bin/pmset"
NOTIFYUTIL = "/usr/bin/notifyutil"
HEAT = "com.apple.system.thermalpressurelevel"
HEAT_WORDS = ("nominal", "fair", "serious", "critical", "critical")
"""By the level of the notification: nominal, moderate, heavy, trapping, sleeping."""

END_SECONDS = 1.0


class Process(Protocol):
    """A started tool, as `subprocess.Popen` has it."""

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


Spawn = Callable[[Sequence[str]], Process]
"""Starts a tool and does not wait for it. Raises OSError."""


def spawn_tool(arguments: Sequence[str]) -> Process:
    """A `Spawn` for the real tools."""
    nothing = subprocess.DEVNULL
    return subprocess.Popen(arguments, stdin=nothing, stdout=nothing, stderr=nothing)


class Caffeine:
    """Keeps the machine from idle sleep between `start` and `end`, on behalf of process `pid`."""

    def __init__(self, spawn: Spawn, pid: int) -> None:
        self._spawn = spawn
        self._pid = pid
        self._process: Process | None = None

    @property
    def is_kept_awake(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Again is no change; one that ended by itself is started anew. Raises OSError."""
        if not self.is_kept_awake:
            self._process = self._spawn((CAFFEINATE, "-i", "-w", str(self._pid)))

    def end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS)


@dataclass(frozen=True, slots=True)
class PowerState:
    """`is_low_power` is None, and `heat` "", where that is unknown."""

    is_low_power: bool | None = None
    heat: str = ""


def power_state(run: Run) -> PowerState:
    """Asks two tools; some ten milliseconds each."""
    modes = run((PMSET, "-g")).stdout
    low_power = re.search(r"^\s*lowpowermode\s+(\d)", modes, flags=re.MULTILINE)
    heat = re.search(rf"{re.escape(HEAT)}\s+(\d+)", run((NOTIFYUTIL, "-g", HEAT)).stdout)
    level = min(int(heat[1]), len(HEAT_WORDS) - 1) if heat else None
    return PowerState(
        is_low_power=None if low_power is None else low_power[1] == "1",
        heat="" if level is None else HEAT_WORDS[level],
    )
