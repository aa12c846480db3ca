"""Random traffic of many agents: whatever happens, every answer is right and nothing is left."""

from __future__ import annotations

import asyncio
import random

import pytest

from daemon.generation import Failed, FinishReason
from mlx_backend.messages import CacheKind
from tests.engine.harness import Answer, Bench, collect, every_kind, run, running, words
from tests.fakes import Script


class Traffic:
    """Agents that fork, go on, repeat, hurry and give up."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.histories = [words(300, 1), words(40, 2), words(700, 3)]
        self.cancelled = 0
        self.answered = 0

    def prompt(self) -> list[int]:
        history = self.random.choice(self.histories)
        cut = self.random.choice([len(history), len(history) // 2 + 1])
        return history[:cut] + words(self.random.randint(1, 150), self.random.randint(4, 9))

    async def agent(self) -> None:
        for _ in range(6):
            prompt = self.prompt()
            generation = self.bench.submit(prompt, self.random.choice([1, 3, 100]))
            patience = self.random.choice([0.0, 0.002, 10.0, 10.0])
            timer = asyncio.get_running_loop().call_later(patience, generation.cancel)
            self.judge(prompt, generation.request.max_tokens, await collect(generation))
            timer.cancel()

    def judge(self, prompt: list[int], max_tokens: int, answer: Answer) -> None:
        if isinstance(answer.end, Failed):
            return
        expected = self.bench.cold(prompt, max_tokens)
        if answer.reason is FinishReason.CANCELLED:
            self.cancelled += 1
            assert answer.tokens == expected[: len(answer.tokens)]
            return
        self.answered += 1
        assert answer.tokens == expected
        assert answer.usage.reused + answer.usage.read == len(prompt)
        self.histories.append(prompt + answer.tokens)


@pytest.mark.parametrize("seed", range(3))
@every_kind
def test_random_traffic_is_answered_as_if_each_prompt_were_alone(
    kind: CacheKind, seed: int
) -> None:
    async def scenario() -> None:
        limits = {"max_bytes": [1 << 30, 60_000, 15_000][seed]}
        script = Script(chunk_seconds=0.0002, step_seconds=0.0001)
        options = {"chunk_tokens": 64, "max_concurrent": 4, "cache": limits}
        async with running(script, kind, **options) as bench:
            traffic = Traffic(bench, seed)
            await asyncio.gather(*(traffic.agent() for _ in range(10)))
            assert traffic.answered > 10
            assert traffic.cancelled > 3
            status = bench.engine.status()
            assert not status.running
            assert not status.waiting
            assert status.totals.requests == 60
            assert status.cache.bytes <= limits["max_bytes"], "something is pinned for ever"

    run(scenario())


@every_kind
def test_random_traffic_survives_faults_of_every_sort(kind: CacheKind) -> None:
    async def scenario() -> None:
        script = Script(chunk_seconds=0.0002, step_seconds=0.0001)
        async with running(script, kind, chunk_tokens=64, max_concurrent=4) as bench:
            traffic = Traffic(bench, 7)

            async def trouble() -> None:
                for fault in ("captures", "restores", "reads", "rows") * 3:
                    await asyncio.sleep(0.003)
                    setattr(bench.script.faults, fault, 1)

            await asyncio.gather(trouble(), *(traffic.agent() for _ in range(10)))
            assert traffic.answered > 5
            assert bench.engine.status().totals.requests == 60
            assert len(bench.models) == 1

    run(scenario())
