"""The prefix cache over HTTP: what it holds, whether it is sound, and how it is emptied."""

import asyncio

from daemon.prefix_cache.cache import PrefixCache
from tests.api.admin_desk import desk
from tests.engine.harness import every_caching_kind, run, words


@every_caching_kind
def test_the_entries_are_the_tree_that_the_requests_left(kind) -> None:
    async def scenario() -> None:
        async with desk(kind) as at:
            head = words(300, 1)
            await at.bench.run([*head, *words(50, 2)], 4, session="one")
            await at.bench.run([*head, *words(50, 3)], 4, session="two")
            found = await at.json("/mlxd/cache")
            entries = {entry["id"]: entry for entry in found["entries"]}
            assert {entry["live_of"] for entry in entries.values()} >= {"one", "two"}
            assert found["cache"] == (await at.json("/mlxd/status"))["engine"]["cache"]
            for entry in entries.values():
                above = entries[entry["parent"]]["tokens"] if entry["parent"] is not None else 0
                assert entry["tokens"] == above + entry["own_tokens"]
            assert (
                sum(entry["own_tokens"] for entry in entries.values()) == found["cache"]["tokens"]
            )
            assert sum(entry["own_bytes"] for entry in entries.values()) <= found["cache"]["bytes"]

    run(scenario())


def test_no_text_and_no_token_ids_are_told() -> None:
    async def scenario() -> None:
        async with desk() as at:
            await at.bench.run(words(300, 1), 4, session="one")
            told = (await at.ask("GET", "/mlxd/cache")).text
            numbers = ",".join(map(str, words(300, 1)[:4]))
            assert numbers not in told.replace(" ", "")

    run(scenario())


def test_a_sound_cache_is_said_to_be_sound() -> None:
    async def scenario() -> None:
        async with desk() as at:
            await at.bench.run(words(300, 1), 4)
            found = await at.json("/mlxd/cache/check")
            assert (found["is_sound"], found["problem"]) == (True, None)

    run(scenario())


class Cracked(PrefixCache):
    """Its invariants break while `is_cracked`."""

    is_cracked = True

    def check(self) -> None:
        assert not self.is_cracked, "two spans for one interval"
        super().check()


def test_a_broken_invariant_is_told_and_breaks_nothing_else() -> None:
    async def scenario() -> None:
        async with desk(cache_class=Cracked) as at:
            found = await at.json("/mlxd/cache/check")
            assert not found["is_sound"]
            assert "two spans for one interval" in found["problem"]
            assert (await at.bench.run(words(30, 1), 4)).tokens
            at.bench.caches[-1].is_cracked = False

    run(scenario())


@every_caching_kind
def test_cleared_it_holds_nothing_and_sessions_begin_anew(kind) -> None:
    async def scenario() -> None:
        async with desk(kind, prompt_end="initial") as at:
            await at.bench.run(words(300, 1), 4, session="main")
            answer = await at.order("POST", "/mlxd/cache/clear")
            assert answer.status_code == 200
            left = answer.json()
            assert (left["entries"], left["tokens"], left["live_leaves"]) == (0, 0, 0)
            assert (await at.json("/mlxd/cache"))["entries"] == []
            assert (await at.bench.run(words(300, 1), 4, session="main")).usage.reused == 0
            assert (await at.json("/mlxd/cache"))["cache"]["entries"] > 0

    run(scenario())


def test_clearing_under_a_running_request_does_not_hurt_it() -> None:
    async def scenario() -> None:
        async with desk() as at:
            await at.bench.run(words(300, 1), 4)
            prompt = [*words(300, 1), *words(40, 2)]
            at.bench.steps.allow(2)
            asked = asyncio.ensure_future(at.bench.run(prompt, 20))
            await at.bench.steps.standing()
            clearing = asyncio.ensure_future(at.order("POST", "/mlxd/cache/clear"))
            await asyncio.sleep(0)
            at.bench.steps.free()
            assert (await clearing).status_code == 200
            assert (await asked).tokens == at.bench.cold(prompt, 20)
            assert (await at.json("/mlxd/cache/check"))["is_sound"]

    run(scenario())


def test_to_clear_takes_the_token() -> None:
    async def scenario() -> None:
        async with desk() as at:
            await at.bench.run(words(300, 1), 4)
            assert (await at.ask("POST", "/mlxd/cache/clear")).status_code == 401
            assert (await at.json("/mlxd/cache"))["entries"]

    run(scenario())
