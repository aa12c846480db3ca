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
from daemon.bench.traffic import Conversation, Interruption, Scenario
from mlx_backend.messages import token_ids
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
    """Answers with the letter that the bias asks for; reuses all it has seen, or nothing. It has
    that after an interruption, too, if it `saves`.

    Implements `peers.Server`. It tells its counters if `tells`. It makes the call that is asked
    for if `calls`, and has its own words for it in later prompts if `remembers`.
    """

    reuses: bool = True
    calls: bool = True
    remembers: bool = True
    tells: bool = False
    saves: bool = True
    name: str = "canned"
    model: str = "a model"
    read: int = 0
    last: Reading | None = None
    seen: History = field(default_factory=History)
    encoder: QwenLikePrompts = field(default_factory=QwenLikePrompts)
    called: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    saved: History = field(default_factory=History)
    interrupted: list[Interruption] = field(default_factory=list)

    @property
    def http(self) -> httpx2.AsyncClient:
        transport = httpx2.MockTransport(self.answer)
        return httpx2.AsyncClient(transport=transport, base_url="http://bench")

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        assert body["model"] == self.model
        self.asked.append(body)
        messages = [self._as_called(message) for message in body["messages"]]
        prompt = self.encoder.chat(messages, body.get("tools", ())).tokens
        reused = min(self.seen.known(prompt), len(prompt) - 1) if self.reuses else 0
        self.read += len(prompt) - reused
        self.last = Reading(reused, len(prompt) - reused)
        letter = next(int(token) for token, bias in body["logit_bias"].items() if bias > 0)
        thought = chr(letter) * body["max_tokens"]
        deltas: list[dict[str, Any]] = [{"reasoning_content": letter} for letter in thought]
        output = thought
        if self.calls and body.get("tool_choice") == "required":
            call = self._call()
            deltas, output = _in_pieces(call), _written(call["function"])
        self.seen.add(np.concatenate([prompt, token_ids(list(output.encode()))]))
        lines = _lines(len(prompt), reused, deltas, len(output))
        return httpx2.Response(200, stream=Events(lines))

    def _call(self) -> dict[str, Any]:
        """As long as a client writes it anew, in another order."""
        number = len(self.called)
        arguments = json.dumps({"path": f"{number}.py", "line": number}, separators=(",", ":"))
        function = {"name": "find", "arguments": arguments}
        self.called[f"call_{number}"] = function
        return {"id": f"call_{number}", "type": "function", "function": function}

    def _as_called(self, message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls") or ()
        if not self.remembers or not all(call["id"] in self.called for call in calls):
            return message
        return message | {"tool_calls": [{"function": self.called[call["id"]]} for call in calls]}

    async def read_progress(self) -> ReadProgress | None:
        return (60, 100)

    async def tally(self) -> Tally | None:
        return Tally(self.read, self.seen.distinct * 10) if self.tells else None

    async def last_cancelled(self) -> Reading | None:
        return self.last if self.tells else None

    async def interrupt(self, interruption: Interruption) -> None:
        """Its counters begin again. What it has seen stays, but for what a kill takes: all that
        it saw since it was interrupted last; or all, if it does not save."""
        self.interrupted.append(interruption)
        if interruption in (Interruption.RESTART, Interruption.KILL):
            self.read = 0
        if interruption is not Interruption.KILL:
            self.saved = self.seen.copy() if self.saves else History()
        if interruption is Interruption.KILL or not self.saves:
            self.seen = self.saved.copy()


def _in_pieces(call: dict[str, Any]) -> list[dict[str, Any]]:
    """The deltas of a call: its name, then its arguments in two parts."""
    arguments = call["function"]["arguments"]
    begun = {**call, "index": 0, "function": {**call["function"], "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": a}} for a in (arguments[:9], arguments[9:])]
    return [{"tool_calls": [part]} for part in [begun, *rest]]


def _written(function: dict[str, str]) -> str:
    """A call as it is sampled behind an open thought; history says the same."""
    return f"\n</think>\n\n\n<tool_call>{json.dumps(function)}</tool_call>"


def _lines(prompt: int, reused: int, deltas: list[dict[str, Any]], generated: int) -> list[str]:
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    usage = {
        "prompt_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": reused},
        "completion_tokens": generated,
    }
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


def test_a_client_that_writes_calls_anew_sends_their_own_ids_and_meaning() -> None:
    server = CannedServer()
    played(server, TRAFFIC["tool loop, calls rewritten"])
    assert [body.get("tool_choice") for body in server.asked] == ["required"] * 10 + [None]
    *_, calling, result = server.asked[-1]["messages"]
    (call,) = calling["tool_calls"]
    assert (call["id"], result["tool_call_id"]) == ("call_9", "call_9")
    assert call["function"] == {"name": "find", "arguments": '{"line":9,"path":"9.py"}'}


def test_a_server_that_takes_a_call_written_anew_for_another_reads_it_again() -> None:
    forgetful = CannedServer(remembers=False)
    as_sent = played(forgetful, TRAFFIC["tool loop of 10"])
    rewritten = played(forgetful, TRAFFIC["tool loop, calls rewritten"])
    assert as_sent.read_per_floor == 1.0
    assert rewritten.read_per_floor > 1.05
    later = rewritten.requests[1:]
    assert all(request.read > request.floor for request in later)


def test_the_floor_after_a_call_is_its_result_and_nothing_of_the_call() -> None:
    server = CannedServer()
    first, second, *_ = played(server, TRAFFIC["tool loop of 10"]).requests
    called = len(_written(server.called["call_0"]))
    assert second.floor == second.prompt - first.prompt - called


def test_a_server_that_makes_no_call_gets_scripted_ones() -> None:
    server = CannedServer(calls=False)
    result = played(server, TRAFFIC["tool loop of 10"])
    assert result.read_per_floor == 1.0
    (call,) = server.asked[1]["messages"][-2]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"path": "src/module_0.py"}


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


BETWEEN = [name for name in TRAFFIC if TRAFFIC[name].is_interrupted]


@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_read_is_counted_over_all_lives_of_a_server_that_saves(name: str) -> None:
    server = CannedServer(tells=True)
    result = played(server, TRAFFIC[name])
    assert server.interrupted == [s for s in TRAFFIC[name].steps if isinstance(s, Interruption)]
    assert result.counted_read == sum(request.read or 0 for request in result.requests)
    assert result.read_per_floor == 1.0
    assert result.retained is None, "it was given back in between"


@pytest.mark.parametrize("name", BETWEEN)
def test_a_server_that_saves_nothing_reads_more_than_it_must(name: str) -> None:
    assert played(CannedServer(saves=False), TRAFFIC[name]).read_per_floor > 1.5


def test_after_a_kill_what_was_saved_before_is_not_to_be_read_again_and_the_rest_is() -> None:
    talk = Conversation().system("a head " * 50).user("one")
    longer = talk.user("and more " * 50)
    steps = (
        (talk.request("saved"),),
        Interruption.SAVE,
        (longer.request("lost"),),
        Interruption.KILL,
        (longer.request("again"),),
        Interruption.KILL,
        (longer.request("and again"),),
    )
    saved, lost, again, and_again = played(CannedServer(), Scenario("kill", steps)).requests
    assert lost.floor == again.floor == and_again.floor > 400
    assert lost.floor < lost.prompt - saved.prompt / 2
