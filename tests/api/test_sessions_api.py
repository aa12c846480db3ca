"""Sessions over HTTP: list, look, reset, delete."""

import pytest

from tests.api.admin_desk import desk
from tests.engine.harness import every_caching_kind, run, words


def test_sessions_open_by_being_named_and_count_what_they_did() -> None:
    async def scenario() -> None:
        async with desk() as at:
            assert await at.json("/v1/sessions") == {"object": "list", "data": []}
            await at.bench.run(words(300, 1), 4, session="main")
            await at.bench.run(words(300, 1), 4, session="main")
            (listed,) = (await at.json("/v1/sessions"))["data"]
            one = await at.json("/v1/sessions/main")
            assert (listed["id"], listed["turns"], listed["prompt"]) == ("main", 2, 600)
            assert (one["reused"], one["read"], one["generated"]) == (299, 301, 8)
            assert one["live_tokens"] >= 300

    run(scenario())


@every_caching_kind
def test_a_reset_forgets_the_state_and_keeps_the_session(kind) -> None:
    async def scenario() -> None:
        async with desk(kind, cache={"max_entries": 0}) as at:
            await at.bench.run(words(300, 1), 4, session="main")
            assert (await at.json("/v1/sessions/main"))["live_tokens"] > 0
            answer = await at.order("POST", "/v1/sessions/main/reset")
            assert answer.status_code == 200
            after = answer.json()
            assert (after["live_tokens"], after["live_bytes"], after["turns"]) == (0, 0, 1)
            assert (await at.json("/v1/sessions/main"))["turns"] == 1
            assert (await at.bench.run(words(300, 1), 4)).usage.reused == 0

    run(scenario())


def test_a_deleted_session_is_gone_with_its_state() -> None:
    async def scenario() -> None:
        async with desk(cache={"max_entries": 0}) as at:
            await at.bench.run(words(300, 1), 4, session="main")
            answer = await at.order("DELETE", "/v1/sessions/main")
            assert answer.json() == {"id": "main", "object": "session", "deleted": True}
            assert (await at.json("/v1/sessions"))["data"] == []
            assert (await at.ask("GET", "/v1/sessions/main")).status_code == 404
            assert (
                at.bench.engine.status().cache.bytes == at.bench.engine.status().cache.index_bytes
            )

    run(scenario())


def test_an_id_may_be_anything_that_a_client_sends() -> None:
    async def scenario() -> None:
        async with desk() as at:
            for name in ("a/b", "a b%", "résumé", "x/reset", "?#"):
                await at.bench.run(words(40, 1), 1, session=name)
                quoted = "".join(f"%{byte:02x}" for byte in name.encode())
                assert (await at.json(f"/v1/sessions/{quoted}"))["id"] == name
                reset = await at.order("POST", f"/v1/sessions/{quoted}/reset")
                assert reset.json()["id"] == name
                deleted = await at.order("DELETE", f"/v1/sessions/{quoted}")
                assert deleted.json()["id"] == name

    run(scenario())


CALLS = [
    ("GET", "/v1/sessions/none"),
    ("POST", "/v1/sessions/none/reset"),
    ("DELETE", "/v1/sessions/none"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_an_unknown_session_is_404(method, path) -> None:
    async def scenario() -> None:
        async with desk() as at:
            answer = await at.order(method, path)
            assert answer.status_code == 404
            assert "none" in answer.json()["error"]["message"]

    run(scenario())


@pytest.mark.parametrize(("method", "path"), CALLS[1:])
def test_to_forget_takes_the_token(method, path) -> None:
    async def scenario() -> None:
        async with desk() as at:
            await at.bench.run(words(300, 1), 4, session="none")
            answer = await at.ask(method, path)
            assert answer.status_code == 401
            assert (await at.json("/v1/sessions/none"))["live_tokens"] > 0

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/sessions/main"), ("GET", "/v1/sessions/"), ("PUT", "/v1/sessions")],
)
def test_what_is_no_route_is_refused(method, path) -> None:
    async def scenario() -> None:
        async with desk() as at:
            assert (await at.order(method, path)).status_code in (404, 405)

    run(scenario())
