"""What `mlxd status` and `mlxd top` show of a running daemon, the most important first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from daemon.status import (
    CacheStatus,
    DaemonStatus,
    EngineStatus,
    MachineStatus,
    MemoryStatus,
    ModelStatus,
    SamplingStatus,
)
from daemon.views.disk import disk_facts, stage_words
from daemon.views.requests import requests_table
from daemon.views.sessions import sessions_table
from daemon.views.tables import facts, section
from daemon.views.words import count, counted, duration, listed, plain, share, size

SHOWN_REQUESTS = 8
SHOWN_SESSIONS = 8


def status_view(
    status: DaemonStatus,
    *,
    sessions: int = SHOWN_SESSIONS,
    requests: int = SHOWN_REQUESTS,
    rates: str = "",
) -> RenderableType:
    """The daemon with at most so many of its sessions and past requests."""
    engine = status.engine
    headline = f"mlxd {status.version}: {engine.model.state} on port {status.port}"
    parts: list[RenderableType] = [Text(headline, "bold"), facts(_facts(status, rates))]
    parts += _now(engine)
    parts += _sessions(engine, sessions)
    parts += _reads(engine, requests)
    return Group(*parts)


def _facts(status: DaemonStatus, rates: str) -> Iterator[tuple[str, str]]:
    engine = status.engine
    yield "daemon", f"up {duration(status.uptime_seconds)}, process {status.pid}"
    yield from machine_facts(status.machine)
    yield from model_facts(engine.model)
    yield from other_models(engine)
    if engine.model.is_serving:
        yield from memory_facts(engine.memory)
        yield from cache_facts(engine.cache)
        yield from disk_facts(engine.disk)
    yield from work_facts(engine)
    if rates:
        yield "now", rates


def machine_facts(machine: MachineStatus) -> Iterator[tuple[str, str]]:
    """Only what is out of the ordinary."""
    heat, pressure = machine.heat, machine.memory_pressure
    gave = machine.given_back_bytes
    said = listed(
        (
            "low-power mode, so it is slower" if machine.is_low_power else "",
            f"heat {heat}, so it is slower" if heat in ("serious", "critical") else "",
            f"memory is short ({pressure})" if pressure in ("warning", "critical") else "",
            f"the cache gave back {size(gave)} when memory was short" if gave else "",
            "kept awake for its work" if machine.is_kept_awake else "",
        )
    )
    if said:
        yield "machine", said


def model_facts(model: ModelStatus) -> Iterator[tuple[str, str]]:
    if model.name:
        yield "model", plain(model.name)
    if model.path and model.path != model.name:
        yield "folder", plain(model.path)
    if model.cache_kind:
        classes = ", ".join(model.cache_classes)
        yield "state", f"{model.cache_kind} ({classes})" if classes else model.cache_kind
    if model.context_size:
        yield "context", f"{count(model.context_size)} tokens, weights {size(model.weight_bytes)}"
    if model.sampling is not None:
        yield "sampling", sampling_words(model.sampling)
    if model.stages:
        yield "idle", stage_words(model.idle_seconds, model.stages)
    for warning in model.warnings:
        yield "warning", plain(warning)
    if model.error:
        yield "error", plain(model.error)


def other_models(engine: EngineStatus) -> Iterator[tuple[str, str]]:
    """Those that were asked for, beside the one above, and whether it is in memory."""
    if engine.model.state == "unloaded":
        yield "", "its memory is given back; the next request loads it again"
    for model in engine.models:
        if model.key != engine.model.key:
            weights = f", weights {size(model.weight_bytes)}" if model.weight_bytes else ""
            error = f": {plain(model.error)}" if model.error else ""
            yield "also", f"{plain(model.name)}, {model.state}{weights}{error}"
            if model.stages:
                yield "", f"idle {stage_words(model.idle_seconds, model.stages)}"


def sampling_words(sampling: SamplingStatus) -> str:
    """What a request that says nothing gets; what does nothing is left out."""
    said = [f"temperature {sampling.temperature:g}"]
    for name, value, without in (
        ("top-p", sampling.top_p, 1.0),
        ("top-k", sampling.top_k, 0),
        ("min-p", sampling.min_p, 0.0),
        ("presence penalty", sampling.presence_penalty, 0.0),
        ("frequency penalty", sampling.frequency_penalty, 0.0),
        ("repetition penalty", sampling.repetition_penalty, 1.0),
    ):
        if value != without:
            said.append(f"{name} {value:g}")
    source = "as the model's makers recommend" if sampling.is_recommended else "the API's default"
    return f"{', '.join(said)} where a request is silent: {source}"


def memory_facts(memory: MemoryStatus) -> Iterator[tuple[str, str]]:
    reserved = f" ({size(memory.reserved_bytes)} reserved)" if memory.reserved_bytes else ""
    budget = f"rows and cache within {size(memory.budget_bytes)}" if memory.budget_bytes else ""
    pooled = f"{size(memory.device_pooled_bytes)} pooled"
    if memory.pool_limit_bytes:
        pooled = f"{size(memory.device_pooled_bytes)} of {size(memory.pool_limit_bytes)} pooled"
    wired = f"{size(memory.wired_bytes)} wired" if memory.wired_bytes else ""
    yield (
        "memory",
        listed(
            (
                f"process {size(memory.process_bytes)}",
                f"running rows {size(memory.row_bytes)}{reserved}",
                budget,
            )
        ),
    )
    yield (
        "device",
        listed(
            (
                f"{size(memory.device_active_bytes)} in use",
                pooled,
                f"{size(memory.device_peak_bytes)} at most",
                wired,
            )
        ),
    )


def cache_facts(cache: CacheStatus) -> Iterator[tuple[str, str]]:
    noun = "entry" if (cache.max_entries, cache.entries) == (None, 1) else "entries"
    yield (
        "prefix cache",
        f"{_of_limit(cache.entries, cache.max_entries)} {noun}, "
        f"{counted(cache.live_leaves, 'live leaf', 'live leaves')}, {count(cache.tokens)} tokens, "
        f"{size(cache.bytes)} of {size(cache.max_bytes)} ({share(cache.bytes, cache.max_bytes)})",
    )
    checkpoints = counted(cache.checkpoints, "checkpoint")
    yield (
        "",
        listed(
            (
                f"spans {size(cache.span_bytes)}",
                f"{checkpoints} {size(cache.checkpoint_bytes)}" if cache.checkpoints else "",
                f"index {size(cache.index_bytes)}",
            )
        ),
    )
    yield (
        "",
        f"{_of_limit(cache.arrays, cache.max_arrays or None)} arrays; "
        f"{counted(cache.hits, 'hit')}, {counted(cache.misses, 'miss', 'misses')}",
    )
    yield from (("", words) for words in _lost(cache))
    if cache.skipped_captures:
        yield "", f"{counted(cache.skipped_captures, 'capture')} skipped for want of room"
    if cache.failed_restores:
        yield "warning", f"{counted(cache.failed_restores, 'snapshot')} could not be restored"


def _of_limit(number: int, limit: int | None) -> str:
    return count(number) if limit is None else f"{count(number)} of {count(limit)}"


def _lost(cache: CacheStatus) -> Iterator[str]:
    """States that are kept no more, by what took them."""
    reasons = {
        "entries": cache.evicted_by_entries,
        "bytes": cache.evicted_by_bytes,
        "arrays": cache.evicted_by_arrays,
        "idle": cache.evicted_by_idle,
        "reset": cache.evicted_by_reset,
        "sessions": cache.evicted_by_sessions,
    }
    by = listed(f"{count(number)} by {reason}" for reason, number in reasons.items() if number)
    thinned = cache.thinned_checkpoints
    note = f"; {count(thinned)} of them inside conversations" if thinned else ""
    if by:
        yield f"{count(sum(reasons.values()))} evicted ({by}{note})"


def work_facts(engine: EngineStatus) -> Iterator[tuple[str, str]]:
    totals = engine.totals
    parked = f"parked {counted(totals.parked, 'time')}" if totals.parked else ""
    by_status = ", ".join(
        f"{number} by {code}" for code, number in totals.refused_by_status.items()
    )
    unread = totals.prompt - totals.reused - totals.read
    yield (
        "reuse",
        f"{share(totals.reused, totals.prompt)}: prompt {count(totals.prompt)} = "
        f"reused {count(totals.reused)} + read {count(totals.read)}"
        + (f" + {count(unread)} not read; " if unread > 0 else "; ")
        + f"generated {count(totals.generated)}",
    )
    yield (
        "requests",
        listed(
            (
                f"{count(totals.requests)} ended",
                f"{count(totals.cancelled)} cancelled",
                f"{count(totals.failed)} failed",
                f"{count(totals.refused)} refused" + (f" ({by_status})" if by_status else ""),
                parked,
            )
        ),
    )


def _now(engine: EngineStatus) -> Iterable[RenderableType]:
    present = (*engine.running, *engine.waiting)
    if present:
        title = f"Now: {len(engine.running)} running, {len(engine.waiting)} waiting"
        yield section(title, requests_table(present))


def _sessions(engine: EngineStatus, limit: int) -> Iterable[RenderableType]:
    latest = sorted(engine.sessions, key=lambda session: session.idle_seconds)[:limit]
    if latest:
        yield section(
            some_of("Sessions", len(latest), len(engine.sessions)), sessions_table(latest)
        )


def _reads(engine: EngineStatus, limit: int) -> Iterable[RenderableType]:
    latest = (
        engine.recent[len(engine.recent) - limit :] if limit < len(engine.recent) else engine.recent
    )
    if latest:
        yield section("Last requests, the newest below", requests_table(latest))


def some_of(title: str, shown: int, number: int) -> str:
    """A title that says how many are left out."""
    return title if shown == number else f"{title}: the last {shown} of {count(number)}"
