"""Tools, the choice among them, effort and formats: what chat bodies say of them."""

import json
from typing import Any

import pytest

from daemon.api.openai_chat import OpenAIChat
from daemon.chat import CallRule, ChatRequest, Conversation, ToolChoice
from daemon.errors import BadRequest
from mlx_backend.messages import Effort

USER = {"role": "user", "content": "hi"}
LS = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}
RM = {"type": "function", "name": "rm"}
PATCH = {
    "type": "custom",
    "custom": {
        "name": "patch",
        "description": "Edits.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: X"}},
    },
}


def parsed(**fields: Any) -> ChatRequest:
    return OpenAIChat().parse(json.dumps({"messages": [USER], **fields}).encode())


def conversation(**fields: Any) -> Conversation:
    prompt = parsed(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "rule", "names"),
    [
        (None, CallRule.AUTO, ()),
        ("auto", CallRule.AUTO, ()),
        ("none", CallRule.NONE, ()),
        ("required", CallRule.REQUIRED, ()),
        ({"type": "function", "function": {"name": "ls"}}, CallRule.REQUIRED, ("ls",)),
        ({"type": "function", "name": "ls"}, CallRule.REQUIRED, ("ls",)),
        ({"type": "custom", "custom": {"name": "patch"}}, CallRule.REQUIRED, ("patch",)),
        (allowed("auto", "ls"), CallRule.AUTO, ("ls",)),
        (allowed("required", "ls", "rm"), CallRule.REQUIRED, ("ls", "rm")),
        (allowed("auto"), CallRule.NONE, ()),
    ],
)
def test_a_choice_is_a_word_a_tool_or_those_that_are_allowed(
    choice: Any, rule: CallRule, names: tuple[str, ...]
) -> None:
    request = parsed(tools=[LS, RM, PATCH], tool_choice=choice)
    assert request.tool_choice == ToolChoice(rule, names)
    once = parsed(tools=[LS, RM, PATCH], tool_choice=choice, parallel_tool_calls=False)
    assert once.tool_choice == ToolChoice(rule, names, may_repeat=False)


@pytest.mark.parametrize(
    ("choice", "rule", "names"),
    [
        (None, CallRule.AUTO, ()),
        ("none", CallRule.NONE, ()),
        ({"name": "x"}, CallRule.REQUIRED, ("x",)),
    ],
)
def test_older_functions_are_tools_that_are_called_one_at_a_time(
    choice: Any, rule: CallRule, names: tuple[str, ...]
) -> None:
    request = parsed(functions=[{"name": "x", "parameters": {}}], function_call=choice)
    assert [tool.name for tool in request.tools] == ["x"]
    assert request.tool_choice == ToolChoice(rule, names, may_repeat=False)
    assert request.fields.tool_choice == "function_call"


def test_a_tool_of_free_text_is_shown_as_a_function_of_one_string() -> None:
    [tool] = conversation(tools=[PATCH]).tools
    assert tool.is_free_text
    shown = tool.for_template()["function"]
    assert list(shown["parameters"]["properties"]) == ["input"]
    assert "start: X" in shown["description"]


def test_an_echoed_call_of_a_free_text_is_shown_as_it_was_sampled() -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}}
    [message] = conversation(messages=[{"role": "assistant", "tool_calls": [call]}]).messages
    assert message.tool_calls[0].for_template()["function"] == {
        "name": "patch",
        "arguments": {"input": "a\nb"},
    }


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, Effort()),
        ({"reasoning_effort": "high"}, Effort(True, "high")),
        ({"reasoning_effort": "minimal"}, Effort(None, "minimal")),
        ({"reasoning_effort": "none"}, Effort(False)),
        ({"reasoning": {"effort": "low"}}, Effort(True, "low")),
        ({"reasoning": {"enabled": False}}, Effort(False)),
        ({"reasoning": {"enabled": True, "effort": "low"}}, Effort(True, "low")),
        ({"reasoning": {}}, Effort()),
        ({"enable_thinking": False}, Effort(False)),
        ({"thinking": {"type": "enabled"}}, Effort(True)),
        ({"thinking": {"type": "disabled"}}, Effort(False)),
    ],
)
def test_effort_goes_by_several_names(fields: dict[str, Any], effort: Effort) -> None:
    assert conversation(**fields).effort == effort


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("format_", "schema"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {}),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, SCHEMA),
        ({"type": "json_schema", "json_schema": {"name": "n", "strict": True}}, {}),
    ],
)
def test_a_format_is_a_schema_or_nothing(format_: Any, schema: Any) -> None:
    assert parsed(response_format=format_).json_schema == schema


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_scores_are_told_if_asked_for(fields: dict[str, Any], alternatives: int | None) -> None:
    assert parsed(**fields).sampling.alternatives == alternatives


@pytest.mark.parametrize(
    ("kind", "words"),
    [("image_url", "[image: not shown"), ("file", "[document: not shown")],
)
def test_where_an_image_was_the_prompt_says_so(kind: str, words: str) -> None:
    part = {"type": kind, kind: {"url": "data:,"}}
    [message] = conversation(messages=[{"role": "user", "content": ["a", part, "b"]}]).messages
    first, placeholder, last = message.text.split("\n")
    assert (first, last) == ("a", "b")
    assert placeholder.startswith(words)


def test_sound_is_refused_and_not_left_out() -> None:
    part = {"type": "input_audio", "input_audio": {"data": ""}}
    with pytest.raises(BadRequest) as caught:
        parsed(messages=[{"role": "user", "content": [part]}])
    assert caught.value.code == "unsupported_content"
