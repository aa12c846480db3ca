"""The chat format: what bodies mean, and which are refused with the field that is at fault."""

import json

import pytest

from daemon.api.openai_chat import OpenAIChat
from daemon.chat import (
    ChatRequest,
    Completion,
    Conversation,
    Ended,
    EndReason,
    Envelope,
    Opening,
    TextBlock,
    TextDelta,
)
from daemon.errors import BadRequest, GenerationFailed
from daemon.generation import Usage

CHAT = OpenAIChat()
ENVELOPE = Envelope("chatcmpl-1", "some-model", 1_700_000_000)
OPENING = Opening(10, 4)
HELLO = (TextBlock("hello"),)
USER = {"role": "user", "content": "hi"}


def parsed(**fields: object) -> ChatRequest:
    return CHAT.parse(json.dumps({"messages": [USER], **fields}).encode())


def rendered(*messages: object) -> list[dict[str, object]]:
    """The messages as the model's template would see them."""
    prompt = parsed(messages=list(messages)).prompt
    assert isinstance(prompt, Conversation)
    return [message.for_template() for message in prompt.messages]


def refusal(**fields: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parsed(**fields)
    assert "pydantic" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("content", [None, "", []])
def test_no_content_beside_a_call_is_empty_text_and_the_call_is_kept(content: object) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    message = {"role": "assistant", "content": content, "tool_calls": [call]}
    without = {"role": "assistant", "tool_calls": [call]}
    assert rendered(message) == rendered(without)
    assert rendered(message)[0] == {"role": "assistant", "content": "", "tool_calls": [call]}


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_and_one_part_are_the_same_and_two_parts_are_lines(role: str) -> None:
    part = {"type": "text", "text": "one", "cache_control": {"type": "ephemeral"}}
    as_text = rendered({"role": role, "content": "one"})
    assert rendered({"role": role, "content": [part]}) == as_text
    assert rendered({"role": role, "content": ["one"]}) == as_text
    two = [part, {"type": "text", "text": "two"}]
    assert rendered({"role": role, "content": two})[0]["content"] == "one\ntwo"


def test_developer_messages_are_system_messages_in_their_own_place() -> None:
    late = rendered(USER, {"role": "developer", "content": "be brief"})
    assert late == [USER, {"role": "system", "content": "be brief"}]


@pytest.mark.parametrize("arguments", ['{"city":"Oslo"}', {"city": "Oslo"}, "", "not JSON"])
def test_arguments_reach_the_template_as_they_were_sent(arguments: object) -> None:
    call = {"id": "c1", "function": {"name": "go", "arguments": arguments}, "index": 3}
    message = rendered({"role": "assistant", "tool_calls": [call]})[0]
    expected = {"id": "c1", "type": "function", "function": {"name": "go", "arguments": arguments}}
    assert message["tool_calls"] == [expected]


def test_reasoning_and_tool_results_keep_their_own_fields() -> None:
    thought = {"role": "assistant", "content": "a", "reasoning_content": "because"}
    result = {"role": "tool", "content": "ok", "tool_call_id": "c1", "name": "ls"}
    assert rendered(thought, result) == [thought, result]


def test_tools_reach_the_template_nested_with_their_keys_in_order() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    function = {"name": "ls", "description": "list", "parameters": schema}
    other = {**function, "name": "dir"}
    tools = [
        {"type": "function", "function": function},
        {"type": "function", **other},
        {"type": "web_search"},
        {"type": "function", "function": {"name": "ls"}},
    ]
    prompt = parsed(tools=tools, tool_choice="auto").prompt
    assert isinstance(prompt, Conversation)
    seen = [tool.for_template() for tool in prompt.tools]
    expected = [{"type": "function", "function": each} for each in (function, other)]
    assert json.dumps(seen) == json.dumps(expected)


def test_template_options_are_passed_on() -> None:
    prompt = parsed(chat_template_kwargs={"enable_thinking": False}).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.options == {"enable_thinking": False}


def test_a_silent_request_has_no_wishes() -> None:
    request = parsed(some_unknown_field={"deep": [1]}, user="me", store=False)
    ignored = ("some_unknown_field", "user", "store")
    assert request == ChatRequest(prompt=request.prompt, ignored=ignored)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 10}, 10),
        ({"max_tokens": 7, "max_completion_tokens": 10}, 10),
        ({"max_tokens": 7, "max_completion_tokens": None}, 7),
        ({"max_tokens": 7, "max_completion_tokens": -1}, None),
    ],
)
def test_the_newer_limit_wins_and_minus_one_is_none(
    fields: dict[str, object], limit: int | None
) -> None:
    assert parsed(**fields).max_tokens == limit


@pytest.mark.parametrize(
    ("stop", "strings"), [("x", ("x",)), (["a", "", "b"], ("a", "b")), (None, ()), ("", ())]
)
def test_stop_is_a_string_or_a_list_and_empty_ones_stop_nothing(
    stop: object, strings: tuple[str, ...]
) -> None:
    assert parsed(stop=stop).stop == strings


AUDIO = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
LS = {"type": "function", "function": {"name": "ls"}}


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [USER, 3]}, "messages[1]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [USER, USER, {"role": "user", "content": ["x", AUDIO]}]},
            "messages[2].content[1]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": {"five": 1}}, "logit_bias.five"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": 5}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": 2}, "n"),
        ({"logprobs": "all"}, "logprobs"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "messages[0].content[0]"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"tools": [LS], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [LS], "tool_choice": 5}, "tool_choice"),
        ({"tools": [LS], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [LS], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
        ({"functions": [{"name": "x"}], "function_call": "required-ish"}, "function_call"),
        ({"reasoning_effort": "wild"}, "reasoning_effort"),
        ({"reasoning": {"effort": "wild"}}, "reasoning.effort"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"guided_json": {"type": "object"}}, "guided_json"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(
    fields: dict[str, object], at_fault: str
) -> None:
    error = refusal(**fields)
    assert (error.status, error.field) == (400, at_fault)
    assert at_fault in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"logprobs": False},
        {"top_logprobs": None},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"tool_choice": "auto"},
        {"logprobs": None, "top_logprobs": 0},
        {"parallel_tool_calls": True},
        {"functions": []},
        {"stream_options": None},
    ],
)
def test_what_asks_for_the_usual_is_accepted(fields: dict[str, object]) -> None:
    assert parsed(**fields) == parsed()


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"[]", b"nonsense", b"\xff\xfe", b"null", b'{"messages":[{]}', b"[" * 100_000],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        CHAT.parse(body)
    assert caught.value.code == "invalid_json"


def test_deep_nesting_in_a_field_nobody_reads_is_refused_too() -> None:
    body = b'{"messages":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    with pytest.raises(BadRequest, match="recursion"):
        CHAT.parse(body)


@pytest.mark.parametrize(
    ("body", "at_fault"),
    [
        (rb'{"messages":[{"role":"user","content":"\ud83d"}]}', "messages[0].content"),
        (
            rb'{"messages":[{"role":"tool","content":[{"type":"text","text":"a\udc00b"}]}]}',
            "messages[0].content[0].text",
        ),
        (rb'{"tools":[{"function":{"name":"\ud83d x"}}]}', "tools[0].function.name"),
        (rb'{"messages":[{"\ud83d":1}]}', "messages[0]"),
    ],
)
def test_half_a_surrogate_pair_is_refused_where_it_stands(body: bytes, at_fault: str) -> None:
    with pytest.raises(BadRequest) as caught:
        CHAT.parse(body)
    assert (caught.value.field, caught.value.code) == (at_fault, "invalid_unicode")
    CHAT.error(caught.value, "req_1").decode()


def test_both_halves_together_are_one_character() -> None:
    body = rb'{"messages":[{"role":"user","content":"\ud83d\ude00"}]}'
    prompt = CHAT.parse(body).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.messages[0].text == "😀"


def objects(frames: bytes) -> list[dict[str, object]]:
    lines = frames.decode().split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


def test_a_stream_has_the_role_first_and_a_reason_and_one_done_last() -> None:
    stream = CHAT.stream(ENVELOPE, parsed(stream=True))
    end = stream.encode(Ended(EndReason.LENGTH, Usage(3, 0, 3, 2)))
    frames = stream.start(OPENING) + stream.encode(TextDelta('"é\n')) + end
    first, text, last = objects(frames)
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    ]
    assert text == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "some-model",
        "choices": [{"index": 0, "delta": {"content": '"é\n'}, "finish_reason": None}],
    }
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]
    assert frames.count(b"[DONE]") == 1
    assert frames.endswith(b"data: [DONE]\n\n")


def test_the_usage_chunk_comes_exactly_when_it_is_asked_for() -> None:
    usage = Usage(prompt=10, reused=4, read=6, generated=3, thought=2)
    ended = Ended(EndReason.STOP, usage)
    asked = CHAT.stream(ENVELOPE, parsed(stream_options={"include_usage": True})).encode(ended)
    *others, last = objects(asked)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    unasked = objects(CHAT.stream(ENVELOPE, parsed()).encode(ended))
    assert len(unasked) == len(others) == 1
    assert not any("usage" in chunk for chunk in unasked + others)


def test_a_stream_that_fails_says_so_and_is_not_done() -> None:
    frames = CHAT.stream(ENVELOPE, parsed()).fail(GenerationFailed("it broke"))
    assert objects(frames) == [
        {
            "error": {
                "message": "it broke",
                "type": "server_error",
                "param": None,
                "code": "generation_failed",
            }
        }
    ]
    assert b"[DONE]" not in frames


@pytest.mark.parametrize("reason", list(EndReason))
def test_a_whole_answer_says_what_a_stream_says(reason: EndReason) -> None:
    ended = Ended(reason, Usage(10, 4, 6, 3))
    reply = json.loads(CHAT.reply(Completion(ENVELOPE, HELLO, ended), parsed()))
    options = {"include_usage": True}
    finish, usage = objects(CHAT.stream(ENVELOPE, parsed(stream_options=options)).encode(ended))
    assert reply["choices"][0]["message"]["content"] == "hello"
    assert reply["choices"][0]["finish_reason"] == finish["choices"][0]["finish_reason"]  # type: ignore[index]
    assert reply["usage"] == usage["usage"]
    assert reply["object"] == "chat.completion"
