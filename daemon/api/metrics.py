"""`GET /metrics` for Prometheus: a view of the engine's status, taken when it is asked for.

Nothing is instrumented: every number is one that the status has already, so the two cannot
disagree, and a daemon that nobody scrapes pays nothing. The registry is the daemon's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from daemon.disk_status import DiskStatus
from daemon.engine import Engine
from daemon.histogram import Histogram
from daemon.status import CacheStatus, EngineStatus, MemoryStatus, TotalsStatus


def metrics_routes(engine: Engine) -> Sequence[BaseRoute]:
    registry = CollectorRegistry()
    registry.register(StatusCollector(engine.status))

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"content-type": content_type})

    return (Route("/metrics", metrics),)


class StatusCollector(Collector):
    def __init__(self, status: Callable[[], EngineStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield from _model(status)
        yield from _work(status)
        yield from _cache(status.cache)
        yield from _memory(status.memory)
        yield from _disk(status.disk)


def _model(status: EngineStatus) -> Iterator[Metric]:
    model = status.model
    info = InfoMetricFamily("mlxd_model", "The model that is served")
    info.add_metric([], {"name": model.name, "cache_kind": model.cache_kind, "state": model.state})
    yield info
    yield _gauge("mlxd_model_ready", "1 while requests are served", model.is_serving)


def _work(status: EngineStatus) -> Iterator[Metric]:
    totals = status.totals
    yield _by("mlxd_requests", "Requests that ended, by outcome", "outcome", _outcomes(totals))
    for name, words, number in (
        ("prompt_tokens", "Tokens of prompts", totals.prompt),
        ("reused_tokens", "Prompt tokens restored from the prefix cache", totals.reused),
        ("read_tokens", "Prompt tokens that the model read", totals.read),
        ("generated_tokens", "Tokens of answers", totals.generated),
        ("parked", "Times that a request gave its row back and waited again", totals.parked),
    ):
        yield CounterMetricFamily(f"mlxd_{name}", words, value=number)
    yield _histogram(
        "mlxd_first_token_seconds",
        "From a request's arrival to the first token of its answer",
        totals.first_token,
    )
    yield _gauge("mlxd_requests_running", "Requests that have a row", len(status.running))
    yield _gauge("mlxd_requests_waiting", "Requests in the queue", len(status.waiting))
    yield _gauge("mlxd_sessions", "Open sessions", len(status.sessions))


def _outcomes(totals: TotalsStatus) -> dict[str, float]:
    return {
        "done": totals.requests - totals.cancelled - totals.failed,
        "cancelled": totals.cancelled,
        "failed": totals.failed,
        "refused": totals.refused,
    }


def _cache(cache: CacheStatus) -> Iterator[Metric]:
    parts = {
        "spans": cache.span_bytes,
        "checkpoints": cache.checkpoint_bytes,
        "index": cache.index_bytes,
    }
    yield _by("mlxd_cache_bytes", "Bytes of the prefix cache", "part", parts, GaugeMetricFamily)
    for name, words, number in (
        ("limit_bytes", "Most bytes that the prefix cache may hold", cache.max_bytes),
        ("tokens", "Tokens held, common prefixes once", cache.tokens),
        ("entries", "Shared entries held", cache.entries),
        ("limit_entries", "Most shared entries that are kept", cache.max_entries),
        ("live_leaves", "States held for their sessions", cache.live_leaves),
        ("checkpoints", "Checkpoints held", cache.checkpoints),
        ("arrays", "Arrays held", cache.arrays),
        ("limit_arrays", "Most arrays that the prefix cache may hold", cache.max_arrays),
    ):
        if number is not None:
            yield _gauge(f"mlxd_cache_{name}", words, number)
    lookups = {"hit": cache.hits, "miss": cache.misses}
    yield _by("mlxd_cache_lookups", "Prompts looked up, by result", "result", lookups)
    yield _by("mlxd_cache_evictions", "States dropped, by reason", "reason", _evictions(cache))
    for name, words, number in (
        (
            "thinned_checkpoints",
            "Checkpoints given up inside conversations",
            cache.thinned_checkpoints,
        ),
        ("failed_restores", "Snapshots that could not be restored", cache.failed_restores),
        ("skipped_captures", "Captures skipped for want of room", cache.skipped_captures),
    ):
        yield CounterMetricFamily(f"mlxd_cache_{name}", words, value=number)


def _evictions(cache: CacheStatus) -> dict[str, float]:
    return {
        "entries": cache.evicted_by_entries,
        "bytes": cache.evicted_by_bytes,
        "arrays": cache.evicted_by_arrays,
        "idle": cache.evicted_by_idle,
        "reset": cache.evicted_by_reset,
        "sessions": cache.evicted_by_sessions,
    }


def _memory(memory: MemoryStatus) -> Iterator[Metric]:
    for name, words, number in (
        ("process", "Resident set of the process", memory.process_bytes),
        ("device_active", "Bytes of live arrays", memory.device_active_bytes),
        ("device_pooled", "Bytes the allocator keeps for reuse", memory.device_pooled_bytes),
        ("device_pool_limit", "Most bytes it may keep so", memory.pool_limit_bytes),
        ("device_peak", "Most bytes of live arrays so far", memory.device_peak_bytes),
        ("rows", "Bytes of running requests", memory.row_bytes),
        ("rows_reserved", "Bytes they may grow to before they ask again", memory.reserved_bytes),
        ("budget", "Limit of rows and prefix cache together", memory.budget_bytes),
        ("wired", "Wired bytes", memory.wired_bytes),
    ):
        yield _gauge(f"mlxd_memory_{name}_bytes", words, number)


def _disk(disk: DiskStatus) -> Iterator[Metric]:
    yield _gauge("mlxd_disk_on", "1 while what was read is kept on disk", disk.is_on)
    if not disk.is_on:
        return
    models = {"loaded": disk.usable_bytes, "others": disk.unusable_bytes}
    words = "Bytes on disk, of models that this run has loaded and of others"
    yield _by("mlxd_disk_bytes", words, "models", models, GaugeMetricFamily)
    for name, words, number in (
        ("limit_bytes", "Most bytes that may be on disk", disk.max_bytes),
        ("files", "Files on disk", disk.files),
        ("free_bytes", "Free bytes of that disk", disk.free_bytes),
        ("floor_bytes", "Bytes of it that stay free", disk.floor_bytes),
        ("pending_bytes", "Bytes that are still to be written", disk.pending_bytes),
        ("written_today_bytes", "Bytes written since midnight", disk.written_today_bytes),
        ("limit_written_bytes", "Most bytes in a day; 0: no limit", disk.write_bytes_per_day),
        ("read_bytes_per_second", "How quickly files were read lately", disk.read_bytes_per_second),
    ):
        yield _gauge(f"mlxd_disk_{name}", words, number)
    for name, words, number in (
        ("written_bytes", "Bytes written by this run", disk.written_bytes),
        ("written_files", "Files written by this run", disk.written_files),
        ("evicted_files", "Files deleted to make room", disk.evicted_files),
        ("skipped_writes", "Writes left out for a limit", disk.skipped_writes),
        ("failed_writes", "Writes that failed", disk.failed_writes),
        ("bad_files", "Files that were wrong, unreadable or gone", disk.bad_files),
        ("hits", "Requests that got something from disk", disk.hits),
        ("restored_tokens", "Prompt tokens that came from disk", disk.restored_tokens),
        ("restored_bytes", "Bytes read for them", disk.restored_bytes),
    ):
        yield CounterMetricFamily(f"mlxd_disk_{name}", words, value=number)


def _gauge(name: str, words: str, number: float) -> Metric:
    return GaugeMetricFamily(name, words, value=number)


def _by(
    name: str,
    words: str,
    label: str,
    numbers: Mapping[str, float],
    family: type[CounterMetricFamily] | type[GaugeMetricFamily] = CounterMetricFamily,
) -> Metric:
    metric = family(name, words, labels=[label])
    for value, number in numbers.items():
        metric.add_metric([value], number)
    return metric


def _histogram(name: str, words: str, histogram: Histogram) -> Metric:
    """With cumulative counts, as Prometheus has them."""
    buckets, so_far = [], 0
    bounds = [*map(str, histogram.bounds), "+Inf"]
    for bound, number in zip(bounds, histogram.counts, strict=True):
        so_far += number
        buckets.append((bound, so_far))
    return HistogramMetricFamily(name, words, buckets=buckets, sum_value=histogram.sum)
