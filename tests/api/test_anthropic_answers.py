"""Answers in Anthropic's format: what its own client library reads in them, whole and streamed."""

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from anthropic.types import Message, ThinkingBlock, ToolUseBlock
from anthropic.types.shared import ErrorResponse
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.answer import Collector
from daemon.api.anthropic_messages import AnthropicMessages
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
    PlainText,
    Score,
    Scored,
    ScoredText,
    TextDelta,
    ThoughtDelta,
    Warned,
)
from daemon.errors import (
    BadRequest,
    BodyTooLarge,
    ContextOverflow,
    DaemonError,
    Forbidden,
    GenerationFailed,
    MemoryOverflow,
    MethodNotAllowed,
    ModelUnavailable,
    NotFound,
    Overloaded,
    Unauthorized,
)
from daemon.generation import Usage
from tests.api import anthropic_sdk as sdk

MESSAGES = AnthropicMessages()
ENVELOPE = Envelope("msg_1", "some-model", 1_700_000_000)
REQUEST = ChatRequest(PlainText(""))
OPENING = Opening(100, 60)
USAGE = Usage(prompt=100, reused=60, read=40, generated=7, thought=3)
STOP = Ended(EndReason.STOP, USAGE)


def whole(*events: Event) -> Message:
    collector = Collector()
    for event in events:
        collector.take(event)
    return sdk.message(MESSAGES.reply(collector.completion(ENVELOPE), REQUEST))


def streamed(*events: Event, opening: Opening = OPENING) -> list[dict[str, Any]]:
    stream = MESSAGES.stream(ENVELOPE, REQUEST)
    return sdk.events(stream.start(opening) + b"".join(map(stream.encode, events)))


def call(index: int, *fragments: str, is_whole: bool = True) -> list[Event]:
    begun = [CallBegun(index, f"toolu_{index}", f"tool{index}")]
    ended = [CallDone(index)] if is_whole else []
    return [*begun, *(CallDelta(index, fragment) for fragment in fragments), *ended]


def kinds(told: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in told]


def test_a_reply_has_its_blocks_in_order_with_parsed_arguments() -> None:
    reply = whole(
        ThoughtDelta("be"),
        ThoughtDelta("cause"),
        TextDelta("so "),
        *call(0, '{"line": 3,', '"path": "a"}'),
        TextDelta("and"),
        *call(1, "{}"),
        Ended(EndReason.CALLS, USAGE),
    )
    thought, text, first, also, second = reply.content
    assert isinstance(thought, ThinkingBlock)
    assert (thought.thinking, text.type, also.type) == ("because", "text", "text")
    assert thought.signature
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert (first.id, first.name, first.input) == ("toolu_0", "tool0", {"line": 3, "path": "a"})
    assert second.input == {}
    assert (reply.id, reply.model, reply.stop_reason) == ("msg_1", "some-model", "tool_use")


def test_a_stream_tells_each_block_once_and_the_end_with_the_true_numbers() -> None:
    told = streamed(
        ThoughtDelta("because"),
        TextDelta("so "),
        TextDelta("on"),
        *call(0, '{"a"', ":1}"),
        *call(1, "{}"),
        Ended(EndReason.CALLS, USAGE),
    )
    assert sdk.blocks_in_order(told) == ["thinking", "text", "tool_use", "tool_use"]
    assert kinds(told)[0] == "message_start"
    assert kinds(told)[-2:] == ["message_delta", "message_stop"]
    signed = [event["delta"]["type"] for event in told if event["type"] == "content_block_delta"]
    assert signed[:2] == ["thinking_delta", "signature_delta"]
    assert told[-2]["usage"]["output_tokens"] == 7
    assert told[-2]["usage"]["output_tokens_details"] == {"thinking_tokens": 3}
    assert told[0]["message"]["usage"]["output_tokens"] == 0


@pytest.mark.parametrize("reused", [0, 60, 99])
def test_the_three_parts_of_the_prompt_add_up(reused: int) -> None:
    ended = Ended(EndReason.STOP, Usage(100, reused, 100 - reused, 1))
    told = streamed(TextDelta("x"), ended, opening=Opening(100, 0))
    reply = whole(TextDelta("x"), ended).usage.to_dict()
    for usage in (told[0]["message"]["usage"], told[-2]["usage"], reply):
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert sum(int(str(usage[part])) for part in parts) == 100
    assert told[0]["message"]["usage"]["input_tokens"] == 100
    assert told[-2]["usage"]["cache_read_input_tokens"] == reused
    assert reply["cache_read_input_tokens"] == reused


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (EndReason.STOP, "end_turn"),
        (EndReason.LENGTH, "max_tokens"),
        (EndReason.CALLS, "tool_use"),
        (EndReason.STOP_STRING, "stop_sequence"),
        (EndReason.REPETITION, "max_tokens"),
    ],
)
def test_every_end_has_its_stop_reason(reason: EndReason, told: str) -> None:
    stop = "END" if reason is EndReason.STOP_STRING else None
    ended = Ended(reason, USAGE, stop)
    for message in (whole(ended), sdk.accumulated(streamed(ended))):
        assert (message.stop_reason, message.stop_sequence) == (told, stop)


@pytest.mark.parametrize(
    "fragments", [[], ["{"], ['{"path": "a.py", "text": "x'], ['{"a": 1', "}"], ["{}"]]
)
def test_a_call_that_was_cut_is_never_shown_as_whole(fragments: list[str]) -> None:
    cut = [*call(0, "{}"), *call(1, *fragments, is_whole=False), Ended(EndReason.LENGTH, USAGE)]
    reply = whole(*cut)
    assert [block.type for block in reply.content] == ["tool_use"]
    assert reply.stop_reason == "max_tokens"
    told = streamed(*cut)
    assert sdk.blocks_in_order(told) == ["tool_use"] * (2 if len("".join(fragments)) > 1 else 1)
    assert told[-2]["delta"]["stop_reason"] == "max_tokens"
    json_text = "".join(
        event["delta"]["partial_json"]
        for event in told
        if event["type"] == "content_block_delta" and event["index"] == 1
    )
    with pytest.raises(ValueError, match=r"delimiter|Unterminated|Expecting"):
        json.loads(json_text)


def test_a_stream_that_fails_ends_with_an_error_and_nothing_else() -> None:
    stream = MESSAGES.stream(ENVELOPE, REQUEST)
    frames = stream.start(Opening(100, 60)) + stream.encode(TextDelta("x"))
    frames += stream.fail(GenerationFailed("The step failed."))
    told = sdk.events(frames)
    assert kinds(told)[-1] == "error"
    assert not {"message_delta", "message_stop", "content_block_stop"} & set(kinds(told))
    assert told[-1]["error"] == {"type": "api_error", "message": "The step failed."}
    assert told[-1]["request_id"] == "req_1"


def test_silence_is_a_ping_and_scores_and_warnings_are_not_told() -> None:
    stream = MESSAGES.stream(ENVELOPE, REQUEST)
    assert kinds(sdk.events(stream.silence())) == ["ping"]
    assert stream.encode(Scored((Score(ScoredText(b"x", -1.0)),))) == b""
    assert stream.encode(Warned("a call could not be read")) == b""


def test_an_answer_without_a_word_is_an_answer() -> None:
    assert whole(STOP).content == []
    assert sdk.blocks_in_order(streamed(STOP)) == []


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequest("no"), 400, "invalid_request_error"),
        (Unauthorized("no"), 401, "authentication_error"),
        (Forbidden("no"), 403, "permission_error"),
        (NotFound("no"), 404, "not_found_error"),
        (MethodNotAllowed("no"), 405, "invalid_request_error"),
        (BodyTooLarge("no"), 413, "request_too_large"),
        (Overloaded("no"), 429, "rate_limit_error"),
        (GenerationFailed("no"), 500, "api_error"),
        (ModelUnavailable("no"), 503, "overloaded_error"),
    ],
)
def test_errors_have_the_type_of_their_status(error: DaemonError, status: int, kind: str) -> None:
    told = json.loads(MESSAGES.error(error, "req_7"))
    assert error.status == status
    assert told == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "req_7",
    }
    if kind != "request_too_large":  # which the library's types leave out
        ErrorResponse.model_validate(told)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ContextOverflow("long", tokens=1200, maximum=1000),
            "prompt is too long: 1200 tokens > 1000 maximum",
        ),
        (
            ContextOverflow("long", tokens=1000, maximum=1000, is_at_least=True),
            "prompt is too long: 1001 tokens > 1000 maximum",
        ),
        (
            ContextOverflow("long", tokens=1000, maximum=1000),
            "prompt is too long: 1000 tokens > 999 maximum",
        ),
        (MemoryOverflow("No room."), "prompt is too long: No room."),
    ],
)
def test_an_overflow_is_told_in_the_words_that_make_agents_compact(
    error: DaemonError, words: str
) -> None:
    assert json.loads(MESSAGES.error(error, "req_7"))["error"]["message"] == words


words = st.text(min_size=1, max_size=4)
arguments = st.dictionaries(words, st.integers() | words, max_size=2)


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    """Any answer that ends well, its arguments in fragments."""
    numbers = count()
    said: list[Event] = []
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "call", "score"]), max_size=6)):
        match kind:
            case "text":
                said.append(TextDelta(draw(words)))
            case "thought":
                said.append(ThoughtDelta(draw(words)))
            case "score":
                said.append(Scored((Score(ScoredText(b"x", -0.5)),)))
            case _:
                text = json.dumps(draw(arguments))
                cut = draw(st.integers(1, len(text)))
                fragments = [part for part in (text[:cut], text[cut:]) if part]
                said += call(next(numbers), *fragments)
    reason = EndReason.CALLS if next(numbers) else EndReason.STOP
    return [*said, Ended(reason, USAGE)]


@settings(max_examples=60)
@given(answers())
def test_a_stream_says_what_the_whole_reply_says(events: list[Event]) -> None:
    told = streamed(*events)
    reply = whole(*events)
    assert sdk.blocks_in_order(told) == [block.type for block in reply.content]
    assert sdk.said(sdk.accumulated(told)) == sdk.said(reply)
