"""What breaks, breaks for those it concerns; everybody hears of it, and the engine goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from daemon.engine import Engine
from daemon.engine_options import EngineOptions
from daemon.errors import ModelUnavailable
from daemon.generation import Failed, FinishReason
from daemon.prefix_cache.cache import PrefixCache
from mlx_backend.errors import ModelDamaged, ModelNotFound
from mlx_backend.interface import LoadedModel
from mlx_backend.messages import CacheKind
from tests.engine.harness import (
    Clock,
    collect,
    every_caching_kind,
    every_kind,
    expect_unavailable,
    failure,
    run,
    running,
    until,
    words,
)
from tests.fakes import Faults, Script


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

        engine = Engine(
            load, make_cache=make_cache, options=EngineOptions(reload_pauses=(0.0, 0.0, 0.0))
        )
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


class LetsGoBadly(PrefixCache):
    """A tree that breaks when a session's time is over."""

    def let_go(self, holder: str, why: Any) -> None:
        raise RuntimeError("the tree is broken")


def test_a_tree_that_breaks_as_a_session_expires_is_made_anew_with_its_model() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(
            clock=clock, cache_class=LetsGoBadly, session_idle_seconds=10.0
        ) as bench:
            await bench.run(words(100, 1), session="old")
            clock.now += 11
            await collect(bench.submit(words(100, 2)))
            await bench.ready()
            assert len(bench.models) == 2
            assert (await bench.run(words(100, 2))).reason is FinishReason.STOP

    run(scenario())
