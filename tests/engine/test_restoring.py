"""What was read in an earlier life comes back from disk: exactly, and once for all who want it."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from daemon.generation import FinishReason
from daemon.status import RequestStatus
from mlx_backend.messages import CacheKind
from tests.engine.disks import disk, told
from tests.engine.harness import (
    HANG_SECONDS,
    Bench,
    Clock,
    collect,
    every_caching_kind,
    run,
    running,
    words,
)
from tests.engine.slow_disk import filled, restarted
from tests.state_files import nbytes


def last(bench: Bench) -> RequestStatus:
    """The request that ended last."""
    return bench.engine.status().recent[-1]


@every_caching_kind
def test_after_a_restart_a_conversation_goes_on_from_the_disk(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            history = await told(bench, words(3_000, 1))
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            prompt = history + words(50, 2)
            await told(bench, prompt)
            request = last(bench)
            assert request.read <= 50 + 16
            assert request.reused + request.read == len(prompt)
            assert request.from_disk == request.reused
            assert request.disk_bytes > 3_000 * 4
            assert ", all of them from disk (" in request.why_read
            assert bench.tokens_read <= 50 + 16
            status = bench.engine.status().disk
            assert (status.hits, status.restored_tokens) == (1, request.from_disk)

    run(scenario())


@every_caching_kind
def test_twenty_forks_of_one_head_read_each_file_once_after_a_restart(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        head = words(2_500, 1)
        forks = [head + words(60 + n, 10 + n) for n in range(20)]
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            for fork in forks:
                await told(bench, fork)
        written = nbytes(tmp_path)
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            answers = await bench.together(forks)
            assert [answer.tokens for answer in answers] == [bench.cold(fork) for fork in forks]
            requests = bench.engine.status().recent[-20:]
            assert bench.tokens_read <= 20 * 16
            assert 0 < sum(request.disk_bytes for request in requests) <= written

    run(scenario())


@every_caching_kind
def test_what_was_evicted_and_comes_back_from_disk_is_not_said_to_be_lost(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        limits = {"max_bytes": 100_000}
        async with running(kind=kind, disk=disk(tmp_path), cache=limits) as bench:
            history = await told(bench, words(3_000, 1))
            await told(bench, words(3_000, 2))
            cache = bench.engine.status().cache
            assert cache.evicted_by_bytes > 0 or cache.tokens < 6_000
            await told(bench, history + words(50, 3))
            request = last(bench)
            assert request.read <= 50 + 16
            assert request.from_disk > 0
            assert request.reason is not None
            assert request.reason.code == "continues"
            assert request.why_read.startswith(f"{request.read:,} tokens read: restored ")

    run(scenario())


@every_caching_kind
def test_the_engine_sleeps_while_all_wait_for_the_disk_and_serves_who_does_not(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        clock, writes = Clock(), threading.Event()
        options = {"disk": disk(tmp_path), "cache": {"max_bytes": 100_000}, "clock": clock}
        async with running(kind=kind, **options) as bench:
            bench.engine.write_behind(lambda nbytes: len([writes.wait(HANG_SECONDS)]))
            history = await told(bench, words(3_000, 1))
            await told(bench, words(3_000, 2))  # evicts the first, which cannot be written yet
            waiting = [bench.submit(history + words(50, 3)) for _ in range(2)]
            await told(bench, words(8, 4))
            looked = clock.asked
            await asyncio.sleep(0.05)
            assert clock.asked <= looked + 50, "it looks again and again"
            assert len(bench.engine.status().waiting) == 2
            waiting[0].cancel()
            assert (await collect(waiting[0])).reason is FinishReason.CANCELLED
            writes.set()
            answer = await collect(waiting[1])
            assert answer.tokens == bench.cold(history + words(50, 3))
            assert answer.usage.read <= 50 + 16

    run(scenario())


@pytest.mark.parametrize("at", [1_023, 1_024, 1_025, 1_500, 2_047, 2_048, 2_049])
@every_caching_kind
def test_a_prompt_that_parts_inside_a_file_is_restored_up_to_there(
    kind: CacheKind, at: int, tmp_path: Path
) -> None:
    prompt = words(2_900, 1)
    filled(tmp_path, kind, prompt[:at], prompt)
    later = restarted(tmp_path, kind)
    assert later.tell(prompt[:at] + words(40, 2)).usage.reused >= at - 16
    assert later.tell(prompt + words(40, 3)).usage.read <= 40 + 16


@every_caching_kind
def test_restart_upon_restart_changes_no_answer(kind: CacheKind, tmp_path: Path) -> None:
    around_blocks = [1024 * blocks + off for blocks in range(1, 6) for off in (-1, 0, 1)]
    text = words(around_blocks[-1], 1)
    for before, length in pairwise([0, *around_blocks]):
        disk = restarted(tmp_path, kind)
        turn = disk.tell(text[:length], max_tokens=1)
        assert turn.usage.reused >= before - 16
        disk.save()
