"""What fails between rows and the prefix tree costs reuse, never an answer."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import pytest

from daemon.generation import Failed
from daemon.prefix_cache.cache import Match, PrefixCache
from mlx_backend.messages import CacheKind, TokenIds
from tests.engine.harness import (
    collect,
    every_caching_kind,
    failure,
    run,
    running,
    words,
)
from tests.fakes import TURN_END, Faults, Script


@every_caching_kind
def test_after_one_failed_restore_reuse_grows_again(
    kind: CacheKind, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            history: list[int] = []
            for turn in range(1, 9):
                if turn == 3:
                    bench.script.faults.restores = 1
                prompt = history + words(200, turn)
                with caplog.at_level(logging.WARNING):
                    answer = await bench.run(prompt)
                assert answer.tokens == bench.cold(prompt)
                if turn in (1, 3):
                    assert answer.usage.reused == 0
                else:
                    assert answer.usage.reused >= len(history) - 16
                history = [*prompt, *answer.tokens, TURN_END]
            assert "restore failed" in caplog.text
            assert "restoring" in bench.engine.status().recent[2].why_read
            assert bench.engine.status().cache.failed_restores == 1

    run(scenario())


@every_caching_kind
def test_a_capture_that_fails_costs_reuse_and_nothing_else(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(Script(faults=Faults(captures=2)), kind) as bench:
            prompt = words(300, 1)
            first = await bench.run(prompt)
            assert first.tokens == bench.cold(prompt)
            assert bench.engine.status().cache.skipped_captures == 2
            assert (await bench.run(prompt)).usage.reused == 0
            assert (await bench.run(prompt)).usage.reused > 0

    run(scenario())


@pytest.mark.parametrize("extra", [-1, 1])
@every_caching_kind
def test_a_row_that_disagrees_with_its_key_is_never_stored(kind: CacheKind, extra: int) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            prompt = words(300, 1)
            bench.steps.allow(5)
            generation = bench.submit(prompt)
            await bench.steps.standing()
            state = bench.backend.rows[-1].state
            state[-1:] = [] if extra < 0 else [state[-1]] * 2
            bench.steps.free()
            await collect(generation)
            assert bench.engine.status().cache.skipped_captures == 1
            longer = prompt + bench.cold(prompt) + words(50, 2)
            again = await bench.run(longer)
            assert again.usage.reused <= 300
            assert again.tokens == bench.cold(longer)

    run(scenario())


class BreakingTree(PrefixCache):
    """A tree that raises where it should not, in the calls that `broken` names."""

    broken: ClassVar[set[str]] = set()

    def match(self, tokens: TokenIds, holder: str | None = None) -> Match:
        assert "match" not in self.broken, "the test says so"
        return super().match(tokens, holder)

    def insert(self, tokens: TokenIds, **more: Any) -> bool:
        assert "insert" not in self.broken, "the test says so"
        return super().insert(tokens, **more)

    def release(self, match: Match) -> None:
        assert "match" not in self.broken, "the test says so"
        super().release(match)


def test_a_tree_that_breaks_is_replaced_and_the_engine_goes_on() -> None:
    async def scenario() -> None:
        BreakingTree.broken = set()
        async with running(cache_class=BreakingTree, max_concurrent=2) as bench:
            prompt = words(300, 1)
            await bench.run(prompt)
            bench.steps.allow(5)
            generation = bench.submit(prompt)
            await bench.steps.standing()
            BreakingTree.broken = {"match"}
            other = bench.submit(words(50, 2))
            bench.steps.free()
            assert isinstance((await collect(other)).end, Failed)
            failure(await collect(generation))
            BreakingTree.broken = set()
            await bench.ready()
            answer = await bench.run(prompt)
            assert answer.usage.reused == 0
            assert answer.tokens == bench.cold(prompt)
            assert len(bench.caches) == 2

    run(scenario())


def test_a_tree_that_breaks_while_storing_is_emptied_and_the_answer_is_right() -> None:
    async def scenario() -> None:
        BreakingTree.broken = {"insert"}
        async with running(cache_class=BreakingTree) as bench:
            prompt = words(300, 1)
            assert (await bench.run(prompt)).tokens == bench.cold(prompt)
            assert bench.engine.status().cache.skipped_captures == 2
            BreakingTree.broken = set()
            await bench.run(prompt)
            assert (await bench.run(prompt)).usage.reused == 299
            assert len(bench.models) == 1

    run(scenario())
