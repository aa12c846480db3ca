"""Answers in the chat format: thoughts, calls and scores, whole and as chunks that add up."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from daemon.api.answer import Collector
from daemon.api.openai_chat import OpenAIChat
from daemon.chat import (
    CallBegun,
    CallDelta,
    CallDone,
    ChatRequest,
    Ended,
    EndReason,
    Envelope,
    Event,
    Opening,
    Score,
    Scored,
    ScoredText,
    TextDelta,
    ThoughtDelta,
    Warned,
)
from daemon.generation import Usage

CHAT = OpenAIChat()
ENVELOPE = Envelope("chatcmpl-1", "some-model", 1_700_000_000)
USAGE = Usage(10, 4, 6, 3)
STOP, CALLS = Ended(EndReason.STOP, USAGE), Ended(EndReason.CALLS, USAGE)
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "ls"}},
    {"type": "custom", "custom": {"name": "patch"}},
]
TWO_CALLS: list[Event] = [
    ThoughtDelta("let me"),
    ThoughtDelta(" see"),
    TextDelta("Now:"),
    CallBegun(0, "call_10", "ls"),
    CallDelta(0, '{"a"'),
    CallDelta(0, ": 1}"),
    CallDone(0),
    TextDelta(" and "),
    CallBegun(1, "call_11", "patch"),
    CallDelta(1, '{"input": "x\\'),
    CallDelta(1, 'ny"}'),
    CallDone(1),
    CALLS,
]


def parsed(**fields: Any) -> ChatRequest:
    return CHAT.parse(json.dumps({"messages": [{"role": "user"}], **fields}).encode())


def replied(events: Sequence[Event], **fields: Any) -> dict[str, Any]:
    collector = Collector()
    for event in events:
        collector.take(event)
    reply = json.loads(CHAT.reply(collector.completion(ENVELOPE), parsed(**fields)))
    assert isinstance(reply, dict)
    return reply


def chunks(events: Sequence[Event], **fields: Any) -> list[dict[str, Any]]:
    stream = CHAT.stream(ENVELOPE, parsed(stream=True, **fields))
    frames = stream.start(Opening(10)) + b"".join(stream.encode(event) for event in events)
    *lines, done, nothing = frames.decode().split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def added_up(streamed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The choice of a whole answer, as a client makes it from chunks."""
    message: dict[str, Any] = {"content": "", "reasoning_content": ""}
    calls: dict[int, dict[str, Any]] = {}
    scores: list[Any] = []
    choices = [choice for chunk in streamed for choice in chunk["choices"]]
    for choice in choices:
        delta = choice["delta"]
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name, "")
        for call in delta.get("tool_calls", ()):
            known = calls.setdefault(call["index"], {"function": {}, "custom": {}})
            known.update({name: call[name] for name in ("id", "type") if name in call})
            for kind in ("function", "custom"):
                for name, text in call.get(kind, {}).items():
                    known[kind][name] = known[kind].get(name, "") + text
        for name, text in delta.get("function_call", {}).items():
            called = message.setdefault("function_call", {})
            called[name] = called.get(name, "") + text
        scores += (choice.get("logprobs") or {}).get("content", ())
    assert list(calls) == list(range(len(calls)))
    told = [{"id": c["id"], "type": c["type"], c["type"]: c[c["type"]]} for c in calls.values()]
    return {
        "message": {**message, **({"tool_calls": told} if told else {})},
        "finish_reason": choices[-1]["finish_reason"],
        "scores": scores,
    }


def test_chunks_add_up_to_the_whole_answer() -> None:
    [choice] = replied(TWO_CALLS, tools=TOOLS)["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Now: and ",
        "refusal": None,
        "reasoning_content": "let me see",
        "tool_calls": [
            {
                "id": "call_10",
                "type": "function",
                "function": {"name": "ls", "arguments": '{"a": 1}'},
            },
            {"id": "call_11", "type": "custom", "custom": {"name": "patch", "input": "x\ny"}},
        ],
    }
    assert choice["finish_reason"] == "tool_calls"
    whole = added_up(chunks(TWO_CALLS, tools=TOOLS))
    expected = {name: choice["message"][name] for name in whole["message"]}
    assert whole["message"] == expected
    assert whole["finish_reason"] == "tool_calls"


def test_a_call_begins_with_its_name_and_goes_on_with_fragments() -> None:
    streamed = chunks([*TWO_CALLS[3:7], CALLS], tools=TOOLS)
    told = [chunk["choices"][0]["delta"] for chunk in streamed]
    begun, *fragments = [delta["tool_calls"] for delta in told if "tool_calls" in delta]
    function = {"name": "ls", "arguments": ""}
    assert begun == [{"index": 0, "id": "call_10", "type": "function", "function": function}]
    assert fragments == [
        [{"index": 0, "function": {"arguments": text}}] for text in ('{"a"', ": 1}")
    ]


def test_what_a_tool_of_free_text_got_in_another_form_is_not_lost() -> None:
    events = [CallBegun(0, "c", "patch"), CallDelta(0, '{"x": 1}'), CallDone(0), CALLS]
    told = {"name": "patch", "input": '{"x": 1}'}
    assert replied(events, tools=TOOLS)["choices"][0]["message"]["tool_calls"][0]["custom"] == told
    assert added_up(chunks(events, tools=TOOLS))["message"]["tool_calls"][0]["custom"] == told


def test_content_is_null_beside_calls_alone_and_empty_where_there_is_nothing() -> None:
    calls = replied([*TWO_CALLS[3:7], CALLS], tools=TOOLS)["choices"][0]["message"]
    assert calls["content"] is None
    nothing = replied([STOP])["choices"][0]["message"]
    assert nothing == {"role": "assistant", "content": "", "refusal": None}


def test_a_call_that_was_cut_is_no_call() -> None:
    events = [*TWO_CALLS[2:5], Ended(EndReason.LENGTH, USAGE)]
    [choice] = replied(events, tools=TOOLS)["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Now:", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert chunks(events, tools=TOOLS)[-1]["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_behind_a_call_does_not_take_it_back() -> None:
    events = [*TWO_CALLS[3:7], Ended(EndReason.STOP_STRING, USAGE, "x")]
    assert replied(events, tools=TOOLS)["choices"][0]["finish_reason"] == "tool_calls"
    assert added_up(chunks(events, tools=TOOLS))["finish_reason"] == "tool_calls"


def test_an_older_function_is_called_in_the_older_form() -> None:
    events, functions = [*TWO_CALLS[3:7], CALLS], [{"name": "ls"}]
    [choice] = replied(events, functions=functions)["choices"]
    called = {"name": "ls", "arguments": '{"a": 1}'}
    assert choice["message"]["function_call"] == called
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "function_call"
    whole = added_up(chunks(events, functions=functions))
    assert whole["message"]["function_call"] == called
    assert whole["finish_reason"] == "function_call"


LIKELY = (ScoredText(b"a", -0.5), ScoredText(b"\xf0\x9f", float("-inf")))
SCORES = [
    Scored((Score(ScoredText(b"a", -0.5), LIKELY), Score(ScoredText(b"b", -1.0)))),
    TextDelta("ab"),
    Scored((Score(ScoredText(b"", -2.0)),)),
    STOP,
]
TOLD = [
    {
        "token": "a",
        "logprob": -0.5,
        "bytes": [97],
        "top_logprobs": [
            {"token": "a", "logprob": -0.5, "bytes": [97]},
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [240, 159]},
        ],
    },
    {"token": "b", "logprob": -1.0, "bytes": [98], "top_logprobs": []},
    {"token": "", "logprob": -2.0, "bytes": [], "top_logprobs": []},
]


def test_scores_are_told_with_the_text_and_none_is_lost() -> None:
    assert replied(SCORES, logprobs=True)["choices"][0]["logprobs"]["content"] == TOLD
    _, text, _ = streamed = chunks(SCORES, logprobs=True)
    assert added_up(streamed)["scores"] == TOLD
    assert text["choices"][0]["delta"] == {"content": "ab"}
    assert len(text["choices"][0]["logprobs"]["content"]) == 2


def test_without_being_asked_for_scores_are_null() -> None:
    assert replied([TextDelta("a"), STOP])["choices"][0]["logprobs"] is None
    assert "logprobs" not in chunks([TextDelta("a"), STOP])[1]["choices"][0]


@pytest.mark.parametrize("warnings", [[], ["that was no call", "nor was that"]])
def test_what_an_author_should_know_stands_beside_the_answer(warnings: list[str]) -> None:
    events = [*(Warned(each) for each in warnings), STOP]
    assert replied(events).get("warnings", []) == warnings
    assert chunks(events)[-1].get("warnings", []) == warnings
