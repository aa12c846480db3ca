"""What the daemon does for the machine it runs on, and what it hears from it.

While there is work the machine is kept from idle sleep, and a little longer: agents run a tool and
come back. When memory is short the prefix cache shrinks, before the system swaps. Everything here
happens because something happened, so an idle daemon sleeps. It belongs to the event loop; what
talks to macOS comes in as `Edges`, and what fails there costs its own service and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from daemon.engine import Engine, Inspection
from daemon.errors import DaemonError
from daemon.status import MachineStatus
from launchd.backups import keep_out
from launchd.power import Caffeine, PowerState, power_state, spawn_tool
from launchd.pressure import Pressure, PressureWatch, watch_pressure
from launchd.tools import run_tool

log = logging.getLogger(__name__)

LINGER_SECONDS = 10.0
"""How long the machine is kept awake after the last request."""

POWER_SECONDS = 10.0
"""How old what is told of power and heat may be."""

TOOL_SECONDS = 3.0
GIVEN_BACK = {Pressure.WARNING: 0.5, Pressure.CRITICAL: 1.0}
"""Which share of what the prefix cache holds goes at once."""


@dataclass(frozen=True, slots=True)
class Edges:
    """What talks to macOS; by default nothing does. `keep_out` returns what did not work."""

    caffeine: Caffeine | None = None
    watch: Callable[[], PressureWatch] | None = None
    power: Callable[[], PowerState] | None = None
    keep_out: Callable[[], list[str]] | None = None


def edges_of_this_machine(regained: Iterable[Path]) -> Edges:
    """`regained`: folders whose contents can be fetched or made again."""
    if sys.platform != "darwin":
        return Edges()
    run = partial(run_tool, seconds=TOOL_SECONDS)
    return Edges(
        caffeine=Caffeine(spawn_tool, os.getpid()),
        watch=watch_pressure,
        power=partial(power_state, run),
        keep_out=partial(keep_out, tuple(regained), run),
    )


class Machine:
    """`busy` may be called while it is `at_work`."""

    def __init__(
        self,
        edges: Edges,
        *,
        linger_seconds: float = LINGER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._edges = edges
        self._linger_seconds = linger_seconds
        self._clock = clock
        self._sleep: asyncio.TimerHandle | None = None
        self._watch: PressureWatch | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pressure: Pressure | None = None
        self._given_back_bytes = 0
        self._power = PowerState()
        self._looked_at = float("-inf")

    @contextmanager
    def at_work(self, engine: Engine) -> Iterator[None]:
        """For the time of a run, on its event loop."""
        self._begin(engine)
        try:
            yield
        finally:
            self.end()

    def _begin(self, engine: Engine) -> None:
        self._engine = engine
        if self._edges.keep_out is not None:
            self._do(self._told(self._edges.keep_out))
        if self._edges.watch is None:
            return
        try:
            self._watch = self._edges.watch()
        except OSError as error:
            log.warning("memory pressure is not reported: %s", error)
        else:
            asyncio.get_running_loop().add_reader(self._watch.fileno(), self._hear)

    def end(self) -> None:
        """Let the machine sleep. More than once is no harm."""
        self._drop_sleep()
        watch, self._watch = self._watch, None
        if watch is not None:
            asyncio.get_running_loop().remove_reader(watch.fileno())
            watch.close()
        if self._edges.caffeine is not None:
            self._edges.caffeine.end()

    def busy(self, is_busy: bool) -> None:
        """There is work now, or there is none any more."""
        caffeine = self._edges.caffeine
        if caffeine is None:
            return
        self._drop_sleep()
        if not is_busy:
            loop = asyncio.get_running_loop()
            self._sleep = loop.call_later(self._linger_seconds, caffeine.end)
            return
        try:
            caffeine.start()
        except OSError as error:
            log.warning("the machine may fall asleep over its work: %s", error)

    async def status(self) -> MachineStatus:
        """Power and heat are looked up when somebody asks, and not every time."""
        look, caffeine = self._edges.power, self._edges.caffeine
        if look is not None and self._clock() - self._looked_at >= POWER_SECONDS:
            self._looked_at = self._clock()
            self._power = await asyncio.to_thread(look)
        return MachineStatus(
            memory_pressure=self._pressure or "",
            given_back_bytes=self._given_back_bytes,
            is_low_power=self._power.is_low_power,
            heat=self._power.heat,
            is_kept_awake=caffeine is not None and caffeine.is_kept_awake,
        )

    def _drop_sleep(self) -> None:
        if self._sleep is not None:
            self._sleep.cancel()
            self._sleep = None

    def _hear(self) -> None:
        assert self._watch is not None
        level = self._watch.read()
        if level is None:
            return
        self._pressure = level
        if level in GIVEN_BACK:
            self._do(self._relieve(level))

    async def _relieve(self, level: Pressure) -> None:
        share = GIVEN_BACK[level]

        def give_back(found: Inspection) -> int:
            return found.cache.give_back(int(found.cache.status().bytes * share))

        with suppress(DaemonError):  # there is no tree yet, or no longer
            freed = sum(await self._engine.ask_each(give_back))
            self._given_back_bytes += freed
            log.warning("memory is short (%s): the prefix cache gave back %d bytes", level, freed)

    async def _told(self, keep_out: Callable[[], list[str]]) -> None:
        for refusal in await asyncio.to_thread(keep_out):
            log.warning("%s", refusal)

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
