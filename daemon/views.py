"""What the command line shows, built from status and results. Pure: it prints nothing.

Everything is readable at 80 columns and in a pipe: no colour carries a meaning, no box is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from daemon.demo.report import DemoReport, Turn
from daemon.status import CacheStatus, DaemonStatus, EngineStatus, ModelStatus, RequestStatus

SHOWN_REQUESTS = 8


def count(number: int) -> str:
    return f"{number:,}"


def size(number: int) -> str:
    """Bytes in decimal units, as macOS shows them."""
    amount, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """The two largest units that matter, in at most 9 characters; "" where there is none."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes}m {round(seconds) % 60}s"
    hours = minutes // 60
    return f"{hours}h {minutes % 60}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def status_view(status: DaemonStatus) -> RenderableType:
    """Everything a person wants to know of a running daemon, most important first."""
    engine = status.engine
    headline = f"mlxd {status.version}: {engine.model.state} on port {status.port}"
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(status):
        facts.add_row(name, Text(value))
    parts: list[RenderableType] = [Text(headline, style="bold"), Text(), facts]
    requests = (*engine.running, *engine.waiting, *engine.recent[-SHOWN_REQUESTS:])
    if requests:
        parts += [Text(), *requests_lines(requests)]
    return Group(*parts)


def _facts(status: DaemonStatus) -> Iterable[tuple[str, str]]:
    engine = status.engine
    yield "daemon", f"up {duration(status.uptime_seconds)}, process {status.pid}"
    yield from _model_facts(engine.model)
    yield from _cache_facts(engine.cache)
    yield from _work_facts(engine)


def _model_facts(model: ModelStatus) -> Iterable[tuple[str, str]]:
    if model.name:
        yield "model", model.name
    if model.path and model.path != model.name:
        yield "folder", model.path
    if model.cache_kind:
        classes = ", ".join(model.cache_classes)
        yield "state", f"{model.cache_kind} ({classes})" if classes else model.cache_kind
    if model.context_size:
        yield "context", f"{count(model.context_size)} tokens, weights {size(model.weight_bytes)}"
    for warning in model.warnings:
        yield "warning", warning
    if model.error:
        yield "error", model.error


def _cache_facts(cache: CacheStatus) -> Iterable[tuple[str, str]]:
    limit = "" if cache.max_entries is None else f" of {count(cache.max_entries)}"
    yield (
        "prefix cache",
        f"{count(cache.entries)}{limit} entries, {count(cache.tokens)} tokens, "
        f"{size(cache.bytes)} of {size(cache.max_bytes)}",
    )
    yield (
        "",
        f"{count(cache.hits)} hits, {count(cache.misses)} misses, "
        f"{count(cache.evicted_entries)} evicted, {count(cache.checkpoints)} checkpoints",
    )
    if cache.failed_restores:
        yield "warning", f"{count(cache.failed_restores)} snapshots could not be restored"


def _work_facts(engine: EngineStatus) -> Iterable[tuple[str, str]]:
    totals, memory = engine.totals, engine.memory
    yield (
        "memory",
        f"process {size(memory.process_bytes)}, device {size(memory.device_active_bytes)} "
        f"(peak {size(memory.device_peak_bytes)}), running rows {size(memory.row_bytes)}",
    )
    yield (
        "requests",
        f"{count(totals.requests)}: {count(totals.cancelled)} cancelled, "
        f"{count(totals.failed)} failed, {count(totals.refused)} refused",
    )
    yield (
        "tokens",
        f"prompt {count(totals.prompt)} = reused {count(totals.reused)} + "
        f"read {count(totals.read)}; generated {count(totals.generated)}",
    )


def requests_lines(requests: Iterable[RequestStatus]) -> Iterable[RenderableType]:
    """A line for each request, and below it why it read what it read."""
    yield Text(_columns("session", "phase", "prompt", "reused", "read", "out", "first"), "bold")
    for request in requests:
        numbers = (request.prompt, request.reused, request.read, request.generated)
        first_token = duration(request.first_token_seconds)
        label = request.session or "-"
        yield Text(_columns(label, request.phase, *map(count, numbers), first_token))
        if request.error or request.why_read:
            yield Padding(Text(request.error or request.why_read, "dim"), (0, 0, 0, 4))


def _columns(label: str, phase: str, *numbers: str) -> str:
    clipped = label if len(label) <= 19 else label[:18] + "…"
    return f"{clipped:<19} {phase:<9}" + "".join(f" {number:>9}" for number in numbers)


def demo_header() -> RenderableType:
    return Text(_demo_columns("request", "prompt", "reused", "read", "first"), "bold")


def demo_turn(turn: Turn) -> RenderableType:
    """One request of the demo and, below it, the beginning of its answer."""
    first_token = "-" if turn.is_cancelled else duration(turn.first_token_seconds)
    numbers = (turn.prompt, turn.reused, turn.read)
    line = Text(_demo_columns(turn.name, *map(count, numbers), first_token))
    printable = "".join(c if c.isprintable() else " " for c in turn.answer)
    answer = " ".join(printable.split())
    if not answer:
        return line
    excerpt = Text(f"    “{answer}”", "dim", no_wrap=True, overflow="ellipsis")
    return Group(line, excerpt)


def demo_summary(report: DemoReport) -> RenderableType:
    """The totals, beside what they would have been without a cache."""
    total = (sum(turn.prompt for turn in report.turns), report.reused, report.read)
    lines = [
        Text(_demo_columns("total", *map(count, total), ""), "bold"),
        Text(),
        Text(f"Read here:          {_cost(report, report.read)}"),
        Text(f"Reading everything: {_cost(report, report.everything)}"),
        Text(),
        Text(f"{report.model}, {duration(report.seconds)} in all. {_how_estimated(report)}"),
    ]
    return Group(*lines)


def _cost(report: DemoReport, tokens: int) -> str:
    seconds = report.seconds_to_read(tokens)
    return f"{count(tokens):>7} tokens" + (f", {duration(seconds)}" if seconds else "")


def _how_estimated(report: DemoReport) -> str:
    if report.reading_rate is None:
        return "No turn read enough to measure a rate."
    return (
        f"Seconds at {report.reading_rate:,.0f} tokens/s, the best rate that a turn reached; "
        "a cancelled turn counts as far as it was read."
    )


def _demo_columns(name: str, *numbers: str) -> str:
    return f"{name:<42}" + "".join(f" {number:>8}" for number in numbers)
