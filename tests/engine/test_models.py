"""Several models and one memory: loaded when wanted, unloaded when idle, what was read is kept."""

from __future__ import annotations

import asyncio

import pytest

from daemon.errors import ModelDoesNotFit, ModelInUse, ModelUnavailable
from daemon.generation import FinishReason, GenerationRequest
from daemon.residents import FAIR_SECONDS
from mlx_backend.errors import ModelDamaged
from mlx_backend.messages import Prompt, token_ids
from tests.engine.harness import Clock, collect, failure, run, until, words
from tests.engine.library import WEIGHTS, library
from tests.fakes import Script


def test_a_model_is_loaded_when_it_is_asked_for_and_once_for_all_who_ask() -> None:
    async def scenario() -> None:
        async with library(max_loaded=2) as shelf:
            answers = await asyncio.gather(
                *(shelf.answer("second", words(50, seed)) for seed in range(8))
            )
            assert shelf.loads == ["first", "second"]
            assert {answer.reason for answer in answers} == {FinishReason.LENGTH}
            assert shelf.loaded == {"first", "second"}

    run(scenario())


def test_two_models_wanted_at_once_are_loaded_one_after_the_other_for_want_of_room() -> None:
    async def scenario() -> None:
        async with library() as shelf:
            answers = await asyncio.gather(
                *(shelf.answer(name, words(50, 1)) for name in ("second", "third", "second"))
            )
            assert all(len(answer.tokens) == 20 for answer in answers)
            assert shelf.loads[:2] == ["first", "second"]
            assert len(shelf.loaded) == 1

    run(scenario())


def test_nobody_takes_a_model_away_from_who_uses_it() -> None:
    async def scenario() -> None:
        async with library() as shelf:
            async with shelf.engine.lease(shelf.source("first")):
                other = asyncio.create_task(shelf.answer("second", words(30, 1)))
                long = await collect(shelf.submit("first", words(300, 2), 200))
                assert len(long.tokens) == 40
                assert shelf.loads == ["first"]
                with pytest.raises(ModelInUse):
                    await shelf.engine.unload("first")
            assert len((await other).tokens) == 20
            assert shelf.loaded == {"second"}

    run(scenario())


def test_who_waits_too_long_for_a_model_hears_when_to_come_back() -> None:
    async def scenario() -> None:
        async with library() as shelf, shelf.engine.lease(shelf.source("first")):
            with pytest.raises(ModelUnavailable) as caught:
                async with shelf.engine.lease(shelf.source("second"), wait_seconds=0.05):
                    pass
            assert caught.value.retry_after
            assert shelf.loads == ["first"]

    run(scenario())


def test_a_model_in_steady_use_makes_way_for_one_that_has_waited_for_long() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with library(clock) as shelf:
            async with shelf.engine.lease(shelf.source("first")):
                waiting = asyncio.create_task(shelf.answer("second", words(30, 1)))
                await until(lambda: shelf.state("second") == "unloaded")
                async with shelf.engine.lease(shelf.source("first")):
                    pass  # who comes early is let in beside the first
                clock.now += FAIR_SECONDS
                await shelf.nudge()
                late = asyncio.create_task(shelf.answer("first", words(30, 2)))
                await asyncio.sleep(0.02)
                assert not late.done()
            await waiting
            await late
            assert shelf.loads == ["first", "second", "first"]

    run(scenario(), hang_seconds=FAIR_SECONDS / 2)  # it is told, and does not look by itself


def test_weights_go_when_they_were_idle_for_long_and_what_was_read_stays() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with library(clock, keep_alive_seconds=1800.0) as shelf:
            prompt = words(500, 1)
            before = await shelf.answer("first", prompt)
            clock.now += 1799
            await shelf.nudge()
            assert shelf.state("first") == "ready"
            clock.now += 2
            await shelf.nudge()
            assert (shelf.state("first"), shelf.loaded) == ("unloaded", set())
            held = shelf.engine.status().cache
            assert held.tokens >= 500
            again = await shelf.answer("first", [*prompt, *before.tokens, *words(10, 2)])
            assert again.usage.reused == 500 + len(before.tokens)
            assert shelf.loads == ["first", "first"]
            assert len(shelf.caches) == 1

    run(scenario())


def test_the_time_of_a_model_begins_at_the_end_of_its_last_request() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with library(clock, keep_alive_seconds=100.0) as shelf:
            async with shelf.engine.lease(shelf.source("first")):
                clock.now += 1000
                await shelf.nudge()
                assert shelf.state("first") == "ready"
            clock.now += 99
            await shelf.nudge()
            assert shelf.state("first") == "ready"
            clock.now += 2
            await shelf.nudge()
            assert shelf.state("first") == "unloaded"

    run(scenario())


def test_the_longest_unused_model_is_the_one_that_goes() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with library(clock, max_loaded=2) as shelf:
            for name in ("first", "second", "first", "third"):
                clock.now += 1
                await shelf.answer(name, words(40, 1))
            assert shelf.loaded == {"first", "third"}

    run(scenario())


def test_a_model_that_cannot_fit_says_so_with_the_numbers_and_costs_nobody_anything() -> None:
    async def scenario() -> None:
        async with library(memory_bytes=3 * WEIGHTS) as shelf:
            await shelf.answer("first", words(300, 1))
            with pytest.raises(ModelDoesNotFit) as caught:
                async with shelf.engine.lease(shelf.source("huge", 4 * WEIGHTS)):
                    pass
            assert "4,000,000" in caught.value.message
            assert "3,000,000" in caught.value.message
            assert shelf.loads == ["first"]
            assert (await shelf.answer("first", words(300, 1))).usage.reused == 299

    run(scenario())


def test_what_an_unloaded_model_has_read_gives_way_to_another_models_weights_only() -> None:
    async def scenario() -> None:
        async with library(memory_bytes=2 * WEIGHTS) as shelf:
            await shelf.answer("first", words(5000, 1))
            held = shelf.engine.status().cache.bytes
            assert held > 0
            await shelf.answer("second", words(50, 1))  # both the tree and the weights fit
            assert shelf.engine.status().cache.bytes > held
            async with shelf.engine.lease(shelf.source("large", 2 * WEIGHTS - held // 2)):
                pass
            assert shelf.engine.status().cache.bytes < held
            assert (await shelf.answer("first", words(5000, 1))).usage.reused == 0

    run(scenario())


def test_loaded_models_share_what_their_weights_leave() -> None:
    async def scenario() -> None:
        async with library(max_loaded=2) as shelf:
            await shelf.engine.unload("first")
            shelf.budget_bytes = 10 * WEIGHTS
            await shelf.answer("first", words(40, 1))
            assert shelf.engine.status().memory.budget_bytes == 10 * WEIGHTS
            await shelf.answer("second", words(40, 1))
            assert shelf.engine.status().memory.budget_bytes == 9 * WEIGHTS
            await shelf.engine.unload("second")
            left = 10 * WEIGHTS - shelf.engine.status().memory.budget_bytes
            assert 0 < left < WEIGHTS / 10  # the tree of the one that was unloaded

    run(scenario())


def test_after_ten_swaps_the_memory_is_back_at_its_base() -> None:
    async def scenario() -> None:
        async with library() as shelf:
            await shelf.answer("first", words(300, 1))
            await shelf.answer("second", words(300, 1))
            base = shelf.engine.status().cache
            for _ in range(5):
                await shelf.answer("first", words(300, 1))
                await shelf.answer("second", words(300, 1))
            status = shelf.engine.status()
            assert (status.cache.bytes, status.cache.arrays) == (base.bytes, base.arrays)
            assert len(shelf.loaded) == 1
            assert len(shelf.loads) == 12
            assert len(shelf.caches) == 2

    run(scenario())


def test_a_model_that_cannot_be_loaded_fails_who_asked_for_it_and_nobody_else() -> None:
    async def scenario() -> None:
        async with library(max_loaded=2) as shelf:
            shelf.load_errors["broken"] = ModelDamaged("a file is cut short")
            with pytest.raises(ModelUnavailable) as caught:
                async with shelf.engine.lease(shelf.source("broken")):
                    pass
            assert "cut short" in caught.value.message
            del shelf.load_errors["broken"]
            assert (await shelf.answer("broken", words(40, 1))).tokens
            assert shelf.state("first") == "ready"

    run(scenario())


def test_a_model_that_breaks_is_loaded_again_and_its_neighbour_goes_on() -> None:
    async def scenario() -> None:
        async with library(max_loaded=2) as shelf:
            await shelf.answer("second", words(40, 1))
            async with (
                shelf.engine.lease(shelf.source("first")),
                shelf.engine.lease(shelf.source("second")),
            ):
                shelf.models["first"].backend.script = Script()
                shelf.models["first"].backend.script.faults.steps = 1
                broken, sound = await asyncio.gather(
                    collect(shelf.submit("first", words(300, 2), 30)),
                    collect(shelf.submit("second", words(300, 3), 30)),
                )
            assert failure(broken)
            assert len(sound.tokens) == 30
            await until(lambda: shelf.state("first") == "ready")
            assert shelf.loads == ["first", "second", "first"]

    run(scenario())


def test_a_model_that_breaks_is_not_loaded_again_beside_one_that_took_its_room() -> None:
    async def scenario() -> None:
        async with library() as shelf:
            async with shelf.engine.lease(shelf.source("first")):
                other = asyncio.create_task(shelf.answer("second", words(30, 2)))
                await asyncio.sleep(0)  # it waits for room from now on
                shelf.models["first"].backend.script.faults.steps = 1
                assert failure(await collect(shelf.submit("first", words(30, 1))))
            assert len((await other).tokens) == 20
            await until(lambda: shelf.state("first") == "unloaded")
            assert (shelf.loads, shelf.loaded) == (["first", "second"], {"second"})
            assert len((await shelf.answer("first", words(30, 1))).tokens) == 20
            assert shelf.loaded == {"first"}

    run(scenario())


def test_sessions_are_found_whichever_model_they_talk_to() -> None:
    async def scenario() -> None:
        async with library(max_loaded=2) as shelf:
            for name in ("first", "second"):
                async with shelf.engine.lease(shelf.source(name)):
                    request = GenerationRequest(
                        f"s-{name}", Prompt(token_ids(words(60, 1))), 5, session=name, model=name
                    )
                    await collect(shelf.engine.submit(request))
            ids = {session.id for session in shelf.engine.status().sessions}
            assert ids == {"first", "second"}
            for name in ids:
                found = await shelf.engine.ask(
                    lambda seen, name=name: seen.sessions.status(name, seen.now), session=name
                )
                assert found.turns == 1
            assert len(await shelf.engine.ask_each(lambda seen: seen.model.name)) == 2

    run(scenario())


class Death(BaseException):
    """What nothing on the engine's thread expects."""


def test_who_waits_for_a_model_hears_of_it_when_the_thread_dies() -> None:
    async def scenario() -> None:
        async with library() as shelf:
            async with shelf.engine.lease(shelf.source("first")):
                waiting = [
                    asyncio.create_task(shelf.answer("second", words(30, 1))) for _ in range(2)
                ]
                await until(lambda: shelf.state("second") == "unloaded")
                shelf.load_errors["second"] = Death()  # type: ignore[assignment]
            found = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(each, ModelUnavailable) for each in found)
            with pytest.raises(ModelUnavailable, match="died"):
                await shelf.engine.unload("first")
            for model in shelf.models.values():
                model.backend.is_closed = True  # whose thread is gone

    run(scenario())
