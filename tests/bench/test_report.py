"""The report: its arithmetic, and that people and programs can read it."""

from __future__ import annotations

import io
import json

from rich.console import Console

from daemon.bench.report import BenchReport, RequestResult, ScenarioResult, ServerResult


def request(prompt: int, floor: int, read: int | None, first: float | None = 0.1) -> RequestResult:
    reused = None if read is None else prompt - read
    return RequestResult("label", prompt, floor, reused, read, first, 0.5, read is None)


LOOP = ScenarioResult("loop", (request(100, 100, 100), request(150, 50, 60)), 150, 2.0, 1_650)
RETRY = ScenarioResult("retry", (request(80, 80, None, None), request(80, 1, 1)), 80, 1.0)
MLXD = ServerResult("mlxd", "tiny-full", "sliceable", 10, (LOOP, RETRY))
PEER = ServerResult("mlx-lm", "tiny-full", "sliceable", 10, (LOOP, RETRY))


def test_a_scenario_adds_up_its_requests() -> None:
    assert (LOOP.prompt, LOOP.read, LOOP.floor) == (250, 160, 150)
    assert round(LOOP.read_per_floor, 3) == 1.067
    assert round(LOOP.first_token_seconds, 6) == 0.1


def test_a_servers_own_counter_stands_above_what_requests_told() -> None:
    counted = ScenarioResult("retry", RETRY.requests, 80, 1.0, counted_read=81)
    assert RETRY.read == 1
    assert counted.read == 81


def test_kept_bytes_are_set_against_the_distinct_tokens() -> None:
    assert LOOP.retained_per_token == 11.0
    assert MLXD.retained_ratio(LOOP) == 1.1
    assert MLXD.retained_ratio(RETRY) is None
    sliding = ServerResult("mlxd", "tiny-sliding", "checkpointed", 10, (LOOP,))
    assert sliding.retained_ratio(LOOP) is None, "checkpoints are not KV of tokens"


def test_it_is_json() -> None:
    told = json.loads(json.dumps(BenchReport((MLXD,)).as_json()))
    (server,) = told["results"]
    assert (server["server"], server["read"], server["floor"]) == ("mlxd", 161, 231)
    assert server["scenarios"][0]["read_per_floor"] == 1.0667
    assert server["scenarios"][0]["requests"][1]["read"] == 60


def shown(*results: ServerResult) -> list[str]:
    """The lines of the table, as a terminal of 80 columns has them."""
    (table,) = BenchReport(results).tables()
    output = io.StringIO()
    Console(file=output, width=80).print(table)
    return [line.rstrip() for line in output.getvalue().splitlines()]


def test_the_table_has_a_line_for_each_scenario() -> None:
    (loop,) = [line for line in shown(MLXD) if line.lstrip().startswith("loop")]
    assert loop.split() == ["loop", "250", "160", "150", "1.067", "100", "ms", "2.0", "s", "1.10×"]


def test_several_servers_stand_below_the_scenario() -> None:
    lines = [line.split()[0] for line in shown(MLXD, PEER) if line][3:]
    servers = ["mlxd", "mlx-lm"]
    assert lines == ["loop", *servers, "retry", *servers, "all", *servers]


def test_a_read_that_a_server_does_not_tell_to_the_end_is_a_lower_bound() -> None:
    assert RETRY.is_read_at_least
    assert not LOOP.is_read_at_least
    (retry,) = [line for line in shown(MLXD) if line.lstrip().startswith("retry")]
    assert retry.split()[2:5] == ["≥1", "81", "≥0.012"]


def test_each_model_has_a_table() -> None:
    other = ServerResult("mlxd", "tiny-hybrid", "checkpointed", 10, (LOOP,))
    assert len(BenchReport((MLXD, other)).tables()) == 2


def test_large_numbers_fit_80_columns_whole() -> None:
    long = request(999_999, 999_999, 999_999, 99.9)
    sizes = ScenarioResult("4 sub-agents at once, cold", (long,), 999_999, 999.9, 9_999_000_000)
    checkpointed = [ServerResult(name, "m", "checkpointed", 10, (sizes,)) for name in ("a", "b")]
    line = next(line for line in shown(*checkpointed) if line.startswith("  a "))
    assert line.split()[1:5] == ["999,999", "999,999", "999,999", "1.000"]
    assert line.split()[5:] == ["99.9", "s", "999.9", "s", "9,999", "B"]
