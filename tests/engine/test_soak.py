"""Long traffic of many sessions under random limits: they hold at each step, and nothing grows."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import Sequence

import pytest

from daemon.generation import Failed, FinishReason
from daemon.turns import Turn
from mlx_backend.messages import CacheKind
from tests.engine.harness import Bench, collect, every_caching_kind, run, running, words
from tests.fakes import TURN_END, FakeRow, FakeSpan, Script
from tests.heap import Newborn

REQUESTS = 2_000
SESSIONS = 60
LOG_CALLS = 1_000
TOKEN_BYTES = 500


def short_reply(state: Sequence[int], index: int) -> int:
    """Up to some forty letters, a function of the state."""
    seed = sum(state[-40:]) + 7 * len(state)
    return TURN_END if index >= 4 + (len(state) - index) % 40 else 97 + seed % 26


class Soak:
    """Sixty conversations that grow, fork, start anew and give up, a dozen at a time."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.head = words(80, 1)
        self.histories = [self.fresh(n) for n in range(SESSIONS)]
        self.busy: set[int] = set()
        self.begun = 0
        self.cancelled = 0
        self.excess: list[str] = []
        bench.backend.watch = self.watch

    def fresh(self, seed: int) -> list[int]:
        return self.head + words(40, 100 + seed)

    def watch(self) -> None:
        """On the engine's thread, before each step and each chunk."""
        bench, cache = self.bench, self.bench.caches[-1].status()
        bench.backend.rows[:] = [row for row in bench.backend.rows if not row.is_released]
        del bench.log[:-LOG_CALLS]
        held = cache.bytes + sum(row.nbytes for row in bench.backend.rows)
        assert cache.max_entries is not None
        assert bench.budget_bytes is not None
        for name, is_held, limit in (
            ("cache", cache.bytes, cache.max_bytes),
            ("entries", cache.entries, cache.max_entries),
            ("arrays", cache.arrays, cache.max_arrays),
            ("budget", held, bench.budget_bytes),
        ):
            if is_held > limit:
                self.excess.append(f"{name}: {is_held} > {limit}")

    async def play(self, until: int) -> None:
        await asyncio.gather(*(self.agent(until) for _ in range(12)))
        await self.bench.idle()
        await self.bench.engine.ask(lambda inside: inside.cache.check())

    async def agent(self, until: int) -> None:
        while self.begun < until:
            self.begun += 1
            session = self.random.choice([n for n in range(SESSIONS) if n not in self.busy])
            self.busy.add(session)
            await self.turn(session)
            self.busy.remove(session)
            if self.begun % 50 == 0:
                await self.bench.engine.ask(lambda inside: inside.cache.check())

    async def turn(self, session: int) -> None:
        prompt = self.next_prompt(session)
        limit = self.random.choice([2, 50, 30_000])
        generation = self.bench.submit(prompt, limit, session=f"s{session}")
        patience = self.random.choice([0.001, 0.01, 5.0, 5.0, 5.0, 5.0])
        timer = asyncio.get_running_loop().call_later(patience, generation.cancel)
        answer = await collect(generation)
        timer.cancel()
        assert not isinstance(answer.end, Failed), answer.end
        expected = self.bench.cold(prompt, limit)
        if answer.reason is FinishReason.CANCELLED:
            self.cancelled += 1
            assert answer.tokens == expected[: len(answer.tokens)]
        else:
            assert answer.tokens == expected
        self.histories[session] = prompt + answer.tokens

    async def fill(self) -> None:
        """Prompts that nobody shares, in such pieces that the tree is full to a few per cent."""
        for seed in range(60):
            await self.bench.run(words(60, 20_000 + seed), 2)

    def next_prompt(self, session: int) -> list[int]:
        history = self.histories[session]
        choice = self.random.random()
        if choice < 0.1 or len(history) > 900:
            history = self.fresh(self.random.randrange(10_000))
        elif choice < 0.2:
            other = self.histories[self.random.randrange(SESSIONS)]
            history = other[: self.random.randint(80, len(other))]
        return history + words(self.random.randint(1, 60), self.random.randrange(10_000))


def allocated_blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@every_caching_kind
def test_two_thousand_requests_keep_every_limit_and_leave_nothing_behind(kind: CacheKind) -> None:
    newborn = Newborn(Turn, FakeRow, FakeSpan)

    async def scenario() -> None:
        limits = random.Random(str(kind))
        cache_bytes = limits.randint(700_000, 1_500_000)
        cache = {"max_bytes": cache_bytes, "max_entries": limits.randint(30, 90), "max_arrays": 900}
        script = Script(
            reply=short_reply,
            block_tokens=16,
            span_token_bytes=TOKEN_BYTES,
            checkpoint_bytes=20_000,
        )
        options = {
            "cache": cache,
            "budget_bytes": cache_bytes + limits.randint(250_000, 500_000),
            "growth_tokens": 8,
            "max_concurrent": 8,
            "chunk_tokens": limits.choice([64, 256]),
            "max_sessions": 40,
        }
        async with running(script, kind, **options) as bench:
            soak = Soak(bench, seed=3)
            await soak.play(until=100)
            await soak.fill()
            bytes_before, blocks_before = held(bench), allocated_blocks()
            await soak.play(until=REQUESTS)
            await soak.fill()
            assert not soak.excess, soak.excess[:5]
            assert held(bench) == pytest.approx(bytes_before, rel=0.05)
            assert allocated_blocks() == pytest.approx(blocks_before, rel=0.05)
            status = bench.engine.status()
            assert status.totals.requests >= REQUESTS
            assert status.totals.failed == 0
            assert soak.cancelled > REQUESTS / 50
            assert status.totals.parked > 0
            assert status.totals.reused > status.totals.read / 4
            assert status.cache.bytes > cache_bytes / 2
            assert not newborn.of(Turn)
            assert all(row.is_released for row in newborn.of(FakeRow))
            spans = sum(span.nbytes for span in newborn.of(FakeSpan))
            assert spans == status.cache.span_bytes, "a span is kept outside the tree"

    run(scenario(), hang_seconds=100)


def held(bench: Bench) -> int:
    """What the tree keeps; nothing runs."""
    return bench.engine.status().cache.bytes
