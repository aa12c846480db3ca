"""What `mlxd demo` shows: its requests as they end, and what the day would have cost."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from daemon.demo.report import DemoReport, Turn
from daemon.views.words import count, duration


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
