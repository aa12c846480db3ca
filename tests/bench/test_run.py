"""The whole benchmark once, small: a tiny model built on the spot, a daemon of its own, HTTP."""

from __future__ import annotations

import pytest

from daemon.bench.run import BenchOptions, run
from daemon.errors import CommandFailed


def test_it_measures_a_fresh_daemon_on_a_model_built_on_the_spot() -> None:
    said: list[str] = []
    options = BenchOptions(kinds=["sliding"], only=["cancel in decode", "at once"], scale=0.1)
    (result,) = run(options, said.append).results
    assert (result.server, result.model, result.cache_kind) == (
        "mlxd",
        "tiny-sliding",
        "checkpointed",
    )
    assert [scenario.name for scenario in result.scenarios] == [
        "cancel in decode",
        "4 sub-agents at once, cold",
    ]
    assert len(said) == 2
    assert result.read_per_floor <= 1.02
    assert all(scenario.retained for scenario in result.scenarios)
    cut, again, *_ = result.scenarios[0].requests
    assert cut.is_cancelled
    assert again.read is not None
    assert again.read <= 16, "a checkpoint so near another is not taken"


def test_a_model_that_is_not_there_is_said_before_anything_starts() -> None:
    with pytest.raises(CommandFailed, match="no folder"):
        run(BenchOptions(model="/nowhere/at-all"))
