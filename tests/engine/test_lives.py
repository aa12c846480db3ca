"""Lives of a daemon with a disk, whatever happens in whichever order: no answer is ever wrong."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.disk_cache.limits import DiskLimits
from daemon.disk_tier import DiskOptions
from daemon.generation import Failed
from daemon.residents import ResidencyLimits
from mlx_backend.messages import CacheKind
from tests.engine.harness import Bench, Clock, collect, every_caching_kind, run, running, words
from tests.state_files import nbytes

LIVES, STEPS = 3, 18
MOST_TOKENS = 4_000


@dataclass
class Life:
    """Agents that go on with their conversations, in one run of the daemon."""

    bench: Bench
    clock: Clock
    dice: random.Random
    histories: dict[str, list[int]]
    reused: int = 0

    async def step(self) -> None:
        things: dict[str, tuple[float, Callable[[], Awaitable[Any]]]] = {
            "turns": (12, self.turns),
            "time": (4, self.time_passes),
            "unload": (1, self.bench.engine.unload),
            "clear": (0.5, lambda: self.bench.engine.ask(lambda seen: seen.cache.clear())),
            "clear disk": (0.3, self.bench.engine.clear_disk),
            "check": (1, self.check),
            "restore fails": (0.5, self.break_a_restore),
        }
        (name,) = self.dice.choices(list(things), [weight for weight, _ in things.values()])
        await things[name][1]()

    async def turns(self) -> None:
        """A few agents at once; one of them may give up."""
        async with self.bench.engine.lease():
            names = self.dice.sample(list(self.histories), self.dice.randrange(1, 4))
            prompts = {name: self.histories[name] + self.new_text() for name in names}
            answers = [
                self.bench.submit(prompt, self.dice.randrange(1, 60), session=name)
                for name, prompt in prompts.items()
            ]
            if self.dice.random() < 0.2:
                answers[0].cancel()
            for name, generation in zip(names, answers, strict=True):
                answer = await collect(generation)
                assert not isinstance(answer.end, Failed), answer.end.error
                right = self.bench.cold(prompts[name], 60)
                assert answer.tokens == right[: len(answer.tokens)]
                self.reused += answer.usage.reused
                history = prompts[name] + answer.tokens
                if len(history) > MOST_TOKENS:
                    history = history[: self.dice.randrange(100, 2_000)]
                self.histories[name] = history

    def new_text(self) -> list[int]:
        return words(self.dice.randrange(1, 200), self.dice.randrange(90))

    async def time_passes(self) -> None:
        self.clock.now += self.dice.choice([10, 31, 201, 601])
        await self.bench.engine.ask(lambda seen: None)

    async def check(self) -> None:
        found = await self.bench.engine.check_disk()
        assert found.is_sound, found.bad

    async def break_a_restore(self) -> None:
        self.bench.script.faults.restores = 1


@every_caching_kind
def test_no_answer_is_wrong_and_no_limit_is_crossed(kind: CacheKind, tmp_path: Path) -> None:
    async def scenario() -> None:
        dice = random.Random(12)
        histories = {f"agent {i}": words(dice.randrange(50, 2_000), i % 3) for i in range(6)}
        reused = 0
        for _ in range(LIVES):
            clock = Clock()
            limits = DiskLimits(
                floor_bytes=0,
                max_bytes=dice.choice([1 << 30, 150_000]),
                pending_bytes=dice.choice([1 << 30, 20_000, 2]),
                write_bytes_per_day=dice.choice([None, None, 300_000]),
            )
            save_seconds = dice.choice([10.0, 10.0, 0.0])
            async with running(
                kind=kind,
                clock=clock,
                disk=DiskOptions(tmp_path, limits, save_seconds=save_seconds),
                cache={"max_bytes": dice.choice([1 << 30, 200_000, 80_000])},
                budget_bytes=dice.choice([None, 400_000]),
                chunk_tokens=256,
                session_idle_seconds=200.0,
                residency=ResidencyLimits(keep_alive_seconds=600.0),
            ) as bench:
                life = Life(bench, clock, dice, histories)
                for _ in range(STEPS):
                    await life.step()
                reused += life.reused
            assert nbytes(tmp_path) <= limits.max_bytes
        assert reused > 0

    run(scenario())
