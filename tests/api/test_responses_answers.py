"""Responses as OpenAI's own client library reads them, whole and streamed."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from daemon.api.answer import Collector
from daemon.api.openai_responses import OpenAIResponses
from daemon.api.response_object import ResponsesRequest
from daemon.api.response_store import ResponseStore
from daemon.chat import (
    CallBegun,
    CallDelta,
    CallDone,
    Conversation,
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
from daemon.errors import ContextOverflow, DaemonError, GenerationFailed
from daemon.generation import Usage
from tests.api import responses_sdk as sdk

ENVELOPE = Envelope("resp_1", "some-model", 1_700_000_000)
USAGE = Usage(prompt=100, reused=60, read=40, generated=7, thought=3)
STOP = Ended(EndReason.STOP, USAGE)
CALLS = Ended(EndReason.CALLS, USAGE)
CUT = Ended(EndReason.LENGTH, USAGE)
LS = {"type": "function", "name": "ls", "parameters": {"type": "object"}, "strict": True}
PATCH = {"type": "custom", "name": "patch", "description": "edits"}
AGENTS = {"type": "namespace", "name": "agents", "description": "d", "tools": [LS]}


class Door:
    """The pure door: one dialect with its store, and one request."""

    def __init__(self, **fields: object) -> None:
        self.store = ResponseStore()
        self.dialect = OpenAIResponses(self.store)
        body = json.dumps({"input": "hi", "tools": [LS, PATCH], **fields}).encode()
        self.request: ResponsesRequest = self.dialect.parse(body)

    def whole(self, *events: Event) -> Response:
        return sdk.response(self.reply(*events))

    def reply(self, *events: Event) -> bytes:
        collector = Collector()
        for event in events:
            collector.take(event)
        return self.dialect.reply(collector.completion(ENVELOPE), self.request)

    def stream(self, *events: Event) -> bytes:
        stream = self.dialect.stream(ENVELOPE, self.request)
        return stream.start(Opening(100, 60)) + b"".join(map(stream.encode, events))


def call(index: int, name: str, *fragments: str, is_whole: bool = True) -> list[Event]:
    begun = CallBegun(index, f"call_{index}", name)
    ended = [CallDone(index)] if is_whole else []
    return [begun, *(CallDelta(index, fragment) for fragment in fragments), *ended]


def kinds(stream: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in sdk.events(stream)]


def texts(*said: str) -> list[Event]:
    return [TextDelta(text) for text in said]


def test_a_text_is_a_message_and_its_events_come_in_order() -> None:
    told = Door().stream(*texts("he", "llo"), STOP)
    assert kinds(told) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    [item] = sdk.ended(told)["output"]
    assert (item["role"], item["status"], item["content"][0]["text"]) == (
        "assistant",
        "completed",
        "hello",
    )


ANSWERS: list[list[Event]] = [
    [STOP],
    [*texts("a", "b"), STOP],
    [ThoughtDelta("h"), ThoughtDelta("m"), *texts("so"), STOP],
    [*texts("I call"), *call(0, "ls", '{"a"', ": 1}"), *call(1, "ls", "{}"), CALLS],
    [*call(0, "ls", "{}"), *texts("between"), *call(1, "patch", '{"input": "x"}'), CALLS],
    [ThoughtDelta("hm"), *call(0, "ls", "{}"), CALLS],
    [*texts("cut of"), CUT],
    [*texts("I call"), *call(0, "ls", '{"half": "', is_whole=False), CUT],
    [ThoughtDelta("cut of"), CUT],
    [*call(0, "ls", "{}"), *call(1, "ls", '{"half": "', is_whole=False), CUT],
    [Warned("no call"), *texts("<call>"), STOP],
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_stream_ends_with_what_a_whole_answer_is(answer: list[Event]) -> None:
    for fields in ({}, {"tools": [AGENTS, PATCH], "metadata": {"a": "b"}, "instructions": "i"}):
        door = Door(**fields)
        assert sdk.ended(door.stream(*answer)) == json.loads(door.reply(*answer))
        door.whole(*answer)


SAID = st.one_of(
    st.builds(TextDelta, st.text(min_size=1, max_size=3)),
    st.builds(ThoughtDelta, st.text(min_size=1, max_size=3)),
    st.sampled_from(["ls", "patch"]),
)


@settings(max_examples=60)
@given(st.lists(SAID, max_size=6), st.sampled_from([STOP, CUT]))
def test_whatever_is_said_streamed_is_the_same_as_whole(said: list[Any], end: Ended) -> None:
    events: list[Event] = []
    for index, each in enumerate(said):
        events += call(index, each, '{"input":', ' "é"}') if isinstance(each, str) else [each]
    door = Door()
    streamed = sdk.ended(door.stream(*events, end))
    assert streamed == json.loads(door.reply(*events, end))


def test_calls_have_their_own_ids_and_the_ones_to_echo() -> None:
    door = Door()
    response = door.whole(*call(0, "ls", '{"a": 1}'), *call(1, "ls", "{}"), CALLS)
    first, second = response.output
    assert first.type == second.type == "function_call"
    assert (first.call_id, first.name, first.arguments) == ("call_0", "ls", '{"a": 1}')
    assert second.call_id == "call_1"
    assert first.id != second.id
    assert response.status == "completed"


def test_a_call_in_a_group_is_told_with_its_group_and_its_own_name() -> None:
    misleading = {**AGENTS, "tools": [{**LS, "name": "agents__ls"}]}
    for tools, seen, own in (
        ([AGENTS], "ls", "ls"),
        ([AGENTS, LS], "agents__ls", "ls"),
        ([misleading], "agents__agents__ls", "agents__ls"),
    ):
        door = Door(tools=tools)
        for output in (
            sdk.ended(door.stream(*call(0, seen, "{}"), CALLS))["output"],
            json.loads(door.reply(*call(0, seen, "{}"), CALLS))["output"],
        ):
            assert [(item["name"], item["namespace"]) for item in output] == [(own, "agents")]


def test_a_call_of_free_text_streams_its_text_alone() -> None:
    told = sdk.events(Door().stream(*call(0, "patch", '{"inp', 'ut": "a\\', 'nb"}'), CALLS))
    deltas = [event["delta"] for event in told if event["type"].endswith("input.delta")]
    assert deltas == ["a", "\nb"]
    item = told[-1]["response"]["output"][0]
    assert (item["type"], item["input"], item["call_id"]) == (
        "custom_tool_call",
        "a\nb",
        "call_0",
    )
    assert "arguments" not in item


def test_arguments_of_another_form_reach_a_tool_of_free_text_as_they_are() -> None:
    [item] = sdk.ended(Door().stream(*call(0, "patch", '{"other": 1}'), CALLS))["output"]
    assert item["input"] == '{"other": 1}'


def test_a_call_cut_short_is_never_said_to_be_done() -> None:
    door = Door()
    answer = [*texts("I"), *call(0, "ls", "{}"), *call(1, "ls", '{"path": "/', is_whole=False), CUT]
    told = sdk.events(door.stream(*answer))
    done = [event["item"]["type"] for event in told if event["type"].endswith("item.done")]
    assert done == ["message", "function_call"]
    assert kinds(door.stream(*answer)).count("function_call_arguments.done") == 1
    response = told[-1]["response"]
    assert (response["status"], len(response["output"])) == ("incomplete", 2)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_text_behind_a_call_that_broke_off_does_not_finish_it() -> None:
    answer = [*call(0, "ls", '{"a', is_whole=False), *texts("x"), STOP]
    assert [item["type"] for item in sdk.ended(Door().stream(*answer))["output"]] == ["message"]


def test_an_answer_cut_at_its_limit_is_incomplete() -> None:
    response = Door().whole(*texts("so fa"), CUT)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    [item] = response.output
    assert item.status == "incomplete"
    assert Door().whole(*texts("x"), Ended(EndReason.STOP_STRING, USAGE, "y")).status == "completed"
    repeated = Door().whole(*texts("ha ha"), Ended(EndReason.REPETITION, USAGE))
    assert repeated.status == "incomplete"


def test_a_thought_is_told_as_a_summary_and_comes_back_whole() -> None:
    door = Door()
    output = json.loads(door.reply(ThoughtDelta("first: ü"), *texts("so"), STOP))["output"]
    thought, message = output
    assert (thought["type"], message["type"]) == ("reasoning", "message")
    assert thought["summary"] == [{"type": "summary_text", "text": "first: ü"}]
    bare = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    for echoed in (output, [bare, message], [{**thought, "encrypted_content": "x"}, message]):
        prompt = Door(input=[{"role": "user", "content": "hi"}, *echoed]).request.prompt
        assert isinstance(prompt, Conversation)
        [_, answer] = prompt.messages
        assert (answer.reasoning, answer.text) == ("first: ü", "so")


def test_cached_tokens_are_a_part_of_the_input_and_thoughts_of_the_output() -> None:
    usage = Door().whole(ThoughtDelta("hm"), *texts("x"), STOP).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (100, 7, 107)
    assert usage.input_tokens_details.cached_tokens == 60
    assert usage.output_tokens_details.reasoning_tokens == 3


def test_the_response_repeats_the_request() -> None:
    fields: dict[str, Any] = {
        "instructions": "be brief",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "store": False,
        "temperature": 0.5,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "ls"},
        "tools": [LS, PATCH, AGENTS],
        "top_p": 0.5,
        "top_logprobs": 2,
    }
    door = Door(**fields)
    told = sdk.events(door.stream(*texts("x"), STOP))
    for response in (told[0]["response"], told[1]["response"], told[-1]["response"]):
        assert fields.items() <= response.items()
        assert (response["id"], response["object"], response["model"]) == (
            "resp_1",
            "response",
            "some-model",
        )
        assert response["created_at"] == 1_700_000_000
    assert (told[0]["response"]["status"], told[0]["response"]["output"]) == ("in_progress", [])


def test_tools_that_cannot_run_here_are_not_repeated() -> None:
    response = Door(tools=[{"type": "web_search"}, LS]).whole(*texts("x"), STOP)
    assert [tool.type for tool in response.tools] == ["function"]


def test_silence_is_a_real_event_with_what_is_known() -> None:
    door = Door()
    stream = door.dialect.stream(ENVELOPE, door.request)
    told = stream.start(Opening(100)) + stream.silence()
    told += b"".join(map(stream.encode, [*call(0, "ls", "{}")]))
    told += stream.silence() + stream.encode(CALLS)
    events = sdk.events(told)
    quiet = [event for event in events if event["type"] == "response.in_progress"]
    assert [len(event["response"]["output"]) for event in quiet] == [0, 0, 1]
    sdk.ended(told)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GenerationFailed("A step failed."), "server_error"),
        (ContextOverflow("Too long."), "context_length_exceeded"),
    ],
)
def test_a_stream_that_fails_says_so_and_nothing_like_an_end(error: DaemonError, code: str) -> None:
    door = Door()
    stream = door.dialect.stream(ENVELOPE, door.request)
    told = stream.start(Opening(100))
    told += b"".join(map(stream.encode, [ThoughtDelta("hm"), TextDelta("so fa")]))
    told += stream.fail(error)
    frame = told.decode().split("\n\n")[-2]
    last = json.loads(frame.partition("data: ")[2])
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]
    assert last["response"]["error"] == {"code": code, "message": error.message}
    assert b"response.completed" not in told
    assert len(door.store) == 0


def test_refusals_are_in_openais_envelope() -> None:
    error = ContextOverflow("This model's maximum context length is 5 tokens.", field="input")
    assert json.loads(Door().dialect.error(error, "req_1")) == {
        "error": {
            "message": error.message,
            "type": "invalid_request_error",
            "param": "input",
            "code": "context_length_exceeded",
        }
    }


def scored(*tokens: str) -> Scored:
    never = ScoredText(b"x", -math.inf)
    return Scored(tuple(Score(ScoredText(each.encode(), -0.5), (never,)) for each in tokens))


def test_scores_belong_to_the_tokens_of_the_text_alone() -> None:
    answer: list[Event] = [
        scored("<think>"),
        scored("Hel"),
        scored("lo?"),
        ThoughtDelta("Hello?"),
        scored("</think>"),
        scored("th"),
        TextDelta("th"),
        scored("l"),
        scored("lo"),
        TextDelta("llo"),
        scored("<call>"),
        *call(0, "ls", "{}"),
        CALLS,
    ]
    door = Door(top_logprobs=1)
    whole = json.loads(door.reply(*answer))
    assert whole == sdk.ended(door.stream(*answer))
    told = whole["output"][1]["content"][0]["logprobs"]
    assert [each["token"] for each in told] == ["th", "l", "lo"]
    assert told[0] == {
        "token": "th",
        "bytes": [116, 104],
        "logprob": -0.5,
        "top_logprobs": [{"token": "x", "bytes": [120], "logprob": -9999.0}],
    }


def test_scores_of_text_that_is_held_back_come_with_it() -> None:
    answer: list[Event] = [scored("ab"), scored("c"), TextDelta("ab"), TextDelta("c"), STOP]
    told = sdk.events(Door(top_logprobs=1).stream(*answer))
    deltas = [event["logprobs"] for event in told if event["type"].endswith("text.delta")]
    assert [[each["token"] for each in scores] for scores in deltas] == [["ab"], ["c"]]


def test_what_could_not_be_read_as_a_call_is_text_with_a_warning() -> None:
    response = sdk.ended(Door().stream(Warned("no JSON"), *texts("<call>"), STOP))
    assert response["warnings"] == ["no JSON"]
    assert "warnings" not in json.loads(Door().reply(*texts("x"), STOP))
