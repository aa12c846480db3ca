"""What sessions are called, count and keep, and when they are forgotten."""

from __future__ import annotations

import asyncio

import pytest

from daemon.engine import Inspection
from daemon.errors import ModelUnavailable, NotFound
from daemon.status import SessionStatus
from mlx_backend.messages import CacheKind, Marks
from tests.engine.harness import (
    Bench,
    Clock,
    collect,
    every_caching_kind,
    every_kind,
    run,
    running,
    until,
    words,
)
from tests.fakes import TURN_END, Script

HOUR = 3600.0


async def sessions(bench: Bench) -> dict[str, SessionStatus]:
    """The open sessions by id, as the engine's thread sees them now."""

    def look(seen: Inspection) -> tuple[SessionStatus, ...]:
        return seen.sessions.statuses(seen.now)

    return {session.id: session for session in await bench.engine.ask(look)}


async def leaves(bench: Bench) -> int:
    return await bench.engine.ask(lambda seen: seen.cache.status().live_leaves)


async def pass_time(bench: Bench, clock: Clock, seconds: float) -> None:
    """Let time pass while the engine has nothing to do."""
    await bench.idle()
    clock.now += seconds
    await bench.engine.ask(lambda seen: None)


@every_kind
def test_a_session_counts_what_its_requests_cost(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            first = words(300, 1)
            answers = [await bench.run(first, session="s")]
            history = [*first, *answers[0].tokens, TURN_END]
            answers.append(await bench.run(history + words(50, 2), session="s"))
            assert set(await sessions(bench)) == {"s"}
            told = (await sessions(bench))["s"]
            usages = [answer.usage for answer in answers]
            assert told.label == "s"
            assert (told.turns, told.cancelled, told.running) == (2, 0, 0)
            assert told.prompt == sum(usage.prompt for usage in usages) == told.reused + told.read
            assert told.reused == usages[1].reused
            assert told.generated == 80
            assert (told.parent, told.family) == (None, None)
            assert bench.engine.status().sessions[0].turns == 2
            if kind is not CacheKind.UNCACHEABLE:
                assert told.reused > 0
                assert told.live_tokens == len(history) + 50 + 41
                assert told.live_bytes > 0

    run(scenario())


@every_caching_kind
def test_a_session_holds_the_state_after_its_last_turn_only(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, prompt_end="initial") as bench:
            history: list[int] = []
            for turn in range(5):
                prompt = history + words(100, turn)
                answer = await bench.run(prompt, session="s")
                history = [*prompt, *answer.tokens, TURN_END]
                assert await leaves(bench) == 1
                assert (await sessions(bench))["s"].live_tokens == len(history)

    run(scenario())


def test_cancelled_requests_are_counted_wherever_they_were() -> None:
    async def scenario() -> None:
        async with running(max_concurrent=1) as bench:
            bench.steps.allow(3)
            answering = bench.submit(words(100, 1), session="s")
            await bench.steps.standing()
            queued = bench.submit(words(100, 2), session="s")
            queued.cancel()
            answering.cancel()
            bench.steps.free()
            await collect(queued)
            await collect(answering)
            told = (await sessions(bench))["s"]
            assert (told.turns, told.cancelled, told.running) == (2, 2, 0)
            assert told.generated == 4

    run(scenario())


def test_a_running_request_shows_in_its_session() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(clock=clock) as bench:
            bench.steps.allow(1)
            generation = bench.submit(words(100, 1), session="s")
            await bench.steps.standing()
            bench.steps.allow(1)
            told = (await sessions(bench))["s"]
            assert (told.running, told.turns) == (1, 0)
            bench.steps.free()
            await collect(generation)
            clock.now += 7
            told = (await sessions(bench))["s"]
            assert (told.running, told.turns) == (0, 1)
            assert (told.age_seconds, told.idle_seconds) == (7, 7)

    run(scenario())


@every_caching_kind
def test_an_anonymous_request_opens_a_session_of_its_own(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            history: list[int] = []
            for turn in range(3):
                prompt = history + words(100, turn)
                answer = await bench.run(prompt)
                assert answer.usage.reused >= len(history)
                history = [*prompt, *answer.tokens, TURN_END]
            await bench.run(words(200, 9))
            told = list((await sessions(bench)).values())
            assert len({session.id for session in told}) == 4
            assert all(session.id.startswith("anon-") for session in told)
            assert {session.label for session in told} == {"anonymous"}
            first, second, third, stranger = told
            assert (first.parent, second.parent, third.parent) == (None, first.id, second.id)
            assert (stranger.parent, stranger.family) == (None, None)
            assert {first.family, second.family, third.family} == {first.id}

    run(scenario())


@pytest.mark.parametrize("prompt_end", ["every", "initial"])
@every_caching_kind
def test_an_anonymous_conversation_holds_no_more_than_a_named_one(
    kind: CacheKind, prompt_end: str
) -> None:
    async def scenario() -> None:
        async with running(kind=kind, prompt_end=prompt_end) as bench:
            await bench.run(words(100, 99), session="named")
            history: list[int] = []
            for turn in range(6):
                prompt = history + words(100, turn)
                answer = await bench.run(prompt)
                assert answer.usage.reused == len(history)
                assert answer.tokens == bench.cold(prompt)
                history = [*prompt, *answer.tokens, TURN_END]
                assert await leaves(bench) == 2
                latest = list((await sessions(bench)).values())[-1]
                assert latest.live_tokens == len(history)
            told = await bench.engine.ask(lambda seen: seen.cache.status())
            assert told.evicted_by_sessions == 0
            bench.caches[0].check()

    run(scenario())


@every_caching_kind
def test_an_anonymous_turn_that_is_cut_leaves_the_turn_before_to_go_back_to(
    kind: CacheKind,
) -> None:
    async def scenario() -> None:
        async with running(kind=kind, prompt_end="initial") as bench:
            history = [*words(200, 1), *(await bench.run(words(200, 1))).tokens, TURN_END]
            bench.steps.allow(3)
            cut = bench.submit(history + words(90, 2))
            await bench.steps.standing()
            cut.cancel()
            bench.steps.free()
            await collect(cut)
            steered = history + words(90, 3)
            answer = await bench.run(steered)
            assert answer.usage.reused == len(history)
            assert answer.tokens == bench.cold(steered)

    run(scenario())


def test_an_anonymous_request_takes_nothing_from_a_named_session() -> None:
    async def scenario() -> None:
        async with running(prompt_end="initial") as bench:
            history = [*words(200, 1), *(await bench.run(words(200, 1), session="s")).tokens]
            await bench.run(history + words(50, 2))
            told = await sessions(bench)
            assert told["s"].live_tokens == len(history) + 1
            assert len(told) == 2
            assert await leaves(bench) == 2

    run(scenario())


@every_caching_kind
def test_one_shot_anonymous_requests_do_not_push_out_a_named_session(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, max_sessions=4, prompt_end="initial") as bench:
            await bench.run(words(200, 1), session="s")
            history = [*words(200, 1), *bench.cold(words(200, 1)), TURN_END]
            for seed in range(10):
                await bench.run(words(100, 50 + seed), max_tokens=1)
            assert set(await sessions(bench)) >= {"s"}
            assert len(await sessions(bench)) == 4
            goes_on = await bench.run(history + words(50, 2), session="s")
            assert goes_on.usage.reused == len(history)

    run(scenario())


@every_caching_kind
def test_a_fork_knows_whose_tokens_it_went_on_with(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            head, talk = words(300, 1), words(300, 2)
            marks = Marks(head_end=300)
            await bench.run(head + talk, session="main", marks=marks)
            await bench.run(head + talk[:200] + words(90, 3), session="fork", marks=marks)
            await bench.run(head + words(90, 4), session="stranger", marks=marks)
            await bench.run(head + talk + words(90, 5), session="main", marks=marks)
            told = await sessions(bench)
            assert (told["fork"].parent, told["fork"].family) == ("main", "main")
            assert (told["main"].parent, told["main"].family) == (None, "main")
            assert (told["stranger"].parent, told["stranger"].family) == (None, None)

    run(scenario())


def test_a_family_that_a_client_names_is_not_named_anew() -> None:
    async def scenario() -> None:
        async with running() as bench:
            await bench.run(words(200, 1), session="main", family="work")
            await bench.run(words(200, 1) + words(50, 2), session="sub", family="work")
            await bench.run(words(200, 1) + words(50, 3), session="fork")
            told = await sessions(bench)
            assert {session.family for session in told.values()} == {"work"}
            assert told["fork"].parent in {"main", "sub"}

    run(scenario())


def test_a_name_steers_no_match() -> None:
    async def scenario() -> None:
        async with running() as bench:
            await bench.run(words(200, 1), session="s")
            other = await bench.run(words(200, 2), session="s")
            assert other.usage.reused == 0
            assert other.tokens == bench.cold(words(200, 2))
            assert (await bench.run(words(200, 1), session="t")).usage.reused == 199

    run(scenario())


@pytest.mark.parametrize("prompt_end", ["every", "initial"])
@every_caching_kind
def test_two_requests_of_one_session_at_once_are_both_right_and_both_continued(
    kind: CacheKind, prompt_end: str
) -> None:
    async def scenario() -> None:
        async with running(kind=kind, prompt_end=prompt_end) as bench:
            history = words(100, 0)
            for turn in range(20):
                prompts = [history + words(40, 2 * turn + 1), history + words(40, 2 * turn + 2)]
                async with bench.held():
                    both = [bench.submit(prompt, session="s") for prompt in prompts]
                answers = await asyncio.gather(*map(collect, both))
                for prompt, answer in zip(prompts, answers, strict=True):
                    assert answer.tokens == bench.cold(prompt)
                branches = [
                    [*prompt, *answer.tokens, TURN_END, *words(20, 500 + turn)]
                    for prompt, answer in zip(prompts, answers, strict=True)
                ]
                for branch in branches:
                    continued = await bench.run(branch, max_tokens=4, session="s")
                    assert continued.usage.reused == len(branch) - 20
                    assert continued.tokens == bench.cold(branch, 4)
                history = branches[0][:-20]

    run(scenario())


@pytest.mark.parametrize("prompt_end", ["every", "initial"])
@every_caching_kind
def test_a_session_that_was_idle_for_long_is_forgotten_with_its_state(
    kind: CacheKind, prompt_end: str
) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(kind=kind, clock=clock, prompt_end=prompt_end) as bench:
            await bench.run(words(200, 1), session="old")
            await pass_time(bench, clock, HOUR / 2)
            await bench.run(words(200, 2), session="young")
            assert set(await sessions(bench)) == {"old", "young"}
            await pass_time(bench, clock, HOUR / 2)
            assert set(await sessions(bench)) == {"young"}
            assert await leaves(bench) == 1
            await pass_time(bench, clock, HOUR / 2)
            assert await sessions(bench) == {}
            assert await leaves(bench) == 0
            entries = bench.engine.status().cache.entries
            assert entries >= 2
            assert (await bench.run(words(200, 1))).usage.reused >= 199

    run(scenario())


def test_an_idle_session_is_forgotten_though_nothing_else_happens() -> None:
    async def scenario() -> None:
        async with running(session_idle_seconds=0.05) as bench:
            await bench.run(words(50, 1), session="s")
            assert [session.id for session in bench.engine.status().sessions] == ["s"]
            await until(lambda: not bench.engine.status().sessions)
            assert bench.engine.status().cache.live_leaves == 0

    run(scenario())


def test_an_idle_engine_sleeps_until_the_first_session_is_to_be_forgotten() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(clock=clock) as bench:
            for name in "abc":
                await bench.run(words(50, 1), session=name)
            await bench.idle()
            await asyncio.sleep(0.05)
            asked = clock.asked
            await asyncio.sleep(0.4)
            assert clock.asked == asked

    run(scenario())


def test_a_session_is_forgotten_while_others_keep_the_engine_busy() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(clock=clock, chunk_tokens=16) as bench:
            await bench.run(words(50, 1), session="old")
            bench.chunks.allow(2)
            busy = bench.submit(words(400, 2), session="busy")
            await bench.chunks.standing()
            for seconds in (2 * HOUR, 1.0):
                clock.now += seconds
                bench.chunks.allow(1)
                await bench.chunks.standing()
            assert bench.engine.status().cache.live_leaves == 0
            assert not busy.has_ended
            bench.chunks.free()
            await collect(busy)
            assert set(await sessions(bench)) == {"busy"}

    run(scenario())


def test_a_session_with_a_running_request_is_never_idle() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(clock=clock, max_sessions=1) as bench:
            bench.steps.allow(2)
            long = bench.submit(words(100, 1), session="long")
            await bench.steps.standing()
            clock.now += 2 * HOUR
            other = bench.submit(words(30, 2), max_tokens=1, session="other")
            bench.steps.free()
            await collect(other)
            await collect(long)
            told = await sessions(bench)
            assert told["long"].turns == 1
            assert told["long"].idle_seconds == 0
            assert await leaves(bench) == 1

    run(scenario())


@every_caching_kind
def test_beyond_the_limit_the_longest_unused_session_is_forgotten(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, max_sessions=2, prompt_end="initial") as bench:
            for name, seed in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
                await bench.run(words(200, seed), session=name)
            assert set(await sessions(bench)) == {"a", "c"}
            told = await bench.engine.ask(lambda seen: seen.cache.status())
            assert told.evicted_by_sessions == 1
            assert told.live_leaves == 3  # two branches of a, one of c

    run(scenario())


@every_caching_kind
def test_a_reset_forgets_the_state_and_keeps_the_session(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, prompt_end="initial") as bench:
            first = await bench.run(words(200, 1), session="s")
            history = [*words(200, 1), *first.tokens, TURN_END]
            await bench.run(history + words(100, 2), session="s")
            await bench.engine.ask(lambda seen: seen.sessions.reset("s"))
            told = (await sessions(bench))["s"]
            assert (told.turns, told.live_tokens, told.live_bytes) == (2, 0, 0)
            assert await leaves(bench) == 0
            again = await bench.run(history + words(100, 2), session="s")
            assert again.usage.reused == 199
            assert (await sessions(bench))["s"].turns == 3

    run(scenario())


def test_a_deleted_session_is_gone_and_its_name_is_free_again() -> None:
    async def scenario() -> None:
        async with running(prompt_end="initial") as bench:
            await bench.run(words(200, 1), session="s")
            await bench.engine.ask(lambda seen: seen.sessions.delete("s"))
            assert await sessions(bench) == {}
            assert await leaves(bench) == 0
            await bench.run(words(200, 2), session="s")
            assert (await sessions(bench))["s"].turns == 1

    run(scenario())


@pytest.mark.parametrize("name", ["reset", "delete"])
def test_what_still_runs_when_its_session_is_forgotten_leaves_no_state_behind(name: str) -> None:
    async def scenario() -> None:
        async with running(prompt_end="initial") as bench:
            bench.steps.allow(2)
            generation = bench.submit(words(200, 1), session="s")
            await bench.steps.standing()
            forgotten = asyncio.create_task(
                bench.engine.ask(lambda seen: getattr(seen.sessions, name)("s"))
            )
            await asyncio.sleep(0)
            bench.steps.free()
            await forgotten
            answer = await collect(generation)
            assert answer.tokens == bench.cold(words(200, 1))
            assert await leaves(bench) == 0
            told = (await sessions(bench)).get("s")
            assert told is None if name == "delete" else told is not None and told.turns == 1

    run(scenario())


@pytest.mark.parametrize("name", ["reset", "delete", "status"])
def test_a_session_that_nobody_opened_is_not_found(name: str) -> None:
    async def scenario() -> None:
        async with running() as bench:
            more = (0.0,) if name == "status" else ()
            with pytest.raises(NotFound, match="`nobody`"):
                await bench.engine.ask(lambda seen: getattr(seen.sessions, name)("nobody", *more))
            assert (await bench.run([1, 2, 3])).usage.prompt == 3

    run(scenario())


def test_sessions_outlive_their_model_and_lose_their_state_with_its_tree() -> None:
    async def scenario() -> None:
        async with running() as bench:
            await bench.run(words(200, 1), session="s")
            bench.script.faults.unexpected_steps = 1
            await bench.run(words(50, 2), session="t")
            await bench.ready()
            assert len(bench.caches) == 2
            told = await sessions(bench)
            assert (told["s"].turns, told["s"].live_tokens) == (1, 0)
            assert (await bench.run(words(200, 1), session="s")).usage.reused == 0
            assert (await sessions(bench))["s"].live_tokens == 241

    run(scenario())


def test_a_question_is_answered_between_two_chunks() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=16) as bench:
            bench.chunks.allow(1)
            generation = bench.submit(words(1000, 1), session="s")
            await bench.chunks.standing()
            question = asyncio.create_task(sessions(bench))
            await asyncio.sleep(0)
            bench.chunks.allow(1)
            assert set(await question) == {"s"}
            assert not generation.has_ended
            bench.chunks.free()
            await collect(generation)

    run(scenario())


def test_what_a_question_raises_comes_back_and_breaks_nothing() -> None:
    async def scenario() -> None:
        async with running() as bench:
            with pytest.raises(ZeroDivisionError):
                await bench.engine.ask(lambda seen: 1 // 0)
            assert await bench.engine.ask(lambda seen: seen.model.name) == "scripted"
            assert len(bench.models) == 1

    run(scenario())


def test_a_question_that_nobody_waits_for_any_more_is_dropped() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=16) as bench:
            bench.chunks.allow(1)
            generation = bench.submit(words(500, 1))
            await bench.chunks.standing()
            question = asyncio.create_task(sessions(bench))
            await asyncio.sleep(0)
            question.cancel()
            bench.chunks.free()
            await collect(generation)
            assert question.cancelled()
            assert len(await sessions(bench)) == 1

    run(scenario())


def test_without_a_model_there_is_nobody_to_ask() -> None:
    async def scenario() -> None:
        bench = Bench(Script(load_seconds=0.1), CacheKind.SLICEABLE)
        with pytest.raises(ModelUnavailable):
            await bench.engine.ask(lambda seen: None)
        bench.engine.start()
        await bench.ready()
        await bench.engine.ask(lambda seen: seen.cache.check())
        await bench.engine.close(grace_seconds=1)
        with pytest.raises(ModelUnavailable):
            await bench.engine.ask(lambda seen: None)

    run(scenario())


def test_what_was_changed_is_in_the_status_once_the_answer_is_there() -> None:
    async def scenario() -> None:
        async with running() as bench:
            await bench.run(words(100, 1), session="s")
            await bench.engine.ask(lambda seen: seen.sessions.delete("s"))
            assert bench.engine.status().sessions == ()

    run(scenario())
