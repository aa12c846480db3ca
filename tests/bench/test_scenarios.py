"""The traffic: deterministic, complete, and of the shapes it claims to have."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from daemon.bench.client import BenchFailed
from daemon.bench.run import BenchOptions, chosen, fitting
from daemon.bench.scenarios import SCENARIOS, Sizes, all_scenarios
from daemon.bench.texts import Author
from daemon.bench.traffic import Answer, Conversation, Echo, Scenario, Spelling, ToolCall
from tests.bench.qwen_like import QwenLikePrompts

ALL = all_scenarios(Sizes())


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_a_scenario_echoes_only_what_was_answered_in_an_earlier_wave(scenario: Scenario) -> None:
    answered: set[str] = set()
    for wave in scenario.waves:
        for request in wave:
            echoes = {m.label for m in request.messages if isinstance(m, Echo)}
            assert echoes <= answered, request.label
        answered |= {request.label for request in wave}
    assert len(answered) == len(scenario.requests), "labels repeat"


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_requests_are_json_that_a_chat_server_takes(scenario: Scenario) -> None:
    answers = {request.label: Answer("text", "thought") for request in scenario.requests}
    for request in scenario.requests:
        messages = request.resolve(answers)
        json.dumps([messages, request.tools])
        assert messages[-1]["role"] in ("user", "tool")
        calls = [c["id"] for m in messages for c in m.get("tool_calls", ())]
        results = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
        assert calls == results


def test_equal_seeds_write_equal_traffic_and_others_share_nothing() -> None:
    assert all_scenarios(Sizes()) == ALL
    other = all_scenarios(Sizes(seed="1"))
    for mine, theirs in zip(ALL, other, strict=True):
        assert mine.requests[0].messages[-1] != theirs.requests[0].messages[-1]


def test_texts_have_about_the_size_that_was_asked_for() -> None:
    author = Author("seed", characters_per_token=4.0)
    assert 4000 <= len(author.prose("a", 1000)) < 4200
    assert 4000 <= len(author.source("a.py", 1000)) < 4200
    tools = json.dumps(author.tools("agent", 8, 2000))
    assert 7500 <= len(tools) < 9000


def test_the_named_scenarios_are_all_there() -> None:
    """Those that the project's targets name, by a word of each."""
    words = (
        "decode",
        "60 %",
        "loop of",
        "rewritten",
        "trimmed",
        "after thoughts",
        "in turn",
        "at once",
        "fork in",
        "undo",
        "ring",
        "side calls",
    )
    words += ("compaction", "tools in front", "earlier thinking", "own system", "memory")
    words += ("restart between", "unload between", "across a restart", "kill")
    assert [sum(word in name for name in SCENARIOS) for word in words] == [1] * len(SCENARIOS)


def test_scenarios_are_chosen_by_a_word_of_their_name() -> None:
    assert [s.name for s in chosen(ALL, ["ring", "compaction"])] == [
        "ring of 14 sessions",
        "compaction in the middle",
    ]
    assert chosen(ALL, []) == ALL
    with pytest.raises(BenchFailed, match="compaction"):
        chosen(ALL, ["nothing like it"])


def test_a_conversation_that_grows_leaves_its_fork_alone() -> None:
    trunk = Conversation().system("s").user("u")
    said = trunk.answered("b", "hm").request("c").resolve({"b": Answer("said", "more")})
    assert said[2] == {"role": "assistant", "content": "said", "reasoning_content": "morehm"}
    left, right = trunk.answered("a"), trunk.worked("b", {"x.py": "text"}, "hm")
    assert len(trunk.messages) == 2
    assert left.messages[:2] == right.messages[:2] == trunk.messages
    resolved = right.request("c").resolve({"b": Answer("said", "more")})
    assert resolved[2]["content"] == "", "what was sampled was the call"
    assert resolved[2]["reasoning_content"] == "hm"
    assert json.loads(resolved[2]["tool_calls"][0]["function"]["arguments"]) == {"path": "x.py"}
    assert resolved[3] == {"role": "tool", "tool_call_id": "call_b_0", "content": "text"}


def test_an_answer_comes_back_with_its_own_calls_spelled_as_the_client_spells() -> None:
    sent = ToolCall("id", "find", '{"a": 1, "b": [2]}')
    answers = {"x": Answer(" said\n", "hm", (sent,))}
    asked = Conversation().user("u")

    def echoed(spelling: Spelling) -> list[dict[str, Any]]:
        return asked.worked("x", {"f": "r"}, spelling=spelling).request("y").resolve(answers)[1:]

    calling, result = echoed(Spelling.AS_SENT)
    assert calling["content"] == " said\n"
    assert calling["tool_calls"] == [sent.message_part()]
    assert result["tool_call_id"] == "id"
    calling, _ = echoed(Spelling.REWRITTEN)
    assert calling["content"] == "said"
    assert calling["tool_calls"][0]["function"]["arguments"] == '{"b":[2],"a":1}'
    cut = replace(sent, arguments='{"a": 1, "b')
    assert cut.rewritten() == cut


def test_a_call_that_is_asked_for_is_bounded() -> None:
    """Otherwise a model of random weights would never end it."""
    for tool in Author("seed").tools("agent", 3, 900):
        schema = tool["function"]["parameters"]
        assert set(schema["required"]) == set(schema["properties"])
        assert schema["additionalProperties"] is False
        for property_ in schema["properties"].values():
            assert "maxLength" in property_ or property_["maximum"] < 100


def test_texts_shrink_until_every_prompt_fits_the_context() -> None:
    encoder = QwenLikePrompts()
    context_size = 8_000
    longest = 0
    for scenario in fitting(encoder, BenchOptions(), context_size):
        answers = {request.label: Answer("answer") for request in scenario.requests}
        for request in scenario.requests:
            longest = max(longest, len(encoder.chat(request.resolve(answers), request.tools)))
    assert 0.7 * context_size < longest < context_size
    assert fitting(encoder, BenchOptions(), 60_000) == fitting(encoder, BenchOptions(), 90_000)
