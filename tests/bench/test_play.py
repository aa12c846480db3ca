"""Playing scenarios against canned servers: what is counted, and against what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np
import pytest

from daemon.bench.client import ReadProgress
from daemon.bench.floor import History
from daemon.bench.peers import Reading, Tally
from daemon.bench.play import Player
from daemon.bench.report import ScenarioResult
from daemon.bench.scenarios import Sizes, all_scenarios
from daemon.bench.traffic import Scenario
from mlx_backend.messages import TokenIds, token_ids
from tests.bench.qwen_like import QwenLikePrompts

TRAFFIC = {scenario.name: scenario for scenario in all_scenarios(Sizes(scale=0.2))}


class Events(httpx2.AsyncByteStream):
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self.lines:
            yield f"{line}\n\n".encode()


@dataclass
class CannedServer:
    """Answers with the letter that the bias asks for; reuses all it has seen, or nothing.

    Implements `peers.Server`. It tells its counters if `tells`.
    """

    reuses: bool = True
    tells: bool = False
    name: str = "canned"
    model: str = "a model"
    read: int = 0
    last: Reading | None = None
    seen: History = field(default_factory=History)
    encoder: QwenLikePrompts = field(default_factory=QwenLikePrompts)

    @property
    def http(self) -> httpx2.AsyncClient:
        transport = httpx2.MockTransport(self.answer)
        return httpx2.AsyncClient(transport=transport, base_url="http://bench")

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        assert body["model"] == self.model
        prompt = self.encoder.chat(body["messages"], body.get("tools", ())).tokens
        reused = min(self.seen.known(prompt), len(prompt) - 1) if self.reuses else 0
        self.read += len(prompt) - reused
        self.last = Reading(reused, len(prompt) - reused)
        (letter,) = map(int, body["logit_bias"])
        output = [letter] * body["max_tokens"]
        self.seen.add(np.concatenate([prompt, token_ids(output)]))
        return httpx2.Response(200, stream=Events(_lines(prompt, reused, bytes(output).decode())))

    async def read_progress(self) -> ReadProgress | None:
        return (60, 100)

    async def tally(self) -> Tally | None:
        return Tally(self.read, self.seen.distinct * 10) if self.tells else None

    async def last_cancelled(self) -> Reading | None:
        return self.last if self.tells else None


def _lines(prompt: TokenIds, reused: int, text: str) -> list[str]:
    deltas: list[dict[str, Any]] = [{"reasoning_content": letter} for letter in text]
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    details = {"cached_tokens": reused}
    usage = {"prompt_tokens": len(prompt), "prompt_tokens_details": details}
    events = [json.dumps(chunk) for chunk in [*chunks, {"choices": [], "usage": usage}]]
    return [f"data: {event}" for event in [*events, "[DONE]"]]


def played(server: CannedServer, scenario: Scenario, is_cuttable: bool = True) -> ScenarioResult:
    player = Player(server, QwenLikePrompts(), is_cuttable, plain_answers=True)
    return asyncio.run(player.play(scenario))


@pytest.mark.parametrize("name", [name for name in TRAFFIC if "cancel" not in name])
def test_a_server_that_reuses_all_it_has_seen_reads_the_floor(name: str) -> None:
    result = played(CannedServer(), TRAFFIC[name])
    assert [request.read for request in result.requests] == [r.floor for r in result.requests]
    assert result.read_per_floor == 1.0


def test_a_server_that_reuses_nothing_reads_every_prompt() -> None:
    result = played(CannedServer(reuses=False), TRAFFIC["tool loop of 10"])
    assert result.read == result.prompt
    assert result.read_per_floor > 3


def test_where_the_state_cannot_be_cut_the_floor_is_higher() -> None:
    name = "memory: 20 on one head"
    anywhere = played(CannedServer(), TRAFFIC[name])
    at_messages = played(CannedServer(), TRAFFIC[name], is_cuttable=False)
    assert anywhere.floor < at_messages.floor < 2 * anywhere.floor


def test_a_cancelled_request_counts_with_what_the_server_says_of_it() -> None:
    cut, again, *_ = played(CannedServer(tells=True), TRAFFIC["cancel in decode"]).requests
    assert cut.is_cancelled
    assert (cut.reused, cut.read) == (0, cut.prompt)
    assert (again.floor, again.read) == (1, 1)


def test_a_server_that_tells_its_counters_is_believed() -> None:
    server = CannedServer(tells=True)
    result = played(server, TRAFFIC["fork in the middle"])
    assert result.counted_read == server.read == result.read
    assert result.retained == 10 * server.seen.distinct
    assert result.distinct == server.seen.distinct


def test_nothing_is_made_up_where_a_server_is_silent() -> None:
    result = played(CannedServer(), TRAFFIC["cancel in decode"])
    assert result.retained is None
    assert result.counted_read is None
    assert result.requests[0].reused is None
    assert result.requests[0].read is None
