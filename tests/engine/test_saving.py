"""What was read is on disk in time: once a model is idle, before its state is lost, at the end."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.disk_status import StageStatus
from daemon.prefix_cache.cache import PrefixCache
from daemon.residents import ResidencyLimits
from mlx_backend.host_arrays import HostArray
from mlx_backend.messages import CacheKind
from tests.engine.disks import disk, nudge, written
from tests.engine.harness import (
    Bench,
    Clock,
    collect,
    every_caching_kind,
    run,
    running,
    until,
    words,
)
from tests.engine.library import WEIGHTS, library
from tests.fakes import Script
from tests.state_files import state_files

FIRST = "first"


def files(folder: Path) -> dict[str, int]:
    """What is in the folder, by name, each with what tells a file from one written anew."""
    return {file.name: file.stat().st_ino for file in state_files(folder)}


def exported() -> list[HostArray]:
    """Every array that left the device for a file and was not let go of."""
    gc.collect()
    return [found for found in gc.get_objects() if isinstance(found, HostArray)]


async def reused_later(folder: Path, kind: CacheKind, prompt: list[int]) -> int:
    """What another daemon would restore of a prompt."""
    async with running(kind=kind, disk=disk(folder)) as bench:
        return (await bench.run(prompt)).usage.reused


@every_caching_kind
def test_a_models_states_are_written_once_it_was_idle_for_long_enough(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(kind=kind, clock=clock, disk=disk(tmp_path)) as bench:
            prompt = words(3_000, 1)
            answer = await bench.run(prompt)
            clock.now += 29
            await nudge(bench)
            await bench.engine.disk_contents()
            assert not files(tmp_path)
            clock.now += 2
            await nudge(bench)
            await written(bench)
            before = files(tmp_path)
            assert before
            (model,) = (await bench.engine.disk_contents()).models
            assert model.tokens == bench.engine.status().cache.tokens
            assert (await bench.engine.check_disk()).is_sound
            clock.now += 1_000
            await nudge(bench)
            longer = [*prompt, *answer.tokens, *words(50, 2)]
            await bench.run(longer)
            clock.now += 31
            await nudge(bench)
            await written(bench)
            after = files(tmp_path)
            assert before.items() < after.items(), "what is there is never written again"
            (model,) = (await bench.engine.disk_contents()).models
            assert model.tokens == bench.engine.status().cache.tokens

    run(scenario())


@every_caching_kind
def test_what_nobody_used_for_long_is_written_while_the_model_works_for_others(
    kind: CacheKind, tmp_path: Path
) -> None:
    async def scenario() -> None:
        clock = Clock()
        cache = {"clock": clock}
        async with running(kind=kind, clock=clock, cache=cache, disk=disk(tmp_path)) as bench:
            await bench.run(words(3_000, 1), max_tokens=1)
            clock.now += 20
            bench.steps.allow(5)
            talking = bench.submit(words(900, 2))
            await bench.steps.standing()
            assert not files(tmp_path)
            clock.now += 15
            bench.steps.allow(5)
            await bench.steps.standing()
            await until(lambda: len(files(tmp_path)) >= 3)
            bench.steps.free()
            assert (await collect(talking)).tokens == bench.cold(words(900, 2))
            await written(bench)
            (model,) = (await bench.engine.disk_contents()).models
            assert 2_990 <= model.tokens <= 3_001

    run(scenario())


@every_caching_kind
def test_what_memory_has_no_room_for_is_on_disk(kind: CacheKind, tmp_path: Path) -> None:
    async def scenario() -> None:
        prompts = [words(1_500, seed) for seed in range(6)]
        cache = {"max_bytes": 60_000}
        async with running(kind=kind, cache=cache, disk=disk(tmp_path)) as bench:
            for prompt in prompts:
                await bench.run(prompt, max_tokens=1)
            status = bench.engine.status()
            assert status.cache.evicted_by_bytes
            assert status.cache.tokens < 3_500
            await written(bench)
            (model,) = (await bench.engine.disk_contents()).models
            assert model.tokens >= 6 * 1_400 - status.cache.tokens

    run(scenario())


def test_what_a_session_held_is_written_when_it_is_idle_and_not_when_it_is_reset(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock = Clock()
        options: dict[str, Any] = {"cache": {"max_entries": 0}, "session_idle_seconds": 100.0}
        async with running(clock=clock, disk=disk(tmp_path, idle_seconds=1e6), **options) as bench:
            await bench.run(words(700, 1), session="idle")
            await bench.run(words(800, 2), session="reset")
            await bench.engine.ask(lambda seen: seen.sessions.reset("reset"), session="reset")
            await bench.run(words(900, 3), session="deleted")
            await bench.engine.ask(lambda seen: seen.sessions.delete("deleted"), session="deleted")
            clock.now += 101
            await nudge(bench)
            await written(bench)
            (model,) = (await bench.engine.disk_contents()).models
            assert model.tokens == 741

    run(scenario())


@every_caching_kind
def test_what_was_read_is_written_as_the_daemon_ends(kind: CacheKind, tmp_path: Path) -> None:
    async def scenario() -> None:
        first, second = words(2_000, 1), words(2_500, 2)
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            await bench.run(first)
            await bench.run(second)
        assert not [path for path in tmp_path.rglob("*") if "tmp" in path.name]
        assert not [each for each in threading.enumerate() if each.name.startswith("mlxd-")]
        for prompt in (first, second):
            assert await reused_later(tmp_path, kind, [*prompt, 7]) >= len(prompt) - 1

    run(scenario())


def test_what_runs_at_the_end_is_written_as_far_as_it_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        prompt = words(5_001, 2)
        async with running(chunk_tokens=500, disk=disk(tmp_path)) as bench:
            bench.chunks.allow(3)
            reading = bench.submit(prompt)
            await bench.chunks.standing()
            closing = asyncio.ensure_future(bench.engine.close(grace_seconds=0))
            await until(lambda: "cut short by the shutdown" in caplog.text)
            bench.chunks.free()
            assert await closing
            await collect(reading)
        assert await reused_later(tmp_path, CacheKind.SLICEABLE, prompt) == 2_000

    run(scenario())


def test_at_the_end_the_last_used_comes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        prompts = [words(2_000, seed) for seed in range(4)]
        async with running(disk=disk(tmp_path, write_bytes_per_day=80_000)) as bench:
            for prompt in prompts:
                await bench.run(prompt)
            await bench.run([*prompts[1], 9])
        reused = [
            await reused_later(tmp_path, CacheKind.SLICEABLE, [*prompt, 7]) for prompt in prompts
        ]
        assert reused[1] == 2_000
        assert reused[3] >= 1_024
        assert reused[0] == reused[2] == 0

    run(scenario())


def test_what_was_used_last_is_known_after_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        older, newer = words(2_000, 1), words(2_000, 2)
        async with running(disk=disk(tmp_path)) as bench:
            await bench.run(older)
        first = files(tmp_path).keys()
        async with running(disk=disk(tmp_path)) as bench:
            await bench.run(newer)
        async with running(disk=disk(tmp_path)) as bench:
            assert (await bench.run(older)).usage.reused > 1_900
        used = {file.name: file.stat().st_mtime_ns for file in state_files(tmp_path)}
        others = used.keys() - first
        assert others
        assert min(used[name] for name in first) > max(used[name] for name in others)

    run(scenario())


def test_at_the_end_the_model_that_was_used_last_comes_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, prompt = Clock(), words(2_000, 1)
        small = disk(tmp_path, write_bytes_per_day=50_000)
        async with library(clock, small, max_loaded=2) as shelf:
            for name in (FIRST, "second"):
                clock.now += 1
                await shelf.answer(name, prompt)
        async with library(clock, disk(tmp_path), max_loaded=2) as shelf:
            assert (await shelf.answer("second", prompt)).usage.reused == 1_999
            assert (await shelf.answer(FIRST, prompt)).usage.reused < 1_999

    run(scenario())


def test_no_time_to_write_is_no_reason_not_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(disk=disk(tmp_path, save_seconds=0.0, pending_bytes=2)) as bench:
            await bench.run(words(9_000, 1))
            assert await bench.engine.close(grace_seconds=0)
            assert "no time to write" in caplog.text
            assert not exported(), "arrays outlive the thread that they belong to"
        assert len(files(tmp_path)) < 9
        assert not [path for path in tmp_path.rglob("*") if "tmp" in path.name]

    run(scenario())


def test_weights_that_were_idle_for_long_go_and_what_is_on_disk_with_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with library(clock, disk(tmp_path), keep_alive_seconds=600.0) as shelf:
            prompt = words(3_000, 1)
            before = await shelf.answer(FIRST, prompt)
            assert shelf.engine.status().cache.tokens >= 3_000
            clock.now += 601
            await nudge(shelf)
            await until(lambda: shelf.engine.status().cache.tokens == 0)
            assert (shelf.state(FIRST), shelf.loaded) == ("unloaded", set())
            cache = shelf.engine.status().cache
            assert (cache.bytes, cache.evicted_by_reset, cache.misses) == (0, 0, 1)
            longer = [*prompt, *before.tokens, *words(10, 2)]
            again = await shelf.answer(FIRST, longer)
            assert again.usage.reused == 3_000 + len(before.tokens)
            assert len(shelf.caches) == 1

    run(scenario())


class Stuck(PrefixCache):
    def move_out(self) -> None:
        raise RuntimeError("it does not move")


def test_a_tree_that_does_not_leave_memory_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        clock, residency = Clock(), ResidencyLimits(keep_alive_seconds=600.0)
        async with running(
            clock=clock, disk=disk(tmp_path), cache_class=Stuck, residency=residency
        ) as bench:
            await bench.run(words(2_000, 1))
            clock.now += 31
            await nudge(bench)
            await until(lambda: bench.engine.status().model.stages[0].is_reached)
            clock.now += 600
            await nudge(bench)
            await until(lambda: bench.engine.status().model.state == "unloaded")
            await nudge(bench)
            assert "RuntimeError: it does not move" in caplog.text
            assert bench.engine.status().cache.tokens >= 2_000

    run(scenario())


def test_what_could_not_be_written_stays_in_memory_without_its_weights(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, small = Clock(), disk(tmp_path, max_bytes=20_000)
        async with library(clock, small, keep_alive_seconds=600.0) as shelf:
            prompt = words(3_000, 1)
            await shelf.answer(FIRST, prompt)
            clock.now += 601
            await nudge(shelf)
            await written(shelf)
            assert shelf.state(FIRST) == "unloaded"
            assert shelf.engine.status().cache.tokens >= 3_000
            assert (await shelf.answer(FIRST, prompt)).usage.reused == 2_999

    run(scenario())


def test_a_model_that_is_told_to_go_has_its_states_written_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with library(Clock(), disk(tmp_path)) as shelf:
            await shelf.answer(FIRST, words(3_000, 1))
            await shelf.engine.unload(FIRST)
            await written(shelf)
            (model,) = (await shelf.engine.disk_contents()).models
            assert model.tokens == shelf.engine.status().cache.tokens >= 3_000

    run(scenario())


def test_a_tree_goes_for_another_models_weights_only_once_it_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="daemon.residents")

    async def scenario() -> None:
        one_at_a_time = disk(tmp_path, pending_bytes=2)
        async with library(disk=one_at_a_time, memory_bytes=2 * WEIGHTS) as shelf:
            prompt = words(20_000, 1)
            await shelf.answer(FIRST, prompt)
            held = shelf.engine.status().cache.bytes
            async with shelf.engine.lease(shelf.source("large", 2 * WEIGHTS - held // 2)):
                assert shelf.engine.status().cache.bytes < held
                assert shelf.engine.status().disk.pending_bytes == 0
                (model,) = (await shelf.engine.disk_contents()).models
                assert (model.name, model.tokens) == (FIRST, 20_020)
            assert (await shelf.answer(FIRST, prompt)).usage.reused == 19_999
        assert caplog.text.count("what first read goes for large") == 1

    run(scenario())


def test_who_needs_the_memory_does_not_wait_for_ever_until_a_tree_is_written(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        slow = disk(tmp_path, pending_bytes=2, save_seconds=0.0)
        async with library(disk=slow, memory_bytes=2 * WEIGHTS) as shelf:
            await shelf.answer(FIRST, words(20_000, 1))
            held = shelf.engine.status().cache.bytes
            async with shelf.engine.lease(shelf.source("large", 2 * WEIGHTS - held // 2)):
                assert shelf.engine.status().cache.bytes < held
            assert len(files(tmp_path)) < 20

    run(scenario())


def test_a_broken_models_tree_is_written_if_it_holds_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(disk=disk(tmp_path), reload_pauses=(0.0,)) as bench:
            prompt = words(2_000, 1)
            await bench.run(prompt)
            bench.script.faults.unexpected_steps = 1
            await bench.run(words(30, 2))
            await bench.ready()
            assert len(bench.caches) == 2
            assert (await bench.run(prompt)).usage.reused == 1_999

    run(scenario())


class Unsound(PrefixCache):
    """A tree that says of itself that it is broken, once it is told to."""

    is_unsound = False

    def check(self) -> None:
        assert not self.is_unsound, "the test says so"
        super().check()


def test_a_tree_that_does_not_hold_together_is_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        options: dict[str, Any] = {"cache_class": Unsound, "reload_pauses": (0.0,)}
        async with running(disk=disk(tmp_path), **options) as bench:
            await bench.run(words(2_000, 1))
            cache = bench.caches[0]
            assert isinstance(cache, Unsound)
            cache.is_unsound = True
            bench.script.faults.unexpected_steps = 1
            await bench.run(words(30, 2))
            await bench.ready()
            cache.is_unsound = False
            assert "does not hold together" in caplog.text
            assert (await bench.run(words(2_000, 1))).usage.reused == 0

    run(scenario())


def test_a_request_ends_the_writing_of_what_it_may_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        one_at_a_time = disk(tmp_path, pending_bytes=2)
        async with running(clock=clock, disk=one_at_a_time) as bench:
            await bench.run(words(30_000, 1), max_tokens=1)
            clock.now += 31
            bench.steps.allow(0)
            talking = bench.submit(words(20, 2))
            await bench.steps.standing()
            assert len(files(tmp_path)) < 25
            bench.steps.free()
            await collect(talking)
            clock.now += 31
            await nudge(bench)
            await until(lambda: len(files(tmp_path)) >= 30)
            await written(bench)
            (model,) = (await bench.engine.disk_contents()).models
            assert model.tokens == bench.engine.status().cache.tokens

    run(scenario())


def test_what_is_cleared_while_it_is_written_is_not_written_to_its_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(clock=clock, disk=disk(tmp_path, pending_bytes=2)) as bench:
            for length in (20_000, 21_000):
                await bench.run(words(length, length), max_tokens=1)
            clock.now += 31
            await bench.engine.ask(lambda seen: seen.cache.clear())
            await written(bench)
            clock.now += 31
            await nudge(bench)
            await written(bench)
            assert len(files(tmp_path)) < 10

    run(scenario())


def test_what_is_cleared_on_disk_does_not_come_back_from_memory_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        async with running(clock=clock, disk=disk(tmp_path, pending_bytes=2)) as bench:
            for seed in range(20):
                await bench.run(words(2_000, seed), max_tokens=1)
            clock.now += 31
            await bench.engine.clear_disk()
            assert not files(tmp_path)
            clock.now += 1_000
            await nudge(bench)
            await written(bench)
            assert not files(tmp_path)
            assert (await bench.run(words(2_000, 3))).usage.reused == 1_999
            clock.now += 31
            await nudge(bench)
            await until(lambda: len(files(tmp_path)) >= 40)

    run(scenario())


def test_the_stages_are_right_whenever_somebody_asks(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()

        def stages() -> list[tuple[str, float | None, float | None]]:
            model = shelf.engine.status().models[0]
            return [(each.name, each.after_seconds, each.in_seconds) for each in model.stages]

        async with library(clock, disk(tmp_path), keep_alive_seconds=600.0) as shelf:
            async with shelf.engine.lease(shelf.source(FIRST)):
                await collect(shelf.submit(FIRST, words(300, 1)))
                clock.now += 100
                assert shelf.engine.status().models[0].idle_seconds == 0.0
                assert stages() == [("saved", 30.0, 30.0), ("unloaded", 600.0, 600.0)]
            await nudge(shelf)
            clock.now += 10
            assert shelf.engine.status().model.idle_seconds == 10.0
            assert stages() == [("saved", 30.0, 20.0), ("unloaded", 600.0, 590.0)]
            clock.now += 21
            await nudge(shelf)
            await written(shelf)
            assert stages() == [("saved", 30.0, 0.0), ("unloaded", 600.0, 569.0)]
            clock.now += 570
            await nudge(shelf)
            await until(lambda: stages() == [("saved", 30.0, 0.0), ("unloaded", 600.0, 0.0)])

    run(scenario())


def test_a_stage_that_never_comes_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = Clock()
        blocked = tmp_path / "a file"
        blocked.touch()
        async with library(clock, disk(blocked)) as shelf:
            await shelf.answer(FIRST, words(300, 1))
            clock.now += 31
            await nudge(shelf)
            stages = shelf.engine.status().models[0].stages
            assert stages == (
                StageStatus("saved", 30.0, None),
                StageStatus("unloaded", None, None),
            )
            assert (await shelf.answer(FIRST, words(300, 1))).usage.reused == 299

    run(scenario())


def test_an_idle_engine_with_a_disk_does_not_wake_up_between_the_stages(tmp_path: Path) -> None:
    async def scenario() -> None:
        ticks: list[float] = []

        def clock() -> float:
            ticks.append(time.monotonic())
            return ticks[-1]

        async with running(clock=clock, disk=disk(tmp_path, idle_seconds=0.1)) as bench:
            await bench.run(words(3_000, 1))
            await until(lambda: bench.engine.status().model.stages[0].is_reached)
            assert len(files(tmp_path)) == 3
            await asyncio.sleep(0.1)
            ticks.clear()
            await asyncio.sleep(0.5)
            assert not ticks

    run(scenario())


def test_the_disk_answers_without_any_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(disk=disk(tmp_path)) as bench:
            await bench.run(words(3_000, 1))
        held = Bench(
            bench.script,
            CacheKind.SLICEABLE,
            disk=disk(tmp_path),
            residency=ResidencyLimits(held="the test says so"),
        )
        held.engine.start()
        await until(lambda: held.engine.status().disk.files == 3)
        assert (await held.engine.check_disk()).files == 3
        contents = await held.engine.disk_contents()
        assert (contents.disk.files, len(contents.models)) == (3, 1)
        await held.engine.clear_disk()
        assert (await held.engine.disk_contents()).disk.files == 0
        await until(lambda: not files(tmp_path))
        assert await held.engine.close(grace_seconds=0)
        assert not held.models

    run(scenario())


def test_without_a_disk_there_is_nothing_to_tell_of_it() -> None:
    async def scenario() -> None:
        async with running() as bench:
            assert not (await bench.engine.disk_contents()).disk.is_on
            assert (await bench.engine.check_disk()).files == 0
            await bench.engine.clear_disk()
            assert [each.name for each in bench.engine.status().model.stages] == ["unloaded"]

    run(scenario())


def test_a_model_whose_state_does_not_come_back_as_it_left_is_kept_in_memory_only(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        script = Script(disk_refusal="its state comes back changed")
        async with running(script, disk=disk(tmp_path)) as bench:
            first = await bench.run(words(3_000, 1))
            again = await bench.run(words(3_000, 1))
        assert (first.usage.reused, again.usage.reused) == (0, 2_999)
        assert not files(tmp_path)

    run(scenario())
