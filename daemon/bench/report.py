"""What a run found, as frozen values, and the same as a table and as JSON.

`read` is what a server read of the prompts of a scenario, `floor` what it could not have avoided
reading. Sizes are bytes, times seconds, counts tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

TOTAL_LIMIT = 1.01
SCENARIO_LIMIT = 1.02


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request. Where it was cancelled and the server does not tell, `reused` is None, and
    `read` what the stream had told of its progress by then: the server may have read on.
    """

    label: str
    prompt: int
    floor: int
    reused: int | None
    read: int | None
    first_token_seconds: float | None
    seconds: float
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """`distinct` counts the tokens that no earlier prompt or output began with.

    `retained` is what the server's cache grew by (None if it does not tell); `counted_read` its
    own counter over the scenario, which includes what cancelled requests read.
    """

    name: str
    requests: tuple[RequestResult, ...]
    distinct: int
    seconds: float
    retained: int | None = None
    counted_read: int | None = None

    @property
    def prompt(self) -> int:
        return sum(request.prompt for request in self.requests)

    @property
    def floor(self) -> int:
        return sum(request.floor for request in self.requests)

    @property
    def read(self) -> int:
        if self.counted_read is not None:
            return self.counted_read
        return sum(request.read or 0 for request in self.requests)

    @property
    def is_read_at_least(self) -> bool:
        """Whether `read` may be short of what cancelled requests went on to read."""
        return self.counted_read is None and any(r.reused is None for r in self.requests)

    @property
    def read_per_floor(self) -> float:
        return self.read / self.floor

    @property
    def first_token_seconds(self) -> float:
        """Mean over the requests that were answered."""
        seen = [r.first_token_seconds for r in self.requests if r.first_token_seconds is not None]
        return mean(seen) if seen else 0.0

    @property
    def retained_per_token(self) -> float | None:
        return None if self.retained is None else self.retained / max(1, self.distinct)


@dataclass(frozen=True, slots=True)
class ServerResult:
    """All scenarios on one server with one model."""

    server: str
    model: str
    cache_kind: str
    span_token_bytes: int
    scenarios: tuple[ScenarioResult, ...]

    @property
    def read(self) -> int:
        return sum(scenario.read for scenario in self.scenarios)

    @property
    def floor(self) -> int:
        return sum(scenario.floor for scenario in self.scenarios)

    @property
    def read_per_floor(self) -> float:
        return self.read / max(1, self.floor)

    def retained_ratio(self, scenario: ScenarioResult) -> float | None:
        """Bytes kept over the bytes of KV of the distinct tokens, where KV is all there is."""
        per_token = scenario.retained_per_token
        if per_token is None or not self.span_token_bytes or self.cache_kind != "sliceable":
            return None
        return per_token / self.span_token_bytes


@dataclass(frozen=True, slots=True)
class BenchReport:
    results: tuple[ServerResult, ...]

    def as_json(self) -> dict[str, Any]:
        return {"results": [_server_json(result) for result in self.results]}

    def tables(self) -> list[Table]:
        """One table per model, the servers' lines side by side where there are several."""
        models = dict.fromkeys(result.model for result in self.results)
        return [_table([r for r in self.results if r.model == model]) for model in models]


def _server_json(result: ServerResult) -> dict[str, Any]:
    scenarios = [
        asdict(scenario)
        | {
            "prompt": scenario.prompt,
            "read": scenario.read,
            "is_read_at_least": scenario.is_read_at_least,
            "floor": scenario.floor,
            "read_per_floor": round(scenario.read_per_floor, 4),
            "first_token_seconds": round(scenario.first_token_seconds, 4),
            "retained_ratio": result.retained_ratio(scenario),
        }
        for scenario in result.scenarios
    ]
    return {
        "server": result.server,
        "model": result.model,
        "cache_kind": result.cache_kind,
        "span_token_bytes": result.span_token_bytes,
        "read": result.read,
        "floor": result.floor,
        "read_per_floor": round(result.read_per_floor, 4),
        "scenarios": scenarios,
    }


def _table(results: Sequence[ServerResult]) -> Table:
    """A line per scenario; with several servers, a line of each below its name.

    Fits 80 columns with totals of up to 999,999 tokens. `×floor` is read / floor.
    """
    first = results[0]
    title = f"{first.model} ({first.cache_kind}): {', '.join(r.server for r in results)}"
    table = Table(
        title=title,
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=0,
    )
    table.add_column("scenario", no_wrap=True)
    for name in ("prompt", "read", "floor", "×floor", "first", "time", "kept"):
        table.add_column(name, justify="right", no_wrap=True)
    for scenarios in zip(*(result.scenarios for result in results), strict=True):
        lines = [_cells(r, s) for r, s in zip(results, scenarios, strict=True)]
        _add(table, scenarios[0].name, results, lines)
    table.add_section()
    _add(table, "all", results, [_total_cells(result) for result in results])
    return table


def _add(
    table: Table, name: str, results: Sequence[ServerResult], lines: Sequence[Sequence[str]]
) -> None:
    if len(results) == 1:
        table.add_row(name, *lines[0])
        return
    table.add_row(name)
    for result, line in zip(results, lines, strict=True):
        table.add_row(f"  {result.server}", *line)


def _cells(result: ServerResult, scenario: ScenarioResult) -> list[str]:
    sign = "≥" if scenario.is_read_at_least else ""
    return [
        f"{scenario.prompt:,}",
        f"{sign}{scenario.read:,}",
        f"{scenario.floor:,}",
        sign + _ratio(scenario.read_per_floor, SCENARIO_LIMIT),
        _brief(scenario.first_token_seconds),
        _brief(scenario.seconds),
        _kept(result, scenario),
    ]


def _total_cells(result: ServerResult) -> list[str]:
    prompt = sum(scenario.prompt for scenario in result.scenarios)
    seconds = sum(scenario.seconds for scenario in result.scenarios)
    sign = "≥" if any(scenario.is_read_at_least for scenario in result.scenarios) else ""
    ratio = sign + _ratio(result.read_per_floor, TOTAL_LIMIT)
    read, floor = f"{sign}{result.read:,}", f"{result.floor:,}"
    return [f"{prompt:,}", read, floor, ratio, "", _brief(seconds), ""]


def _brief(seconds: float) -> str:
    """A time in at most six characters."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def _ratio(value: float, limit: float) -> str:
    return f"[{'green' if value <= limit else 'red'}]{value:.3f}[/]"


def _kept(result: ServerResult, scenario: ScenarioResult) -> str:
    """Times the KV of the distinct tokens where that is all there is, else bytes per token."""
    if (ratio := result.retained_ratio(scenario)) is not None:
        return f"{ratio:.2f}×"
    per_token = scenario.retained_per_token
    return "" if per_token is None else f"{per_token:,.0f} B"
