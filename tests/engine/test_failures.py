"""What breaks, breaks for those it concerns; everybody hears of it, and the engine goes on."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import pytest

from daemon.engine import Engine
from daemon.errors import GenerationFailed, ModelUnavailable
from daemon.generation import Failed, FinishReason
from daemon.prefix_cache.cache import Match, PrefixCache
from mlx_backend.errors import ModelDamaged, ModelNotFound
from mlx_backend.interface import LoadedModel
from mlx_backend.messages import CacheKind, TokenIds
from tests.engine.harness import (
    Answer,
    collect,
    every_caching_kind,
    every_kind,
    expect_unavailable,
    run,
    running,
    until,
    words,
)
from tests.fakes import TURN_END, Faults, Script


def failure(answer: Answer) -> str:
    assert isinstance(answer.end, Failed), answer.end
    assert isinstance(answer.end.error, GenerationFailed)
    return answer.end.error.message


@every_kind
def test_a_failing_row_fails_alone(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            prompts = [words(100, seed) for seed in range(4)]
            async with bench.held():
                generations = [bench.submit(prompt) for prompt in prompts]
                bench.script.faults.rows = 1
            answers = [await collect(generation) for generation in generations]
            failed = [answer for answer in answers if isinstance(answer.end, Failed)]
            assert len(failed) == 1
            assert "the script says so" in failure(failed[0])
            for prompt, answer in zip(prompts, answers, strict=True):
                if answer not in failed:
                    assert answer.tokens == bench.cold(prompt)
            assert len(bench.models) == 1
            assert bench.engine.status().totals.failed == 1

    run(scenario())


@every_caching_kind
def test_a_failing_chunk_fails_its_own_request_and_stores_nothing_of_it(kind: CacheKind) -> None:
    async def scenario() -> None:
        script = Script(faults=Faults(reads=1, reads_before=3))
        async with running(script, kind, chunk_tokens=100) as bench:
            prompt = words(1001, 1)
            assert "the script says so" in failure(await bench.run(prompt))
            again = await bench.run(prompt)
            assert again.usage.reused == 0
            assert again.tokens == bench.cold(prompt)
            assert len(bench.models) == 1

    run(scenario())


def test_followers_of_a_leader_that_fails_read_on_by_themselves() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=100) as bench:
            head = words(1001, 1)
            async with bench.held():
                generations = [bench.submit(head + words(50, n)) for n in range(3)]
                bench.script.faults.reads, bench.script.faults.reads_before = 1, 4
            answers = [await collect(generation) for generation in generations]
            assert sum(isinstance(answer.end, Failed) for answer in answers) == 1
            assert sum(answer.end.usage.generated > 0 for answer in answers) == 2

    run(scenario())


@pytest.mark.parametrize("fault", ["steps", "unexpected_steps"])
@every_kind
def test_a_failing_step_fails_who_runs_and_the_model_is_loaded_again(
    kind: CacheKind, fault: str
) -> None:
    async def scenario() -> None:
        async with running(Script(load_seconds=0.2), kind) as bench:
            bench.steps.allow(10)
            generations = [bench.submit(words(100, seed)) for seed in range(2)]
            await bench.steps.standing()
            setattr(bench.script.faults, fault, 1)
            bench.steps.free()
            for generation in generations:
                failure(await collect(generation))
            error = expect_unavailable(bench)
            assert error.status == 503
            assert bench.engine.status().model.error
            await bench.ready()
            assert len(bench.models) == 2
            assert bench.models[0].backend.is_closed
            assert bench.engine.status().model.error is None
            answer = await bench.run(words(100, 0))
            assert answer.tokens == bench.cold(words(100, 0))
            totals = bench.engine.status().totals
            counters = [model.backend.counters for model in bench.models]
            assert totals.failed == 2
            assert totals.chunks == sum(c.chunks_read for c in counters) > 0
            assert totals.steps == sum(c.steps for c in counters) > 0

    run(scenario())


@every_caching_kind
def test_what_was_stored_outlives_a_failing_step_but_not_an_unknown_failure(
    kind: CacheKind,
) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            prompt = words(300, 1)
            await bench.run(prompt)
            for fault, is_kept in (("steps", True), ("unexpected_steps", False)):
                setattr(bench.script.faults, fault, 1)
                failure(await bench.run(words(100, 2)))
                await bench.ready()
                answer = await bench.run(prompt)
                assert answer.tokens == bench.cold(prompt)
                assert (answer.usage.reused > 0) is is_kept

    run(scenario())


def test_those_who_wait_when_the_model_breaks_are_told_to_come_again() -> None:
    async def scenario() -> None:
        async with running(max_concurrent=1) as bench:
            async with bench.held():
                bench.submit(words(10, 1))
                waiting = bench.submit(words(10, 2))
                bench.script.faults.steps = 1
            answer = await collect(waiting)
            assert isinstance(answer.end, Failed)
            assert isinstance(answer.end.error, ModelUnavailable)
            assert answer.end.error.retry_after
            assert bench.engine.status().waiting == ()

    run(scenario())


def test_a_reload_that_fails_is_tried_again() -> None:
    async def scenario() -> None:
        async with running(reload_pauses=(0.0, 0.01, 0.01)) as bench:
            bench.load_errors = [RuntimeError("out of memory"), ModelDamaged("so it seems")]
            bench.script.faults.steps = 1
            failure(await bench.run([1, 2, 3]))
            await until(lambda: not bench.load_errors)
            await bench.ready()
            assert (await bench.run([1, 2, 3])).reason is FinishReason.STOP

    run(scenario())


def test_loading_is_given_up_after_some_attempts_and_the_state_says_why() -> None:
    async def scenario() -> None:
        async with running(reload_pauses=(0.0, 0.01)) as bench:
            bench.script.faults.loads = 100
            bench.script.faults.steps = 1
            failure(await bench.run([1, 2, 3]))
            await until(lambda: bench.script.faults.loads == 98)
            await until(lambda: bench.engine.status().model.state == "failed")
            assert "the script says that loading fails" in expect_unavailable(bench).message
            await asyncio.sleep(0.1)
            assert bench.script.faults.loads == 98

    run(scenario())


def test_a_model_that_cannot_be_loaded_is_named_in_the_status() -> None:
    async def scenario() -> None:
        attempts: list[int] = []

        def load() -> LoadedModel:
            attempts.append(1)
            raise ModelNotFound("there is no model in /nowhere")

        def make_cache(info: object) -> PrefixCache:
            raise AssertionError("nothing was loaded")

        engine = Engine(load, make_cache=make_cache, reload_pauses=(0.0, 0.0, 0.0))
        engine.start()
        await until(lambda: engine.status().model.state == "failed")
        assert engine.status().model.error == "there is no model in /nowhere"
        with pytest.raises(ModelUnavailable, match="there is no model"):
            engine.model()
        await asyncio.sleep(0.05)
        assert attempts == [1], "a folder that is not there will not be there next time"
        await engine.close(grace_seconds=0)
        assert engine.status().model.state == "closed"

    run(scenario())


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

    def match(self, tokens: TokenIds) -> Match:
        assert "match" not in self.broken, "the test says so"
        return super().match(tokens)

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


def test_a_prompt_is_read_on_after_another_failed_between_its_chunks() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=100) as bench:
            bench.chunks.allow(3)
            long = bench.submit(words(2001, 1))
            await bench.chunks.standing()
            bench.script.faults.reads, bench.script.faults.reads_before = 1, 1
            short = bench.submit(words(50, 2))
            bench.chunks.free()
            failure(await collect(short))
            answer = await collect(long)
            assert answer.tokens == bench.cold(words(2001, 1))

    run(scenario())
