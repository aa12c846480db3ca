"""What each policy keeps of a conversation, on every kind of model, for as long as it promises.

The table: turn 1 is `A B C`, the reply `r`; turn 2 is `A B C r D E`, cancelled and sent again by
a new session, before and after the first session was forgotten. `E` is the last token, which is
left to run in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from daemon.engine import Inspection
from mlx_backend.messages import CacheKind, Marks, TokenIds
from tests.engine.harness import Bench, Clock, collect, run, running, words
from tests.fakes import TURN_END, Script

CHUNK = 64
INTERVAL = 150
HOUR = 3600.0

A, B, C = words(150, 1), words(100, 2), words(70, 3)
D, E = words(180, 4), [7]
TURN_1 = A + B + C


def before_the_end(start: int, prompt: TokenIds, opening: bool, marks: Marks) -> Iterable[int]:
    return [len(prompt) - 100]


POLICIES: dict[str, dict[str, Any]] = {
    "every": {},
    "initial": {"prompt_end": "initial"},
    "interval": {"prompt_end": "initial", "checkpoint_interval": INTERVAL},
    "custom": {"checkpoint_offsets": before_the_end},
}
KINDS = {
    "full": (CacheKind.SLICEABLE, Script()),
    "sliding": (CacheKind.CHECKPOINTED, Script(span_token_bytes=64, checkpoint_bytes=20_000)),
    "hybrid": (CacheKind.CHECKPOINTED, Script(span_token_bytes=4, checkpoint_bytes=100_000)),
}
every_policy = pytest.mark.parametrize("policy", POLICIES)
every_kind = pytest.mark.parametrize("kind", KINDS)


def bench_of(kind: str, policy: str = "every", **options: Any) -> Any:
    cache_kind, script = KINDS[kind]
    fresh = Script(
        span_token_bytes=script.span_token_bytes, checkpoint_bytes=script.checkpoint_bytes
    )
    return running(fresh, cache_kind, chunk_tokens=CHUNK, **(POLICIES[policy] | options))


async def cancelled(bench: Bench, prompt: list[int], phase: str, session: str | None) -> int:
    """Run a request and cancel it in that phase; how many tokens of its prompt were read then."""
    (bench.chunks if phase == "reading" else bench.steps).allow(1)
    generation = bench.submit(prompt, session=session)
    await (bench.chunks if phase == "reading" else bench.steps).standing()
    generation.cancel()
    bench.chunks.free()
    bench.steps.free()
    usage = (await collect(generation)).usage
    return usage.reused + usage.read


async def forget(bench: Bench, clock: Clock, how: str) -> None:
    """Let go of the first session in that way, if at all."""

    def act(seen: Inspection) -> None:
        if how in ("reset", "deleted"):
            (seen.sessions.reset if how == "reset" else seen.sessions.delete)("first")

    await bench.idle()
    if how == "idle":
        clock.now += HOUR
    await bench.engine.ask(act)


def kept(policy: str, can_cut: bool, was_read: int, is_forgotten: bool) -> int:
    """How much of turn 2 is to be reused when `was_read` tokens of it were read and then cut."""
    turn_2 = len(TURN_1) + 41 + len(D) + len(E)
    turn_1_end, live = len(TURN_1) - 1, len(TURN_1) + 41
    was_answered = was_read == turn_2
    entries = {
        "every": turn_2 - 1 if was_answered else was_read,
        "initial": turn_1_end,
        "interval": max(turn_1_end, min(was_read, turn_2 - 1) // INTERVAL * INTERVAL),
        "custom": turn_2 - 100 if was_read >= turn_2 - 100 else len(TURN_1) - 100,
    }[policy]
    if is_forgotten:
        return entries
    if not was_answered:
        return was_read
    return turn_2 - 1 if can_cut else max(live, entries)


@pytest.mark.parametrize("first_session", ["alive", "idle", "reset", "deleted"])
@pytest.mark.parametrize("phase", ["reading", "answer"])
@every_policy
@every_kind
def test_turn_2_is_cancelled_and_sent_again_by_a_new_session(
    kind: str, policy: str, phase: str, first_session: str
) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, policy, clock=clock) as bench:
            r = [*(await bench.run(TURN_1, session="first")).tokens, TURN_END]
            turn_2 = TURN_1 + r + D + E
            was_read = await cancelled(bench, turn_2, phase, "first")
            assert (was_read == len(turn_2)) == (phase == "answer")
            await forget(bench, clock, first_session)
            again = await bench.run(turn_2, session="second")
            assert again.tokens == bench.cold(turn_2)
            is_forgotten = first_session != "alive"
            assert again.usage.reused == kept(policy, kind == "full", was_read, is_forgotten)
            once_more = await bench.run(turn_2, session="third")
            assert once_more.usage.reused >= again.usage.reused
            assert once_more.tokens == again.tokens

    run(scenario())


@every_policy
@every_kind
def test_while_a_session_lives_any_session_goes_on_from_its_last_turn(
    kind: str, policy: str
) -> None:
    async def scenario() -> None:
        async with bench_of(kind, policy) as bench:
            r = [*(await bench.run(TURN_1, session="first")).tokens, TURN_END]
            turn_2 = TURN_1 + r + D + E
            r_2 = [*(await bench.run(turn_2, session="first")).tokens, TURN_END]
            for seed, session in enumerate(("second", None, "first")):
                turn_3 = turn_2 + r_2 + words(50, seed)
                answer = await bench.run(turn_3, session=session)
                assert answer.usage.reused == len(turn_2 + r_2)
                assert answer.tokens == bench.cold(turn_3)

    run(scenario())


@every_policy
@every_kind
def test_later_turns_go_with_their_session_unless_every_prompts_end_is_kept(
    kind: str, policy: str
) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, policy, clock=clock) as bench:
            r = [*(await bench.run(TURN_1, session="first")).tokens, TURN_END]
            turn_2 = TURN_1 + r + D + E
            r_2 = [*(await bench.run(turn_2, session="first")).tokens, TURN_END]
            await forget(bench, clock, "idle")
            turn_3 = turn_2 + r_2 + words(50, 5)
            again = await bench.run(turn_3, session="second")
            assert again.tokens == bench.cold(turn_3)
            assert (
                again.usage.reused
                == {
                    "every": len(turn_2 + r_2),
                    "initial": len(TURN_1) - 1,
                    "interval": (len(turn_2) - 1) // INTERVAL * INTERVAL,
                    "custom": len(turn_2) - 100,
                }[policy]
            )

    run(scenario())


@every_policy
@every_kind
def test_a_prompt_that_leaves_its_sessions_history_is_kept_as_the_policy_says(
    kind: str, policy: str
) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, policy, clock=clock) as bench:
            await bench.run(TURN_1, session="first")
            other = words(290, 9)
            await bench.run(other, session="first")
            await forget(bench, clock, "idle")
            again = await bench.run(other, session="second")
            assert again.tokens == bench.cold(other)
            kept = {"every": 289, "initial": 0, "interval": INTERVAL, "custom": 190}
            assert again.usage.reused == kept[policy]
            opening = len(TURN_1) - (100 if policy == "custom" else 1)
            assert (await bench.run(TURN_1, session="third")).usage.reused == opening

    run(scenario())


@every_policy
@every_kind
def test_an_anonymous_request_opens_a_session_so_its_prompt_is_kept(kind: str, policy: str) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, policy, clock=clock) as bench:
            r = [*(await bench.run(TURN_1)).tokens, TURN_END]
            turn_2 = TURN_1 + r + D + E
            await bench.run(turn_2)
            await forget(bench, clock, "idle")
            again = await bench.run(turn_2)
            expected = len(turn_2) - (100 if policy == "custom" else 1)
            assert again.usage.reused == expected
            assert again.tokens == bench.cold(turn_2)

    run(scenario())


@every_policy
@every_kind
def test_a_prompt_that_is_stored_is_not_captured_again(kind: str, policy: str) -> None:
    async def scenario() -> None:
        async with bench_of(kind, policy) as bench:
            await bench.run(TURN_1, session="first")
            captures = len(bench.calls("capture_span")), len(bench.calls("capture_checkpoint"))
            entries = bench.engine.status().cache.entries
            for session in ("first", "second", None):
                again = await bench.run(TURN_1, session=session)
                assert again.usage.reused >= len(TURN_1) - 100
            found = len(bench.calls("capture_span")), len(bench.calls("capture_checkpoint"))
            assert found == captures
            assert bench.engine.status().cache.entries == entries

    run(scenario())


@every_kind
def test_what_a_session_held_alone_becomes_an_entry_when_it_opens_another(kind: str) -> None:
    """Nothing is captured: the state is there. But it has to outlive the first session."""

    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, "initial", clock=clock) as bench:
            r = [*(await bench.run(TURN_1, session="first")).tokens, TURN_END]
            turn_2 = TURN_1 + r + D + E
            await bench.run(turn_2, session="first")
            opening = turn_2 if kind == "full" else [*turn_2, *bench.cold(turn_2), TURN_END, 7]
            opened = await bench.run(opening, session="second", max_tokens=1)
            assert opened.usage.reused == len(opening) - 1
            await forget(bench, clock, "idle")
            assert bench.engine.status().cache.live_leaves == 0
            again = await bench.run(opening, session="third", max_tokens=1)
            assert again.usage.reused == len(opening) - 1

    run(scenario())


@every_policy
@every_kind
def test_a_capture_is_of_use_while_its_source_still_decodes(kind: str, policy: str) -> None:
    async def scenario() -> None:
        async with bench_of(kind, policy) as bench:
            bench.steps.allow(2)
            source = bench.submit(TURN_1, session="first")
            await bench.steps.standing()
            other = bench.submit(TURN_1, session="second")
            bench.steps.allow(5)
            await bench.steps.standing()
            assert not source.has_ended
            bench.steps.free()
            answer = await collect(other)
            assert answer.usage.reused == len(TURN_1) - (100 if policy == "custom" else 1)
            assert answer.tokens == (await collect(source)).tokens == bench.cold(TURN_1)

    run(scenario())


@every_policy
@every_kind
def test_an_opening_that_was_cut_leaves_the_next_prompt_to_open_the_session(
    kind: str, policy: str
) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, policy, clock=clock) as bench:
            assert await cancelled(bench, TURN_1, "reading", "first") == 2 * CHUNK
            await bench.run(TURN_1, session="first")
            await forget(bench, clock, "idle")
            expected = len(TURN_1) - (100 if policy == "custom" else 1)
            assert (await bench.run(TURN_1)).usage.reused == expected

    run(scenario())


@every_policy
@every_kind
def test_without_entries_sessions_go_on_and_nothing_fails(kind: str, policy: str) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, policy, clock=clock, cache={"max_entries": 0}) as bench:
            r = [*(await bench.run(TURN_1, session="first")).tokens, TURN_END]
            turn_2 = TURN_1 + r + D + E
            for session in ("first", "second"):
                following = await bench.run(turn_2, session=session)
                assert following.tokens == bench.cold(turn_2)
                assert following.usage.reused >= (len(TURN_1 + r) if session == "first" else 0)
            status = bench.engine.status().cache
            assert (status.entries, status.live_leaves) == (0, 1)
            assert len(bench.calls("capture_span")) == 2  # the ends of both turns
            await forget(bench, clock, "idle")
            assert (await bench.run(turn_2, session="third")).usage.reused == 0

    run(scenario())


@every_policy
@every_kind
def test_a_capture_that_finds_no_room_is_skipped_and_counted(kind: str, policy: str) -> None:
    async def scenario() -> None:
        async with bench_of(kind, policy, cache={"max_bytes": 500}) as bench:
            for _ in range(2):
                answer = await bench.run(TURN_1, session="first")
                assert answer.tokens == bench.cold(TURN_1)
                assert answer.usage.reused == 0
            status = bench.engine.status().cache
            assert status.skipped_captures >= 2
            assert status.bytes <= 500

    run(scenario())


@every_kind
def test_a_cut_turn_does_not_cost_the_session_the_turn_before(kind: str) -> None:
    async def scenario() -> None:
        async with bench_of(kind, "initial") as bench:
            history = [*TURN_1, *(await bench.run(TURN_1, session="s")).tokens, TURN_END]
            for seed in range(3):
                await cancelled(bench, history + words(90, seed), "answer", "s")
                await cancelled(bench, history + words(90, 20 + seed), "reading", "s")
            steered = history + words(90, 50)
            answer = await bench.run(steered, session="s")
            assert answer.usage.reused == len(history)
            assert answer.tokens == bench.cold(steered)

    run(scenario())


@pytest.mark.parametrize("comes", ["before it is read", "while it is read"])
@every_policy
@every_kind
def test_a_prompt_that_others_wait_for_is_kept_for_them_by_every_policy(
    kind: str, policy: str, comes: str
) -> None:
    async def scenario() -> None:
        async with bench_of(kind, policy) as bench:
            await bench.run(words(50, 9), session="s")
            head = words(600, 1)
            prompts = [head + words(200, 2), head + words(260, 3)]
            if comes == "before it is read":
                async with bench.held():
                    both = [bench.submit(prompt, session="s") for prompt in prompts]
            else:
                bench.chunks.allow(1)
                both = [bench.submit(prompts[0], session="s")]
                await bench.chunks.standing()
                both.append(bench.submit(prompts[1]))
                bench.chunks.free()
            answers = [await collect(generation) for generation in both]
            assert answers[1].usage.reused == 600
            assert [a.tokens for a in answers] == [bench.cold(prompt) for prompt in prompts]

    run(scenario())


@every_kind
def test_a_policy_of_ones_own_is_shown_what_it_may_decide_by(kind: str) -> None:
    shown: list[tuple[int, int, bool, Marks]] = []

    def policy(start: int, prompt: TokenIds, opening: bool, marks: Marks) -> list[int]:
        shown.append((start, len(prompt), opening, marks))
        assert not prompt.flags.writeable
        return [marks.head_end, -5, 0, len(prompt) - 1, len(prompt), 10**9]

    async def scenario() -> None:
        async with bench_of(kind, checkpoint_offsets=policy) as bench:
            marks = Marks(head_end=150, last_user_end=300, stable_end=300)
            await bench.run(TURN_1, session="s", marks=marks)
            await bench.run(TURN_1 + D, session="s", marks=marks)
            assert shown == [(0, 320, True, marks), (shown[1][0], 500, False, marks)]
            assert shown[1][0] >= 319
            spans = bench.calls("capture_span")
            assert [call[2] for call in spans] == [150, 319, 361, 499, 541]

    run(scenario())


def never_ending(start: int, prompt: TokenIds, opening: bool, marks: Marks) -> Iterable[int]:
    while True:
        yield 1


def breaking(start: int, prompt: TokenIds, opening: bool, marks: Marks) -> Iterable[int]:
    raise RuntimeError("out of ideas")


def writing(start: int, prompt: TokenIds, opening: bool, marks: Marks) -> Iterable[int]:
    prompt[0] = 0
    return []


def nonsense(value: Any) -> Callable[..., Any]:
    return lambda start, prompt, opening, marks: value


@pytest.mark.parametrize(
    "policy",
    [breaking, never_ending, writing, nonsense(None), nonsense(["ten"]), nonsense([1.5])],
)
@every_kind
def test_a_policy_that_fails_is_told_of_once_and_the_default_stands_in(
    kind: str, policy: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with bench_of(kind, checkpoint_offsets=policy, clock=clock) as bench:
            with caplog.at_level(logging.ERROR):
                r = [*(await bench.run(TURN_1, session="first")).tokens, TURN_END]
                turn_2 = TURN_1 + r + D + E
                answer = await bench.run(turn_2, session="first")
            assert answer.tokens == bench.cold(turn_2)
            assert len([rec for rec in caplog.records if "checkpoint policy" in rec.message]) == 1
            await forget(bench, clock, "idle")
            assert (await bench.run(turn_2)).usage.reused == len(turn_2) - 1

    run(scenario())


def test_a_model_without_reuse_is_captured_by_no_policy() -> None:
    async def scenario() -> None:
        for options in POLICIES.values():
            async with running(kind=CacheKind.UNCACHEABLE, **options) as bench:
                for _ in range(2):
                    assert (await bench.run(TURN_1, session="s")).usage.reused == 0
                assert not bench.calls("capture_span")

    run(scenario())
