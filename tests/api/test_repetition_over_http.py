"""An answer that says the same without end is ended, and not as if that had been its end."""

from collections.abc import Sequence

import pytest

from daemon.repetition import EVERY_TOKENS, LIMITED_TOKENS, MIN_TOKENS
from tests.api.admin_desk import desk
from tests.api.wires import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Wire
from tests.engine.harness import run
from tests.fakes import Script


def in_circles(state: Sequence[int], index: int) -> int:
    return 97 + index % 12


@pytest.mark.parametrize(
    ("wire", "stream"),
    [(CHAT, False), (CHAT, True), (COMPLETIONS, True), (MESSAGES, True), (RESPONSES, False)],
)
def test_a_phrase_without_end_is_ended_and_not_by_a_normal_stop(wire: Wire, stream: bool) -> None:
    limited = wire is MESSAGES  # which has to say a limit
    least = LIMITED_TOKENS if limited else MIN_TOKENS

    async def scenario() -> None:
        async with desk(script=Script(reply=in_circles)) as at:
            body = wire.body(stream=stream, **({"max_tokens": 32_000} if limited else {}))
            answer = await at.ask("POST", wire.path, json=body)
            said = wire.said(answer, stream=stream)
            assert least <= said.generated <= least + EVERY_TOKENS
            assert said.end == "length"
            if wire in (CHAT, COMPLETIONS):
                assert '"warnings":["The answer had begun to repeat itself' in answer.text
            [record] = (await at.json("/mlxd/status"))["engine"]["recent"]
            assert (record["phase"], record["finish"]) == ("done", "repetition")

    run(scenario())


@pytest.mark.parametrize("wire", [CHAT, RESPONSES], ids=lambda wire: wire.name)
def test_what_a_client_limits_itself_is_written_to_the_limit(wire: Wire) -> None:
    async def scenario() -> None:
        async with desk(script=Script(reply=in_circles)) as at:
            limit = MIN_TOKENS + 2 * EVERY_TOKENS
            answer = await at.ask("POST", wire.path, json=wire.body(**wire.limit(limit)))
            said = wire.said(answer, stream=False)
            assert (said.generated, said.end) == (limit, "length")
            assert "repeat itself" not in answer.text
            [record] = (await at.json("/mlxd/status"))["engine"]["recent"]
            assert record["finish"] == "length"

    run(scenario())
