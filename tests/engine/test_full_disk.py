"""A disk cache that is smaller than what memory holds: what was used last is there, once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from mlx_backend.messages import CacheKind
from tests.engine.disks import disk, nudge, written
from tests.engine.harness import Bench, Clock, every_caching_kind, run, running, until, words
from tests.fakes import Script
from tests.state_files import state_files

LIMIT = 200_000
IDLE_SECONDS = 30.0
PROMPTS = [words(2_000, seed) for seed in range(8)]
"""Each takes about a quarter of the disk."""


def files(folder: Path) -> dict[str, int]:
    """By name, with the time at which it was used last."""
    return {file.name: file.stat().st_mtime_ns for file in state_files(folder)}


async def idle(bench: Bench, clock: Clock) -> int:
    """Be idle until all is written that can be; the bytes written so far."""
    clock.now += IDLE_SECONDS + 1
    await nudge(bench)
    await until(lambda: bench.engine.status().model.stages[0].in_seconds is None)
    await written(bench)
    return bench.engine.status().disk.written_bytes


@asynccontextmanager
async def told_all(folder: Path, kind: CacheKind) -> AsyncIterator[tuple[Bench, Clock]]:
    """A daemon that was asked all prompts, more than its disk may hold."""
    clock = Clock()
    options = disk(folder, max_bytes=LIMIT)
    async with running(Script(), kind, clock=clock, disk=options) as bench:
        for prompt in PROMPTS:
            await bench.run(prompt)
        yield bench, clock


async def noted(bench: Bench) -> None:
    """Wait until the writer has done what it was asked so far: the order of use, too."""
    is_done = threading.Event()

    def tell(allowed: int) -> int:
        is_done.set()
        return 0

    bench.engine.write_behind(tell)
    await until(is_done.is_set)


async def reused(folder: Path, kind: CacheKind, prompts: Sequence[list[int]]) -> list[bool]:
    """Which of the prompts another daemon restores."""
    async with running(Script(), kind, disk=disk(folder, max_bytes=LIMIT)) as bench:
        return [(await bench.run(each)).usage.reused > 1_900 for each in prompts]


@every_caching_kind
def test_what_was_used_last_is_on_disk_where_not_all_of_it_fits(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with told_all(tmp_path, kind) as (bench, clock):
            assert await idle(bench, clock) <= LIMIT
        are_there = await reused(tmp_path, kind, PROMPTS)
        assert are_there == sorted(are_there), "the last ones"
        assert sum(are_there) >= 3

    run(scenario())


@every_caching_kind
def test_a_full_disk_is_not_written_anew_each_time_a_model_is_idle(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with told_all(tmp_path, kind) as (bench, clock):
            written = await idle(bench, clock)
            await noted(bench)
            before = files(tmp_path)
            await bench.run(words(200, 99))
            again = await idle(bench, clock)
            assert 0 < again - written < LIMIT / 5, "what is new"
            after = files(tmp_path)
            assert all(after[name] == before[name] for name in after.keys() & before.keys()), (
                "what was not used is left alone"
            )
        assert await reused(tmp_path, kind, PROMPTS[-2:]) == [True, True]

    run(scenario())
