"""Several models behind one door: asked for by name, loaded when asked for, never taken away."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from daemon.residents import FAIR_SECONDS
from mlx_backend.errors import ModelDamaged
from tests.api.model_house import CONTEXT, WEIGHTS, House, Stream, body, house, on_disk
from tests.api.wires import WIRES, Wire
from tests.engine.harness import Clock, run, until

COUNT = "/v1/messages/count_tokens"


def endless(at: House, seconds: float = 0.002) -> None:
    at.script.reply = lambda state, index: 97
    at.script.step_seconds = seconds


def test_a_model_of_this_machine_is_loaded_when_it_is_asked_for_and_answers_by_that_name() -> None:
    async def scenario() -> None:
        async with house() as at:
            for asked, loads in (
                ("second", ["first", "second"]),
                ("owner/second", ["first", "second"]),
                ("/models/third", ["first", "second", "third"]),
                ("claude-x", ["first", "second", "third", "first"]),
            ):
                assert (await at.chat(asked))["model"] == asked
                assert at.loads == loads
            assert (await at.chat())["model"] == "first"
            assert len([model for model in at.loaded.values() if not model.backend.is_closed]) == 1

    run(scenario())


def test_aliases_mean_local_models() -> None:
    async def scenario() -> None:
        async with house(aliases={"claude-haiku-*": "second"}, max_loaded=2) as at:
            assert (await at.chat("claude-haiku-9"))["model"] == "claude-haiku-9"
            await at.chat("claude-opus-9")
            assert at.loads == ["first", "second"]

    run(scenario())


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_what_is_not_here_is_not_found_and_nothing_is_loaded_for_it(wire: Wire) -> None:
    async def scenario() -> None:
        async with house() as at:
            answer = await at.ask("POST", wire.path, json=wire.body(model="owner/unknown"))
            assert answer.status_code == 404
            assert "`first`, `second`, `third`" in answer.text
            assert at.loads == ["first"]

    run(scenario())


def test_first_requests_for_two_models_at_once_load_each_of_them_once() -> None:
    async def scenario() -> None:
        async with house(max_loaded=3) as at:
            asked = [at.chat(name, str(n)) for n in range(8) for name in ("second", "third")]
            await asyncio.gather(*asked)
            assert sorted(at.loads) == ["first", "second", "third"]

    run(scenario())


def test_where_there_is_room_for_one_the_other_waits_and_nobody_is_failed() -> None:
    async def scenario() -> None:
        async with house(max_loaded=3, memory_bytes=int(1.5 * WEIGHTS)) as at:
            asked = [at.chat(name, str(n)) for n in range(8) for name in ("second", "third")]
            await asyncio.gather(*asked)
            assert at.loads[:1] == ["first"]
            assert set(at.loads) == {"first", "second", "third"}
            assert len([model for model in at.loaded.values() if not model.backend.is_closed]) == 1

    run(scenario())


def test_a_stream_ends_before_its_model_makes_way_for_another() -> None:
    async def scenario() -> None:
        async with house() as at:
            endless(at)
            stream = Stream(at, body(model="first", stream=True, max_tokens=100))
            await until(lambda: stream.tokens > 3)
            other = asyncio.create_task(at.chat("second"))
            await stream.done
            assert (stream.tokens, stream.text.count("[DONE]")) == (100, 1)
            await other
            assert at.loads == ["first", "second"]

    run(scenario())


def test_no_idle_time_runs_under_a_stream_and_it_begins_at_its_end() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with house(clock, keep_alive_seconds=100.0) as at:
            endless(at)
            stream = Stream(at, body(stream=True, max_tokens=60))
            await until(lambda: stream.tokens > 3)
            clock.now += 1000
            await at.look_at_the_clock()
            await stream.done
            assert stream.tokens == 60
            assert at.state("first") == "ready"
            clock.now += 99
            await at.look_at_the_clock()
            assert at.state("first") == "ready"
            clock.now += 2
            await at.look_at_the_clock()
            assert at.state("first") == "unloaded"

    run(scenario())


def test_an_idle_model_is_no_sickness_and_goes_on_from_what_it_had_read() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with house(clock, keep_alive_seconds=100.0) as at:
            long = "Words to be read. " * 40
            first = await at.chat(text=long)
            clock.now += 101
            await at.look_at_the_clock()
            assert at.state("first") == "unloaded"
            health = await at.ask("GET", "/health")
            assert (health.status_code, health.json()) == (200, {"status": "ok"})
            said = first["choices"][0]["message"]
            turn = [{"role": "user", "content": long}, said, {"role": "user", "content": "more"}]
            again = await at.chat(messages=turn)
            used = again["usage"]
            assert used["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
            assert at.loads == ["first", "first"]

    run(scenario())


def test_kept_for_ever_a_model_stays() -> None:
    async def scenario() -> None:
        clock = Clock()
        async with house(clock, keep_alive_seconds=None) as at:
            clock.now += 10**8
            await at.look_at_the_clock()
            assert at.state("first") == "ready"

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_who_waits_too_long_for_a_model_hears_when_to_come_back(wire: Wire, stream: bool) -> None:
    async def scenario() -> None:
        async with house(door={"load_seconds": 0.02}) as at, at.engine.lease():
            asked = wire.body(model="second", stream=stream)
            answer = await at.ask("POST", wire.path, json=asked)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert "try again" in answer.text
            assert at.loads == ["first"]

    run(scenario())


def test_who_counts_tokens_waits_for_the_model_too() -> None:
    async def scenario() -> None:
        async with house() as at:
            counted = await at.ask("POST", COUNT, json=body(model="second"))
            assert counted.json()["input_tokens"] > 0
            assert at.loads == ["first", "second"]
            async with at.engine.lease(at.source(at.here["second"])):
                at.door.load_seconds = 0.02
                refused = await at.ask("POST", COUNT, json=body(model="first"))
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/chat/completions", COUNT])
def test_who_leaves_while_waiting_leaves_the_queue(path: str) -> None:
    async def scenario() -> None:
        sent: list[Any] = []
        leaves = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)

        clock = Clock()
        async with house(clock) as at:
            async with at.engine.lease():
                posted = at.post(path, body(model="second", stream=True), send, leaves)
                waiting = asyncio.create_task(posted)
                await until(lambda: at.state("second") == "unloaded")
                leaves.set()
                await waiting
                clock.now += FAIR_SECONDS
                await at.look_at_the_clock()
                await at.chat("first")  # nobody waits, for whom it would have to end
            await at.look_at_the_clock()
            assert at.loads == ["first"]
            assert sent == []

    run(scenario())


def test_a_model_that_cannot_fit_says_so_with_the_numbers() -> None:
    async def scenario() -> None:
        async with house(memory_bytes=2 * WEIGHTS) as at:
            at.here["huge"] = replace(on_disk("huge"), weight_bytes=3 * WEIGHTS)
            answer = await at.ask("POST", "/v1/chat/completions", json=body(model="huge"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                400,
                "model_does_not_fit",
            )
            assert "3,000,000" in answer.text
            assert "2,000,000" in answer.text
            assert at.loads == ["first"]

    run(scenario())


def test_a_model_that_is_damaged_fails_who_asked_for_it_and_nobody_else() -> None:
    async def scenario() -> None:
        async with house(max_loaded=2) as at:
            at.load_errors["second"] = ModelDamaged("a file is cut short")
            answer = await at.ask("POST", "/v1/chat/completions", json=body(model="second"))
            assert (answer.status_code, "cut short" in answer.text) == (503, True)
            assert int(answer.headers["retry-after"]) >= 1
            await at.chat("first")
            del at.load_errors["second"]
            await at.chat("second")

    run(scenario())


def test_a_model_that_was_deleted_meanwhile_is_not_found() -> None:
    async def scenario() -> None:
        async with house() as at:
            await at.chat("second")
            del at.here["second"]
            await at.chat("second")  # what is loaded needs its files no more
            await at.chat("first")
            answer = await at.ask("POST", "/v1/chat/completions", json=body(model="second"))
            assert answer.status_code == 404
            assert "Known: `first`, `third`" in answer.json()["error"]["message"]
            assert at.loads == ["first", "second", "first"]

    run(scenario())


def test_a_model_whose_files_changed_meanwhile_shares_nothing_with_what_it_was() -> None:
    async def scenario() -> None:
        async with house(max_loaded=2) as at:
            text = "The same ids in each of them. " * 20
            for name, identity, cached in (
                ("first", "first", 0),
                ("second", "second", 0),  # the same ids, another model
                ("first", "first", 1),
                ("first", "first with another template", 0),
                ("second", "second", 1),
            ):
                if at.identities.get(name, name) != identity:
                    at.identities[name] = identity
                    await at.engine.unload(at.here[name].key)
                used = (await at.chat(name, text))["usage"]["prompt_tokens_details"]
                assert bool(used["cached_tokens"]) == bool(cached), (name, identity)

    run(scenario())


def test_all_models_are_listed_with_the_context_that_is_honoured() -> None:
    async def scenario() -> None:
        async with house() as at:
            del at.here["third"]
            answer = await at.json("/v1/models")
            assert [model["id"] for model in answer["data"]] == ["first", "second"]
            assert {model["context_length"] for model in answer["data"]} == {CONTEXT}
            assert (answer["first_id"], answer["last_id"]) == ("first", "second")
            one = await at.json("/v1/models/owner/second")
            assert (one["id"], one["max_input_tokens"]) == ("owner/second", CONTEXT)
            assert at.loads == ["first"]
            long = await at.ask("POST", "/v1/chat/completions", json=body("x" * CONTEXT, "second"))
            assert long.json()["error"]["code"] == "context_length_exceeded"
            assert str(CONTEXT) in long.json()["error"]["message"]

    run(scenario())


def test_a_model_is_loaded_used_and_unloaded_by_hand_with_the_token_only() -> None:
    async def scenario() -> None:
        async with house() as at:
            for action in ("load", "unload", "use"):
                path = f"/mlxd/models/{action}?model=second"
                assert (await at.ask("POST", path)).status_code == 401
            loaded = (await at.order("POST", "/mlxd/models/load?model=second")).json()
            assert (loaded["id"], loaded["state"], loaded["is_default"]) == (
                "second",
                "ready",
                False,
            )
            used = (await at.order("POST", "/mlxd/models/use?model=owner/second")).json()
            assert (used["id"], used["is_default"]) == ("second", True)
            assert (await at.chat("gpt-9"))["model"] == "gpt-9"
            assert at.loads == ["first", "second"]
            left = (await at.order("POST", "/mlxd/models/unload")).json()["data"]
            assert {model["id"]: model["state"] for model in left} == {
                "second": "unloaded",
                "first": "unloaded",
                "third": "",
            }
            assert (await at.json("/mlxd/models"))["data"][0]["id"] == "second"
            unknown = await at.order("POST", "/mlxd/models/load?model=nonsense")
            assert unknown.status_code == 404
            no_folder = await at.order("POST", "/mlxd/models/use?model=/no/folder")
            assert (no_folder.status_code, "/no/folder" in no_folder.text) == (400, True)

    run(scenario())


def test_a_model_in_use_is_not_unloaded_by_hand() -> None:
    async def scenario() -> None:
        async with house() as at, at.engine.lease():
            answer = await at.order("POST", "/mlxd/models/unload?model=first")
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_in_use")
            assert "first is in use" in answer.json()["error"]["message"]
            assert at.state("first") == "ready"

    run(scenario())


def test_a_daemon_that_was_started_without_its_model_loads_it_when_told_to() -> None:
    async def scenario() -> None:
        async with house(held="left out after crashes") as at:
            refused = await at.ask("POST", "/v1/chat/completions", json=body())
            assert (refused.status_code, "left out" in refused.text) == (503, True)
            assert (await at.ask("GET", "/health")).status_code == 503
            assert at.loads == []
            assert (await at.order("POST", "/mlxd/models/load")).json()["state"] == "ready"
            await at.chat()

    run(scenario())
