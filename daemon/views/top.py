"""One frame of `mlxd top`: the status made for looking at it all day."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from daemon.status import DaemonStatus, EngineStatus
from daemon.views.requests import requests_table
from daemon.views.sessions import sessions_table
from daemon.views.status import cache_facts, memory_facts, some_of, work_facts
from daemon.views.tables import facts, section
from daemon.views.words import counted, duration, plain

SHOWN_SESSIONS = 4
SHOWN_REQUESTS = 30


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second since the frame before."""

    read: float
    generated: float

    @classmethod
    def between(cls, before: DaemonStatus, after: DaemonStatus) -> Rates | None:
        """None where the two cannot be compared."""
        seconds = after.uptime_seconds - before.uptime_seconds
        if seconds <= 0 or before.instance != after.instance:
            return None
        read, generated = (
            (later - earlier) / seconds
            for earlier, later in zip(_done(before.engine), _done(after.engine), strict=True)
        )
        return cls(max(read, 0.0), max(generated, 0.0))


def _done(engine: EngineStatus) -> tuple[int, int]:
    """Tokens read and generated so far, also by what still runs."""
    read = engine.totals.read + sum(request.read for request in engine.running)
    return read, engine.totals.generated + sum(each.generated for each in engine.running)


def top_view(status: DaemonStatus, rates: Rates | None = None) -> RenderableType:
    """What changes, the newest first: a terminal that is too low cuts off what is old."""
    engine = status.engine
    parts: list[RenderableType] = [Text(_headline(status), "bold"), facts(_facts(engine, rates))]
    present = (*engine.running, *engine.waiting)
    if present:
        title = f"Now: {len(engine.running)} running, {len(engine.waiting)} waiting"
        parts.append(section(title, requests_table(present)))
    if engine.sessions:
        latest = sorted(engine.sessions, key=lambda session: session.idle_seconds)[:SHOWN_SESSIONS]
        title = some_of("Sessions", len(latest), len(engine.sessions))
        parts.append(section(title, sessions_table(latest)))
    if engine.recent:
        newest_first = engine.recent[: -SHOWN_REQUESTS - 1 : -1]
        parts.append(section("Last requests, the newest above", requests_table(newest_first)))
    return Group(*parts)


def _headline(status: DaemonStatus) -> str:
    model = status.engine.model
    name = f" {plain(model.name)}," if model.name else ""
    return f"mlxd{name} {model.state} on port {status.port}, up {duration(status.uptime_seconds)}"


def _facts(engine: EngineStatus, rates: Rates | None) -> Iterator[tuple[str, str]]:
    yield next(memory_facts(engine.memory))
    yield next(cache_facts(engine.cache))
    yield next(work_facts(engine))
    if rates is not None:
        yield (
            "now",
            f"reads {counted(round(rates.read), 'token')}/s, "
            f"generates {counted(round(rates.generated), 'token')}/s",
        )
