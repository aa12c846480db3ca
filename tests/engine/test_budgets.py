"""Budgets that hold: what rows and prefix tree keep, who waits, who gives way, and what it costs.

Bytes are weighed whenever a step or a chunk begins (`Bench.most_held`). Every answer is compared
with that of a run alone, so that giving way never shows in one.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from daemon.errors import MemoryOverflow, Overloaded
from daemon.generation import Failed, FinishReason, Started
from mlx_backend.messages import CacheKind
from tests.engine.harness import Answer, Bench, collect, every_caching_kind, run, running, words
from tests.fakes import TURN_END, Faults, Script

MB = 10**6
TOKEN_BYTES = 1_000
ROUNDING = 256


def chatty(length: int) -> Script:
    """Answers of `length` letters, each a function of the whole state before it."""

    def reply(state: list[int], index: int) -> int:
        return TURN_END if index >= length else 97 + (sum(state[-50:]) + len(state)) % 26

    return Script(reply=reply, span_token_bytes=TOKEN_BYTES)  # type: ignore[arg-type]


def rounded(tokens: int) -> int:
    return -(-tokens // ROUNDING) * ROUNDING


@every_caching_kind
def test_two_hundred_turns_beside_long_prompts_stay_within_the_budget(kind: CacheKind) -> None:
    async def scenario() -> None:
        script = Script(span_token_bytes=8_000, reply=chatty(4).reply)
        budget = 64 * MB
        async with running(script, kind, budget_bytes=budget, max_queued=200) as bench:

            async def agent() -> None:
                history = words(500, 1)
                for turn in range(200):
                    history += words(12, turn)
                    history += await right(bench, history)

            async def stranger(seed: int) -> None:
                for turn in range(20):
                    await right(bench, words(2_000, 100 + seed * 20 + turn))

            await asyncio.gather(agent(), *(stranger(seed) for seed in range(3)))
            bench.weigh()
            assert budget / 2 < bench.most_held <= budget
            status = bench.engine.status()
            assert status.totals.requests == 260
            assert status.totals.failed == 0
            assert status.totals.read < status.totals.prompt / 2, "it thrashed"
            assert status.memory.budget_bytes == budget

    run(scenario())


async def right(bench: Bench, prompt: list[int], max_tokens: int = 100) -> list[int]:
    answer = await bench.run(prompt, max_tokens)
    assert answer.tokens == bench.cold(prompt, max_tokens)
    return answer.tokens


@pytest.mark.parametrize("at_once", [1, 10])
@every_caching_kind
def test_the_cache_keeps_its_own_limit_on_every_path(kind: CacheKind, at_once: int) -> None:
    async def scenario() -> None:
        limit = 10 * MB
        script = Script(span_token_bytes=10_000, checkpoint_bytes=50_000)
        async with running(script, kind, cache={"max_bytes": limit}) as bench:
            prompts = [words(300, seed) for seed in range(10)]
            for first in range(0, 10, at_once):
                await bench.together(prompts[first : first + at_once], max_tokens=5)
                cache = bench.engine.status().cache
                assert cache.bytes <= cache.max_bytes == limit
                bench.caches[-1].check()
            assert cache.bytes > limit / 2
            assert cache.evicted_by_bytes > 0

    run(scenario())


def test_superseded_checkpoints_do_not_pile_up() -> None:
    async def scenario(max_bytes: int) -> int:
        script = Script(checkpoint_bytes=100_000, span_token_bytes=1)
        limits = {"max_bytes": max_bytes}
        async with running(script, CacheKind.CHECKPOINTED, cache=limits) as bench:
            history = words(60, 1)
            for turn in range(30):
                history += words(60, turn)
                answer = await bench.run(history, 20)
                history += answer.tokens
                assert bench.engine.status().cache.bytes <= max_bytes
                assert turn == 0 or answer.usage.reused > 0
            return bench.engine.status().cache.checkpoints

    assert asyncio.run(scenario(399_000)) <= 3
    assert asyncio.run(scenario(100 * MB)) > 10


@every_caching_kind
def test_arrays_are_budgeted_like_bytes(kind: CacheKind) -> None:
    async def scenario() -> None:
        limits = {"max_arrays": 500}
        async with running(Script(block_tokens=8), kind, cache=limits) as bench:
            for seed in range(20):
                await right(bench, words(600, seed), 10)
                cache = bench.engine.status().cache
                assert cache.arrays <= cache.max_arrays == 500
            assert cache.evicted_by_arrays > 0

    run(scenario())


@every_caching_kind
def test_a_row_reserves_a_step_of_its_answer_not_all_of_it(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(chatty(2_500), kind, budget_bytes=6 * MB) as bench:
            prompt = words(1_000, 1)
            answer = await bench.run(prompt, 100_000)
            assert answer.tokens == bench.cold(prompt, 100_000)
            assert [call[2] for call in bench.calls("open")][-1] == 2_024
            grown = [call[1:] for call in bench.calls("grow")]
            assert grown == [(2_024, 3_048), (3_048, 4_072)]
            assert bench.backend.counters.rows_grown == 2
            assert bench.most_held <= 6 * MB

    run(scenario())


def test_a_short_answer_reserves_no_more_than_it_can_take() -> None:
    async def scenario() -> None:
        async with running(chatty(50)) as bench:
            await right(bench, words(100, 1), 7)
            assert bench.calls("open")[-1] == ("open", 0, 107)
            assert not bench.calls("grow")

    run(scenario())


@every_caching_kind
def test_the_youngest_row_gives_way_and_goes_on_where_it_was(kind: CacheKind) -> None:
    async def scenario() -> None:
        options = {"growth_tokens": 128, "budget_bytes": 3 * MB, "chunk_tokens": 512}
        async with running(chatty(700), kind, **options) as bench:
            prompts = [words(600, seed) for seed in range(3)]
            answers = await bench.together(prompts, 1_000)
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer.tokens == bench.cold(prompt, 1_000)
                assert answer.usage.prompt == answer.usage.read == 600
                assert answer.usage.generated == 700
                assert sum(isinstance(event, Started) for event in answer.events) == 1
            assert bench.engine.status().totals.parked >= 1
            assert bench.most_held <= 3 * MB

    run(scenario())


@every_caching_kind
def test_a_parked_row_reads_nothing_again_while_there_is_room_for_its_copy(
    kind: CacheKind,
) -> None:
    async def scenario() -> None:
        options = {
            "growth_tokens": 128,
            "budget_bytes": int(2.75 * MB),
            "cache": {"max_entries": 0},
        }
        async with running(chatty(700), kind, **options) as bench:
            prompts = [words(900, 1), words(120, 2)]
            answers = await bench.together(prompts, 2_000)
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer.tokens == bench.cold(prompt, 2_000)
            assert bench.engine.status().totals.parked >= 1
            assert bench.tokens_read == 899 + 119

    run(scenario())


@every_caching_kind
def test_a_parked_row_that_could_not_be_kept_reads_its_past_again(kind: CacheKind) -> None:
    async def scenario() -> None:
        script = chatty(700)
        script.faults = Faults(captures=10**6)
        options = {"growth_tokens": 128, "budget_bytes": 3 * MB}
        async with running(script, kind, **options) as bench:
            prompts = [words(600, seed) for seed in range(3)]
            answers = await bench.together(prompts, 1_000)
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer.tokens == bench.cold(prompt, 1_000)
                assert answer.usage.read == 600
            assert bench.engine.status().totals.parked >= 1
            assert bench.tokens_read > 3 * 599

    run(scenario())


@every_caching_kind
def test_a_parked_request_can_be_cancelled(kind: CacheKind) -> None:
    async def scenario() -> None:
        script = chatty(1_200)
        script.step_seconds = 0.0005
        async with running(script, kind, growth_tokens=128, budget_bytes=2 * MB) as bench:
            async with bench.held():
                old, young = (bench.submit(words(600, seed), 2_000) for seed in range(2))
            ends = [asyncio.ensure_future(collect(one)) for one in (old, young)]
            while not any(r.phase == "parked" for r in bench.engine.status().running):
                await asyncio.sleep(0.001)
            young.cancel()
            answers: list[Answer] = await asyncio.gather(*ends)
            assert answers[1].reason is FinishReason.CANCELLED
            said = answers[1].tokens
            assert 0 < len(said) < 1_200
            assert said == bench.cold(words(600, 1), 2_000)[: len(said)]
            assert answers[0].tokens == bench.cold(words(600, 0), 2_000)

    run(scenario())


def test_nothing_that_runs_is_disturbed_for_a_newcomer() -> None:
    async def scenario() -> None:
        async with running(chatty(300), budget_bytes=3 * MB) as bench:
            prompt, newcomer = words(1_000, 1), words(900, 2)
            bench.steps.allow(100)
            first = asyncio.ensure_future(collect(bench.submit(prompt, 1_000)))
            await bench.steps.standing()
            second = asyncio.ensure_future(collect(bench.submit(newcomer, 1_000)))
            bench.steps.allow(50)
            await bench.steps.standing()
            assert len(bench.calls("open")) == 1, "it was let in without room"
            bench.steps.free()
            assert (await first).tokens == bench.cold(prompt, 1_000)
            assert (await second).tokens == bench.cold(newcomer, 1_000)
            assert bench.engine.status().totals.parked == 0
            assert bench.most_held <= 3 * MB

    run(scenario())


@every_caching_kind
def test_a_prompt_that_waits_for_room_counts_as_one_use_however_often_it_is_tried(
    kind: CacheKind,
) -> None:
    async def scenario() -> None:
        options = {"growth_tokens": 64, "budget_bytes": int(2.7 * MB)}
        async with running(chatty(300), kind, **options) as bench:
            shared = words(600, 1)
            await right(bench, shared, 1)
            bench.steps.allow(1)
            first = asyncio.ensure_future(collect(bench.submit(shared + words(600, 2), 300)))
            await bench.steps.standing()
            before = bench.caches[0].status()
            newcomer = shared + words(300, 3)
            second = asyncio.ensure_future(collect(bench.submit(newcomer, 300)))
            bench.steps.allow(280)
            await bench.steps.standing()
            assert bench.backend.counters.rows_grown >= 4, "it was not tried again"
            meanwhile = bench.caches[0].status()
            assert (meanwhile.hits, meanwhile.misses) == (before.hits, before.misses)
            bench.steps.free()
            await first
            assert (await second).tokens == bench.cold(newcomer, 300)
            after = bench.caches[0].status()
            assert after.hits + after.misses == before.hits + before.misses + 1

    run(scenario())


@every_caching_kind
def test_admission_counts_what_is_reused_as_well(kind: CacheKind) -> None:
    """Nine tenths of the second prompt are cached; its row takes as much memory as any."""

    async def scenario() -> None:
        shared = words(1_800, 1)
        async with running(chatty(300), kind, budget_bytes=6 * MB) as bench:
            await right(bench, shared, 1)
            del bench.log[:]
            bench.steps.allow(100)
            first = asyncio.ensure_future(collect(bench.submit(shared + words(200, 2), 1_000)))
            await bench.steps.standing()
            second = asyncio.ensure_future(collect(bench.submit(shared + words(200, 3), 1_000)))
            bench.steps.allow(50)
            await bench.steps.standing()
            assert len(bench.calls("open")) == 1, "only its new tokens were counted"
            bench.steps.free()
            assert (await first).usage.reused >= 1_700
            assert (await second).usage.reused >= 1_700
            assert bench.most_held <= 6 * MB

    run(scenario())


@every_caching_kind
def test_a_prompt_that_could_never_fit_is_refused_with_the_numbers(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(chatty(10), kind, budget_bytes=3 * MB) as bench:
            await right(bench, words(500, 1), 10)
            del bench.log[:]
            with pytest.raises(MemoryOverflow) as caught:
                bench.submit(words(2_900, 2), 100_000)
            assert caught.value.status == 400
            whole = 1_000 if kind is CacheKind.CHECKPOINTED else 0
            for number in (2_900, rounded(3_924) * TOKEN_BYTES + whole, 3 * MB):
                assert str(number) in caught.value.message
            assert not bench.log
            await right(bench, words(1_800, 2), 1_000)  # fits, once the cache has given way

    run(scenario())


@every_caching_kind
def test_a_prompt_whose_own_past_fills_the_memory_still_runs(kind: CacheKind) -> None:
    """Its row and what the tree holds of it do not fit together: the tree gives way."""

    async def scenario() -> None:
        async with running(chatty(30), kind, budget_bytes=5 * MB) as bench:
            prompt = words(3_000, 1)
            await right(bench, prompt, 100)
            await right(bench, prompt + words(300, 2), 1_000)
            assert bench.most_held <= 5 * MB

    run(scenario())


def test_an_answer_alone_that_outgrows_the_memory_ends_as_too_long(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with running(chatty(10_000), budget_bytes=4 * MB) as bench:
            prompt = words(1_000, 1)
            with caplog.at_level(logging.WARNING):
                answer = await bench.run(prompt, 9_000)
            assert answer.reason is FinishReason.LENGTH
            assert 2_000 < len(answer.tokens) < 3_100
            assert answer.tokens == bench.cold(prompt, len(answer.tokens))
            assert bench.most_held <= 4 * MB
            assert "no memory" in caplog.text
            await right(bench, words(500, 2), 100)

    run(scenario())


def test_a_growth_that_breaks_the_device_is_answered_and_recovered_from() -> None:
    async def scenario() -> None:
        script = chatty(500)
        async with running(script, growth_tokens=128, reload_pauses=(0.0,)) as bench:
            script.faults.growths = 1
            answer = await bench.run(words(300, 1), 500)
            assert isinstance(answer.end, Failed)
            await bench.ready()
            await right(bench, words(300, 1), 500)
            assert len(bench.models) == 2

    run(scenario())


def test_of_forty_requests_those_beyond_the_queue_are_told_to_come_back() -> None:
    async def scenario() -> None:
        async with running(max_concurrent=2, max_queued=8) as bench:
            accepted, refusals = [], []
            async with bench.held():
                for seed in range(40):
                    try:
                        accepted.append(bench.submit(words(50, seed)))
                    except Overloaded as error:
                        refusals.append(error)
                waiting = bench.engine.status().waiting
            assert len(accepted) == 9  # and the one that holds the engine
            assert len(refusals) == 31
            assert all(e.status == 429 and e.retry_after for e in refusals)
            assert len(waiting) == 9
            assert all(request.waited_seconds >= 0 for request in waiting)
            for generation in accepted:
                answer = await collect(generation)
                assert answer.tokens == bench.cold(generation.request.prompt.tokens.tolist())

    run(scenario())


def test_without_a_wish_an_answer_goes_on_to_the_end_of_the_context() -> None:
    """No hidden default: 6,000 tokens are said where nothing ends the answer before."""

    async def scenario() -> None:
        async with running(chatty(6_000)) as bench:
            prompt = words(50, 1)
            answer = await bench.run(prompt, bench.script.context_size - len(prompt) + 1)
            assert answer.reason is FinishReason.STOP
            assert answer.usage.generated == 6_000

    run(scenario())


def test_what_is_captured_for_a_newcomer_makes_room_for_itself() -> None:
    async def scenario() -> None:
        async with running(chatty(50), budget_bytes=int(2.6 * MB), chunk_tokens=128) as bench:
            await right(bench, words(950, 1), 1)
            leader, follower = words(1_300, 2), words(1_300, 2)[:600] + words(50, 3)
            bench.chunks.allow(5)
            first = asyncio.ensure_future(collect(bench.submit(leader, 100)))
            await bench.chunks.standing()
            second = asyncio.ensure_future(collect(bench.submit(follower, 100)))
            bench.chunks.free()
            assert (await first).tokens == bench.cold(leader, 100)
            answer = await second
            assert answer.tokens == bench.cold(follower, 100)
            assert bench.most_held <= 2.6 * MB

    run(scenario())


def test_the_status_says_what_rows_have_what_is_reserved_and_of_how_much() -> None:
    async def scenario() -> None:
        script = chatty(300)
        script.step_seconds = 0.001
        async with running(script, budget_bytes=50 * MB) as bench:
            running_one = asyncio.ensure_future(collect(bench.submit(words(500, 1), 5_000)))
            while not bench.engine.status().running:
                await asyncio.sleep(0.001)
            memory = bench.engine.status().memory
            assert memory.row_bytes == 1_524 * TOKEN_BYTES
            assert memory.reserved_bytes == rounded(1_524) * TOKEN_BYTES
            assert memory.budget_bytes == 50 * MB
            assert memory.process_bytes > MB
            await running_one
            await bench.run(words(5, 2))
            assert bench.engine.status().memory.reserved_bytes == 0

    run(scenario())
