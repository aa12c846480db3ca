"""The daemon and the machine under it: awake over work, smaller when memory is short."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from daemon.machine import Edges, Machine
from daemon.status import MachineStatus
from launchd.power import Caffeine, PowerState
from launchd.pressure import Pressure
from tests.engine.harness import Bench, Clock, collect, run, running, until, words


class FakeProcess:
    code: int | None = None

    def poll(self) -> int | None:
        return self.code

    def terminate(self) -> None:
        self.code = -15

    kill = terminate

    def wait(self, timeout: float | None = None) -> int:
        assert self.code is not None
        return self.code


class FakeCaffeinate:
    """Remembers every process that it started."""

    def __init__(self) -> None:
        self.started: list[FakeProcess] = []

    def __call__(self, arguments: Sequence[str]) -> FakeProcess:
        self.started.append(FakeProcess())
        return self.started[-1]


class FakeWatch:
    """A report of memory pressure, as a pipe."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        self.is_closed = False
        self._level = Pressure.NORMAL

    def fileno(self) -> int:
        return self._out

    def tell(self, level: Pressure) -> None:
        self._level = level
        os.write(self._in, b"!")

    def read(self) -> Pressure:
        os.read(self._out, 1)
        return self._level

    def close(self) -> None:
        self.is_closed = True
        os.close(self._out)
        os.close(self._in)


@asynccontextmanager
async def serving(edges: Edges, **options: Any):
    machine = Machine(edges, **options)
    async with running(on_busy=machine.busy) as bench:
        with machine.at_work(bench.engine):
            yield machine, bench


async def stored_bytes(bench: Bench) -> int:
    return await bench.engine.ask(lambda found: found.cache.status().bytes)


def test_it_is_kept_awake_from_the_first_request_until_some_time_after_the_last():
    async def scenario() -> None:
        caffeinate = FakeCaffeinate()
        edges = Edges(caffeine=Caffeine(caffeinate, 1))
        async with serving(edges, linger_seconds=0.3) as (machine, bench):
            assert not caffeinate.started
            async with bench.held():
                waiting = bench.submit(words(20, 1))
                assert (await machine.status()).is_kept_awake
            await collect(waiting)
            assert (await machine.status()).is_kept_awake, "it lingers"
            await bench.run(words(20, 2))
            assert len(caffeinate.started) == 1, "the next turn came in time"
            await until(lambda: caffeinate.started[0].code is not None)
            assert not (await machine.status()).is_kept_awake
            await bench.run(words(20, 3))
            assert len(caffeinate.started) == 2
        assert caffeinate.started[1].code is not None, "ended with the daemon"

    run(scenario())


def test_a_machine_that_cannot_be_kept_awake_serves_nevertheless(caplog):
    def refuse(arguments: Sequence[str]):
        raise FileNotFoundError(2, "No such file", arguments[0])

    async def scenario() -> None:
        async with serving(Edges(caffeine=Caffeine(refuse, 1))) as (_, bench):
            assert (await bench.run(words(20, 1))).tokens == bench.cold(words(20, 1))

    run(scenario())
    assert "fall asleep" in caplog.text


@pytest.mark.parametrize(
    ("level", "is_all"), [(Pressure.WARNING, False), (Pressure.CRITICAL, True)]
)
def test_when_memory_is_short_the_cache_shrinks(level: Pressure, is_all: bool):
    async def scenario() -> None:
        watch = FakeWatch()
        async with serving(Edges(watch=lambda: watch)) as (machine, bench):
            for seed in range(8):
                await bench.run(words(200, seed))
            before = await stored_bytes(bench)
            watch.tell(level)
            await until(lambda: bench.engine.status().cache.bytes < before)
            left = await stored_bytes(bench)
            assert left <= before / 2
            assert (left == 0) is is_all
            while not (told := await machine.status()).given_back_bytes:
                await asyncio.sleep(0.001)
            assert (told.memory_pressure, told.given_back_bytes) == (level, before - left)
            watch.tell(Pressure.NORMAL)
            await asyncio.sleep(0.05)
            assert (await machine.status()).memory_pressure == "normal"
            assert await stored_bytes(bench) == left
        assert watch.is_closed

    run(scenario())


def test_running_requests_lose_nothing_when_memory_is_short():
    async def scenario() -> None:
        watch = FakeWatch()
        async with serving(Edges(watch=lambda: watch)) as (_, bench):
            await bench.run(words(300, 1))
            async with bench.held():
                again = bench.submit(words(300, 1) + words(50, 2))
                watch.tell(Pressure.CRITICAL)
                await asyncio.sleep(0.05)
            answer = await collect(again)
            assert answer.tokens == bench.cold(words(300, 1) + words(50, 2))

    run(scenario())


def test_a_machine_that_reports_no_pressure_says_so_and_serves(caplog):
    def refuse():
        raise OSError(22, "Invalid argument")

    async def scenario() -> None:
        async with serving(Edges(watch=refuse)) as (machine, bench):
            await bench.run(words(20, 1))
            assert (await machine.status()).memory_pressure == ""

    run(scenario())
    assert "Invalid argument" in caplog.text


def test_power_and_heat_are_looked_up_when_somebody_asks_and_not_every_time():
    async def scenario() -> None:
        looks, clock = [], Clock()

        def look() -> PowerState:
            looks.append(clock.now)
            return PowerState(is_low_power=True, heat="serious")

        machine = Machine(Edges(power=look), clock=clock)
        assert not looks
        for _ in range(3):
            told = await machine.status()
            assert (told.is_low_power, told.heat) == (True, "serious")
        clock.now += 60
        await machine.status()
        assert len(looks) == 2

    run(scenario())


def test_folders_are_kept_out_of_backups_at_the_start(caplog):
    async def scenario() -> None:
        async with serving(Edges(keep_out=lambda: ["a folder stays in the index"])):
            await until(lambda: "stays in the index" in caplog.text)

    run(scenario())


def test_a_machine_without_any_of_that_says_nothing():
    async def scenario() -> None:
        async with serving(Edges()) as (machine, bench):
            await bench.run(words(20, 1))
            assert await machine.status() == MachineStatus()

    run(scenario())
