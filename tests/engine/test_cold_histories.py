"""A session that comes from elsewhere: its history is read at once, and then taken back, forked,
edited. What was read within it is not read again from its head on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import pytest

from daemon.prefix_cache.checkpoints import MESSAGE_SPACING
from mlx_backend.messages import CacheKind, Marks, MessageStart, TokenIds
from tests.engine.harness import Answer, Bench, collect, every_caching_kind, run, running, words
from tests.fakes import Script

MESSAGES = 30
MESSAGE = 500
TAIL = [1, 2, 3]
CHECKPOINT_BYTES = 1_000_000


def message(index: int, variant: int = 0) -> list[int]:
    return words(MESSAGE, index + 37 * variant)


HISTORY = [message(index) for index in range(MESSAGES)]


def prompt_of(history: list[list[int]]) -> tuple[list[int], dict[str, Any]]:
    """The ids of a prompt of these messages, the first of which is its head; and where they are."""
    begins = [0, *accumulate(map(len, history))]
    end = begins.pop()
    messages = tuple(
        MessageStart(begin, index, "tool" if index % 3 else "user")
        for index, begin in enumerate(begins)
    )
    marks = Marks(head_end=MESSAGE, last_user_end=end, stable_end=end)
    prompt = [*(token for each in history for token in each), *TAIL]
    return prompt, {"marks": marks, "messages": messages}


async def asked(bench: Bench, history: list[list[int]], session: str | None = None) -> Answer:
    """Checked against a cold run."""
    prompt, joints = prompt_of(history)
    answer = await bench.run(prompt, 4, session=session, **joints)
    assert answer.tokens == bench.cold(prompt, 4)
    return answer


def read_again(kind: CacheKind) -> int:
    """At most so much is read again of a history that was left in its middle."""
    return MESSAGE_SPACING if kind is CacheKind.CHECKPOINTED else 0


@pytest.mark.parametrize("session", ["the same", "another"])
@pytest.mark.parametrize("taken_back", [1, 10, 17, 28])
@every_caching_kind
def test_messages_are_taken_back_from_a_history_that_was_read_at_once(
    kind: CacheKind, taken_back: int, session: str
) -> None:
    async def scenario() -> None:
        async with running(kind=kind) as bench:
            await asked(bench, HISTORY, session="the same")
            rest = [*HISTORY[:-taken_back], message(0, variant=2)]
            answer = await asked(bench, rest, session=session)
            assert answer.usage.read <= read_again(kind) + MESSAGE + len(TAIL)
            once_more = await asked(bench, [*rest[:-1], message(0, variant=3)], session=session)
            assert once_more.usage.read <= MESSAGE + len(TAIL) + 1

    run(scenario())


@every_caching_kind
def test_a_history_whose_reading_is_cut_can_be_taken_back_too(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with running(kind=kind, chunk_tokens=2048) as bench:
            bench.chunks.allow(6)
            prompt, joints = prompt_of(HISTORY)
            generation = bench.submit(prompt, session="s", **joints)
            await bench.chunks.standing()
            generation.cancel()
            bench.chunks.free()
            was_read = (await collect(generation)).usage.read
            assert 8_000 < was_read < len(prompt)
            half = (was_read - MESSAGE_SPACING) // MESSAGE
            answer = await asked(bench, [*HISTORY[:half], message(0, variant=2)], session="s")
            assert answer.usage.read <= read_again(kind) + MESSAGE + len(TAIL)

    run(scenario())


@every_caching_kind
def test_reading_takes_one_chunk_more_at_most_for_each_checkpoint(kind: CacheKind) -> None:
    async def scenario() -> None:
        chunks = []
        for messages in (HISTORY, [[token for each in HISTORY for token in each]]):
            async with running(kind=kind) as bench:
                await asked(bench, messages)
                entries = bench.engine.status().cache.entries
                chunks.append((len(bench.calls("read")), entries))
        (with_stops, kept), (without, fewer) = chunks
        assert with_stops - without <= kept - fewer
        assert (kept > fewer) == (kind is CacheKind.CHECKPOINTED)

    run(scenario())


@pytest.mark.parametrize("checkpoints", [3, 6])
def test_where_three_checkpoints_fit_head_user_and_end_are_what_is_kept(checkpoints: int) -> None:
    async def scenario() -> None:
        script = Script(span_token_bytes=4, checkpoint_bytes=CHECKPOINT_BYTES)
        room = {"max_bytes": int((checkpoints + 0.5) * CHECKPOINT_BYTES)}
        async with running(script, CacheKind.CHECKPOINTED, cache=room) as bench:
            history = HISTORY
            for turn in range(3):
                answer = await asked(bench, history, session="s")
                if turn:
                    assert answer.usage.read <= 2 * MESSAGE + len(TAIL)
                status = bench.engine.status().cache
                assert status.entries <= checkpoints
                assert status.bytes <= room["max_bytes"]
                history = [*history, message(turn, variant=2), message(turn, variant=3)]
            head = await asked(bench, [HISTORY[0], message(9, variant=2)])
            assert head.usage.reused == MESSAGE

    run(scenario())


def nowhere(start: int, prompt: TokenIds, opening: bool, marks: Marks) -> Iterable[int]:
    return [len(prompt) - 1]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"checkpoint_offsets": nowhere}, 1),
        ({"prompt_end": "initial", "checkpoint_interval": 6_000}, 4),
        ({"prompt_end": "initial"}, 6),
    ],
)
def test_who_says_where_to_capture_gets_just_that(options: dict[str, Any], kept: int) -> None:
    """A function, or the interval; the prompt that opens a session is captured within, too."""

    async def scenario() -> None:
        async with running(kind=CacheKind.CHECKPOINTED, **options) as bench:
            await asked(bench, HISTORY, session="s")
            entries = await bench.engine.ask(lambda seen: seen.cache.entries())
            shared = [entry for entry in entries if entry.kind and entry.kind != "turn_end"]
            assert len(shared) == kept

    run(scenario())


@every_caching_kind
def test_sessions_that_come_and_are_taken_back_and_cut_keep_all_limits(kind: CacheKind) -> None:
    async def scenario() -> None:
        chance = random.Random(5)
        script = Script(span_token_bytes=50, checkpoint_bytes=200_000)
        cache = {"max_bytes": 4_000_000, "max_entries": 24}
        async with running(script, kind, cache=cache) as bench:
            reused = read = 0
            for number in range(60):
                length = chance.randint(2, MESSAGES)
                history = [HISTORY[0], *(message(i, 1 + number % 5) for i in range(1, length))]
                prompt, joints = prompt_of(history)
                generation = bench.submit(prompt, 4, session=f"s{number % 5}", **joints)
                if chance.random() < 0.2:
                    await asyncio.sleep(0.002)
                    generation.cancel()
                usage = (await collect(generation)).usage
                reused, read = reused + usage.reused, read + usage.read
                await bench.engine.ask(lambda seen: seen.cache.check())
                status = bench.engine.status().cache
                assert status.bytes <= cache["max_bytes"]
                assert status.entries <= cache["max_entries"]
            assert reused > read / 4

    run(scenario(), hang_seconds=60)
