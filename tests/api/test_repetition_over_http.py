"""An answer that says the same without end is ended, and not as if that had been its end."""

from collections.abc import Sequence
from typing import Any

import pytest

from daemon.repetition import EVERY_TOKENS, MIN_TOKENS
from tests.api.admin_desk import desk
from tests.engine.harness import run
from tests.fakes import Script

CHAT = "/v1/chat/completions"


def in_circles(state: Sequence[int], index: int) -> int:
    return 97 + index % 12


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
    ],
)
def test_a_phrase_without_end_is_ended_and_everybody_hears_why(
    path: str, prompt: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with desk(script=Script(reply=in_circles)) as at:
            reply = (await at.ask("POST", path, json=prompt)).json()
            generated = reply["usage"]["completion_tokens"]
            assert MIN_TOKENS <= generated <= MIN_TOKENS + EVERY_TOKENS
            assert reply["choices"][0]["finish_reason"] == "length"
            assert "repeat itself" in reply["warnings"][0]
            [record] = (await at.json("/mlxd/status"))["engine"]["recent"]
            assert (record["phase"], record["finish"]) == ("done", "repetition")

    run(scenario())


def test_what_a_client_limits_itself_is_written_to_the_limit() -> None:
    async def scenario() -> None:
        async with desk(script=Script(reply=in_circles)) as at:
            limit = MIN_TOKENS + 2 * EVERY_TOKENS
            body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": limit}
            reply = (await at.ask("POST", CHAT, json=body)).json()
            assert reply["usage"]["completion_tokens"] == limit
            assert "warnings" not in reply
            [record] = (await at.json("/mlxd/status"))["engine"]["recent"]
            assert record["finish"] == "length"

    run(scenario())
