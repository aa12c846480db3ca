"""From start to close: what is refused, what the status says, how it sleeps and how it ends."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from daemon.errors import ContextOverflow, ModelUnavailable, Overloaded
from daemon.generation import Failed, FinishReason
from mlx_backend.messages import CacheKind
from tests.engine.harness import (
    HANG_SECONDS,
    Bench,
    collect,
    every_kind,
    expect_unavailable,
    run,
    running,
    until,
    words,
)
from tests.fakes import Script


def test_an_idle_engine_does_not_wake_up() -> None:
    async def scenario() -> None:
        ticks: list[float] = []

        def clock() -> float:
            ticks.append(time.monotonic())
            return ticks[-1]

        async with running(clock=clock) as bench:
            for _ in range(2):
                await bench.run(words(100, 1))
                await asyncio.sleep(0.1)
                ticks.clear()
                await asyncio.sleep(0.5)
                assert not ticks

    run(scenario())


def test_pooled_memory_is_given_back_when_work_pauses() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=100) as bench:
            await until(lambda: bench.backend.trims == 1)
            bench.chunks.allow(2)
            generation = bench.submit(words(501, 1))
            await bench.chunks.standing()
            assert bench.backend.trims == 1
            bench.chunks.free()
            await collect(generation)
            await until(lambda: bench.backend.trims == 2)

    run(scenario())


def test_nothing_is_accepted_before_the_model_is_loaded() -> None:
    async def scenario() -> None:
        bench = Bench(Script(load_seconds=0.1), CacheKind.SLICEABLE)
        bench.engine.start()
        assert bench.engine.status().model.state == "loading"
        assert "loaded" in expect_unavailable(bench).message
        await bench.ready()
        assert (await bench.run([1, 2])).reason is FinishReason.STOP
        await bench.engine.close(grace_seconds=1)

    run(scenario())


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    async def scenario() -> None:
        async with running(max_concurrent=2, max_queued=3) as bench:
            async with bench.held():
                accepted = [bench.submit(words(20, seed)) for seed in range(4)]
                with pytest.raises(Overloaded) as caught:
                    bench.submit(words(20, 9))
                assert caught.value.retry_after
                assert caught.value.status == 429
                accepted[0].cancel()
                accepted.append(bench.submit(words(20, 4)))
            answers = [await collect(generation) for generation in accepted]
            assert [a.reason for a in answers[1:]] == [FinishReason.STOP] * 4

    run(scenario())


def test_a_prompt_that_cannot_fit_is_refused_before_any_reading() -> None:
    async def scenario() -> None:
        async with running(Script(context_size=100)) as bench:
            with pytest.raises(ContextOverflow) as caught:
                bench.submit(words(101, 1), max_tokens=1)
            assert caught.value.code == "context_length_exceeded"
            full = await bench.run(words(100, 1), max_tokens=1)
            assert full.reason is FinishReason.LENGTH
            assert full.usage.generated == 1

    run(scenario())


def test_the_status_is_there_at_once_while_a_chunk_takes_long() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=100) as bench:
            bench.chunks.allow(0)
            reading = bench.submit(words(501, 1), session="a")
            await until(lambda: reading.has_started)
            waiting = bench.submit(words(900, 2), session="b")
            status = bench.engine.status()  # the thread stands in the first chunk
            assert [(r.phase, r.session) for r in status.running] == [("reading", "a")]
            assert [(r.phase, r.session) for r in status.waiting] == [("waiting", "b")]
            waiting.cancel()
            reading.cancel()
            bench.chunks.free()
            await collect(reading)
            await collect(waiting)

    run(scenario())


@every_kind
def test_the_status_adds_up_after_some_work(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=100) as bench:
            prompt = words(301, 1)
            answers = [await bench.run(prompt, session="s") for _ in range(3)]
            await bench.idle()
            status = bench.engine.status()
            assert status.model.cache_kind == kind
            assert status.totals.requests == 3
            assert status.totals.prompt == 903
            assert status.totals.reused == sum(answer.usage.reused for answer in answers)
            assert status.totals.read + status.totals.reused == 903
            assert status.totals.generated == 120
            assert status.totals.chunks == bench.backend.counters.chunks_read
            assert status.totals.steps == bench.backend.counters.steps
            assert status.cache == bench.caches[0].status()
            assert status.memory.row_bytes == 0
            assert status.memory.process_bytes > 1_000_000
            last = status.recent[-1]
            assert (last.phase, last.session, last.prompt) == ("done", "s", 301)
            assert last.reused == answers[-1].usage.reused
            assert last.first_token_seconds is not None
            assert 0 <= last.waited_seconds <= last.first_token_seconds <= last.seconds
            assert last.why_read

    run(scenario())


def test_the_last_fifty_requests_are_remembered() -> None:
    async def scenario() -> None:
        async with running() as bench:
            for _ in range(55):
                await bench.run([1, 2], max_tokens=1)
            recent = bench.engine.status().recent
            assert [r.id for r in recent] == [f"r{n}" for n in range(5, 55)]

    run(scenario())


def test_closing_lets_what_runs_end_within_the_grace_and_ends_with_it() -> None:
    async def scenario() -> None:
        async with running() as bench:
            bench.steps.allow(5)
            generation = bench.submit(words(50, 1))
            await bench.steps.standing()
            closing = asyncio.ensure_future(bench.engine.close(grace_seconds=10 * HANG_SECONDS))
            await asyncio.sleep(0)
            expect_unavailable(bench)
            bench.steps.free()
            assert (await collect(generation)).tokens == bench.cold(words(50, 1))
            await closing
            assert bench.backend.is_closed

    run(scenario())


async def closed_in_a_chunk(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Close without grace while the thread stands in a chunk; it goes on once it was told."""
    closing = asyncio.ensure_future(bench.engine.close(grace_seconds=0))
    await until(lambda: "cut short by the shutdown" in caplog.text)
    bench.chunks.free()
    assert await closing


@every_kind
def test_what_is_not_done_after_the_grace_is_told_so(
    kind: CacheKind, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=40, max_concurrent=2) as bench:
            bench.chunks.allow(3)
            async with bench.held():
                talking = bench.submit(words(20, 1))
                reading = bench.submit(words(5001, 2))
            await bench.chunks.standing()
            waiting = bench.submit(words(5001, 3))
            await closed_in_a_chunk(bench, caplog)
            for generation in (talking, reading, waiting):
                answer = await collect(generation)
                assert isinstance(answer.end, Failed)
                assert "shutting down" in answer.end.error.message
            assert bench.backend.is_closed
            assert bench.engine.status().model.state == "closed"
            assert not any(thread.name == "mlxd-engine" for thread in threading.enumerate())
            with pytest.raises(ModelUnavailable):
                bench.engine.model()

    run(scenario())


def test_closing_keeps_what_was_read(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=50) as bench:
            bench.chunks.allow(9)
            reading = bench.submit(words(5001, 2))
            await bench.chunks.standing()
            await closed_in_a_chunk(bench, caplog)
            assert isinstance((await collect(reading)).end, Failed)
            assert bench.caches[0].status().tokens == 500

    run(scenario())


def test_closing_twice_and_closing_unstarted_are_fine() -> None:
    async def scenario() -> None:
        unstarted = Bench(Script(), CacheKind.SLICEABLE)
        await unstarted.engine.close(grace_seconds=1)
        async with running() as bench:
            await bench.engine.close(grace_seconds=1)
            await bench.engine.close(grace_seconds=1)

    run(scenario())


def test_closing_waits_for_a_model_that_is_being_loaded() -> None:
    async def scenario() -> None:
        bench = Bench(Script(load_seconds=0.2), CacheKind.SLICEABLE)
        bench.engine.start()
        await bench.engine.close(grace_seconds=1)
        assert bench.backend.is_closed

    run(scenario())


def test_events_of_a_listener_that_went_away_do_no_harm() -> None:
    async def scenario() -> None:
        async with running() as bench:

            async def leave() -> None:
                bench.submit(words(30, 1))

            await asyncio.to_thread(lambda: asyncio.run(leave()))
            assert (await bench.run(words(30, 2))).reason is FinishReason.STOP

    run(scenario())
