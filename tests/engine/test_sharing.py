"""Prompts in flight share what they have in common: it is read once, by whoever leads."""

from __future__ import annotations

from daemon.generation import FinishReason
from mlx_backend.messages import CacheKind
from tests.engine.harness import collect, every_caching_kind, run, running, words

CHUNK = 256


@every_caching_kind
def test_four_at_once_read_their_common_head_once(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=CHUNK) as bench:
            head = words(4000, 5)
            prompts = [head + words(50, n) for n in range(4)]
            answers = await bench.together(prompts)
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer.tokens == bench.cold(prompt)
            assert bench.tokens_read <= 4000 + 4 * 50
            assert sum(answer.usage.read for answer in answers) <= 4000 + 4 * 50 + 4

    run(scenario())


@every_caching_kind
def test_followers_go_on_from_the_chunks_of_a_leader_that_left(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=CHUNK) as bench:
            head = words(4000, 5)
            bench.chunks.allow(2)
            leader = bench.submit(head + words(50, 0))
            await bench.chunks.standing()
            prompts = [head + words(50, n) for n in range(1, 4)]
            followers = [bench.submit(prompt) for prompt in prompts]
            bench.chunks.allow(6)
            await bench.chunks.standing()
            leader.cancel()
            bench.chunks.free()
            assert (await collect(leader)).usage.read == 9 * CHUNK
            for prompt, follower in zip(prompts, followers, strict=True):
                answer = await collect(follower)
                assert answer.tokens == bench.cold(prompt)
                assert answer.usage.reused >= 9 * CHUNK
            assert bench.tokens_read <= 4000 + 3 * 50

    run(scenario())


@every_caching_kind
def test_a_follower_that_comes_while_the_leader_is_being_read_waits_for_the_fork(
    kind: CacheKind,
) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=CHUNK) as bench:
            head = words(3000, 5)
            bench.chunks.allow(4)
            leader = bench.submit(head + words(2000, 1))
            await bench.chunks.standing()
            prompt = head + words(60, 2)
            generation = bench.submit(prompt)
            bench.chunks.free()
            follower = await collect(generation)
            assert follower.usage.reused == 3000
            assert follower.tokens == bench.cold(prompt)
            assert (await collect(leader)).reason is FinishReason.STOP
            assert bench.tokens_read <= 5000 + 60

    run(scenario())


def test_where_state_can_be_cut_a_follower_is_served_from_behind_the_leader() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=CHUNK) as bench:
            head = words(1000, 5)
            bench.chunks.allow(8)
            leader = bench.submit(head + words(4000, 1))
            await bench.chunks.standing()
            follower = bench.submit(head + words(60, 2), max_tokens=1)
            bench.chunks.allow(2)  # the leader's that is under way, and all of the follower's
            assert (await collect(follower)).usage.reused == 1000
            bench.chunks.free()
            assert (await collect(leader)).tokens == bench.cold(head + words(4000, 1))

    run(scenario())


def test_where_it_cannot_nobody_waits_for_a_fork_that_was_passed() -> None:
    async def scenario() -> None:
        kind = CacheKind.CHECKPOINTED
        async with running(kind=kind, chunk_tokens=CHUNK) as bench:
            head = words(1000, 5)
            bench.chunks.allow(8)
            leader = bench.submit(head + words(4000, 1))
            await bench.chunks.standing()
            follower = bench.submit(head + words(60, 2), max_tokens=1)
            bench.chunks.allow(6)  # the leader's that is under way, and all of the follower's
            assert (await collect(follower)).usage.reused == 0
            bench.chunks.free()
            assert (await collect(leader)).tokens == bench.cold(head + words(4000, 1))
            assert bench.engine.status().cache.skipped_captures == 0

    run(scenario())


def test_nobody_waits_for_what_will_not_be_stored() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=CHUNK, cache={"max_entries": 0}) as bench:
            head = words(2000, 5)
            bench.chunks.allow(1)
            leader = bench.submit(head + words(4000, 1), max_tokens=1)
            await bench.chunks.standing()
            follower = bench.submit(head + words(60, 2), max_tokens=1)
            bench.chunks.free()
            assert (await collect(follower)).usage.read == 2060
            await collect(leader)
            starts = [call[2] for call in bench.calls("read")]
            assert starts[:3] == [0, CHUNK, 0]

    run(scenario())


@every_caching_kind
def test_equal_prompts_at_once_are_read_once(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=CHUNK) as bench:
            prompt = words(2000, 1)
            for answer in await bench.together([prompt] * 5):
                assert answer.tokens == bench.cold(prompt)
            assert bench.tokens_read <= 2000 + 5 * 16

    run(scenario())


@every_caching_kind
def test_branches_of_branches_are_shared_too(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=CHUNK) as bench:
            head, left, right = words(1000, 1), words(800, 2), words(800, 3)
            prompts = [head + side + words(40, n) for n, side in enumerate([left, right] * 3)]
            answers = await bench.together(prompts)
            for prompt, answer in zip(prompts, answers, strict=True):
                assert answer.tokens == bench.cold(prompt)
            assert bench.tokens_read <= 1000 + 2 * 800 + 6 * 40

    run(scenario())


def test_a_leader_takes_the_best_rank_of_those_who_wait_for_it() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=CHUNK) as bench:
            head = words(2000, 5)
            bench.chunks.allow(2)
            leader = bench.submit(head + words(6000, 1), max_tokens=1)
            await bench.chunks.standing()
            follower = bench.submit(head + words(20, 2), max_tokens=1)
            other = bench.submit(words(1500, 3), max_tokens=1)
            bench.chunks.free()
            await collect(leader)
            await collect(other)
            started = [call[1] for call in bench.calls("start_decoding")]
            assert started == [2020, 1500, 8000]
            assert (await collect(follower)).usage.reused == 2000

    run(scenario())


@every_caching_kind
def test_a_fork_is_found_again_by_a_third_that_comes_later(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            head = words(1500, 5)
            await bench.run(head + words(300, 1))
            await bench.run(head + words(300, 2))
            third = await bench.run(head + words(300, 3))
            assert third.usage.reused >= 1500
            assert third.tokens == bench.cold(head + words(300, 3))

    run(scenario())
