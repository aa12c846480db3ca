"""What the fields of a Responses request mean, which tools it offers, and what is refused."""

import json
from typing import Any

import pytest

from daemon.api.openai_responses import OpenAIResponses
from daemon.api.response_store import ResponseStore
from daemon.api.rules import callable_tools, constraint_for
from daemon.chat import CallRule, ChatRequest, Conversation, SamplingWishes, ToolChoice
from daemon.errors import BadRequest
from mlx_backend.messages import Constraint, Effort

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
LS = {"type": "function", "name": "ls", "description": "list", "parameters": SCHEMA, "strict": True}
CAT = {"type": "function", "name": "cat"}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "d",
    "tools": [{"type": "function", "name": "spawn"}, {**PATCH, "name": "note"}],
}


def parsed(**fields: object) -> ChatRequest:
    body = json.dumps({"input": "hi", **fields}).encode()
    return OpenAIResponses(ResponseStore()).parse(body)


def conversation(**fields: object) -> Conversation:
    prompt = parsed(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def seen(tools: list[Any]) -> list[dict[str, Any]]:
    return [tool.for_template()["function"] for tool in conversation(tools=tools).shown_tools]


def test_a_silent_request_has_no_wishes_but_to_be_kept() -> None:
    request = parsed()
    assert request.sampling == SamplingWishes()
    assert (request.max_tokens, request.stream, request.json_schema) == (None, False, None)
    assert (request.previous, request.is_kept, request.ignored) == (None, True, ())
    assert request.tool_choice == ToolChoice()
    assert conversation().effort == Effort()
    assert conversation().options == {}


def test_sampling_limits_and_streaming_are_taken_over() -> None:
    request = parsed(
        model="m",
        stream=True,
        store=False,
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=3,
        presence_penalty=1,
        frequency_penalty=-1,
    )
    assert (request.model, request.stream, request.is_kept) == ("m", True, False)
    assert request.max_tokens == 7
    assert request.sampling == SamplingWishes(
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        seed=3,
        presence_penalty=1,
        frequency_penalty=-1,
    )


@pytest.mark.parametrize(
    ("fields", "alternatives"),
    [
        ({}, None),
        ({"top_logprobs": 0}, None),
        ({"include": ["reasoning.encrypted_content"]}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 5}, 5),
        ({"top_logprobs": 5}, 5),
    ],
)
def test_scores_are_there_for_who_asks(fields: dict[str, Any], alternatives: int | None) -> None:
    assert parsed(**fields).sampling.alternatives == alternatives


@pytest.mark.parametrize(
    ("reasoning", "effort"),
    [
        (None, Effort()),
        ({"summary": "auto"}, Effort()),
        ({"effort": None}, Effort()),
        ({"effort": "none"}, Effort(thinking=False)),
        ({"effort": "high", "summary": "detailed"}, Effort(thinking=True, level="high")),
    ],
)
def test_effort_is_passed_on_only_if_it_was_said(reasoning: object, effort: Effort) -> None:
    assert conversation(reasoning=reasoning).effort == effort


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        (None, None),
        ({"verbosity": "low"}, None),
        ({"format": {"type": "text"}}, None),
        ({"format": {"type": "json_object"}}, {}),
        ({"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, SCHEMA),
    ],
)
def test_the_format_of_the_text_is_a_schema(text: object, schema: object) -> None:
    assert parsed(text=text).json_schema == schema


def test_conversations_are_named_by_the_body_or_hinted_at() -> None:
    hinted = parsed(prompt_cache_key="k", metadata={"user_id": "u_session_s"})
    assert (hinted.session, hinted.session_hint) == (None, "k")
    assert parsed(metadata={"user_id": "u_session_s"}).session_hint == "s"
    assert parsed(session_id="mine", prompt_cache_key="k").session == "mine"
    assert conversation(chat_template_kwargs={"x": 1}).options == {"x": 1}


def test_what_changes_nothing_here_is_ignored_and_told() -> None:
    fields = {"client_metadata": {"a": "b"}, "user": "me", "truncation": "auto", "x_new": [1]}
    request = parsed(**fields, tools=[{"type": "web_search"}, LS, {"type": "mcp"}])
    assert request.ignored == (*fields, "tools[0] (web_search)", "tools[2] (mcp)")


def test_functions_reach_the_template_flat_or_nested_with_their_keys_in_order() -> None:
    function = {"name": "ls", "description": "list", "parameters": SCHEMA}
    nested = {"type": "function", "function": {**function, "strict": True}}
    assert json.dumps(seen([LS])) == json.dumps(seen([nested])) == json.dumps([function])
    assert seen([CAT]) == [{"name": "cat"}]


def test_a_group_of_functions_is_flattened_and_told_with_each() -> None:
    tools = conversation(tools=[AGENTS, LS]).tools
    assert [(tool.name, tool.namespace) for tool in tools] == [
        ("spawn", "agents"),
        ("note", "agents"),
        ("ls", None),
    ]
    assert [tool.is_free_text for tool in tools] == [False, True, False]


def test_functions_of_one_name_are_told_apart_by_their_groups() -> None:
    groups = [{**AGENTS, "name": name, "tools": [CAT]} for name in ("one", "two")]
    assert [tool["name"] for tool in seen([*groups, CAT])] == ["one__cat", "two__cat", "cat"]


def test_a_tool_of_free_text_is_a_function_of_one_string_with_its_grammar_in_words() -> None:
    [tool] = seen([PATCH])
    assert (tool["name"], tool["parameters"]["required"]) == ("patch", ["input"])
    assert tool["description"].startswith("Edits.")
    assert "start: /x/" in tool["description"]


@pytest.mark.parametrize(
    ("choice", "rule", "names"),
    [
        (None, CallRule.AUTO, ()),
        ("auto", CallRule.AUTO, ()),
        ("none", CallRule.NONE, ()),
        ("required", CallRule.REQUIRED, ()),
        ({"type": "function", "name": "ls"}, CallRule.REQUIRED, ("ls",)),
        ({"type": "function", "function": {"name": "ls"}}, CallRule.REQUIRED, ("ls",)),
        ({"type": "custom", "name": "patch"}, CallRule.REQUIRED, ("patch",)),
        ({"type": "function", "name": "spawn"}, CallRule.REQUIRED, ("spawn",)),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [LS, {**PATCH, "x": 1}]},
            CallRule.AUTO,
            ("ls", "patch"),
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [LS]},
            CallRule.REQUIRED,
            ("ls",),
        ),
    ],
)
def test_the_choice_among_tools_names_what_the_model_sees(
    choice: object, rule: CallRule, names: tuple[str, ...]
) -> None:
    request = parsed(tool_choice=choice, tools=[LS, PATCH, AGENTS])
    assert request.tool_choice == ToolChoice(rule, names, may_repeat=True)
    assert [tool.name for tool in request.tools] == ["ls", "patch", "spawn", "note"]


def test_a_choice_in_a_group_is_found_by_its_own_name() -> None:
    group = {**AGENTS, "tools": [CAT]}
    choice = {"type": "function", "name": "cat", "namespace": "agents"}
    request = parsed(tool_choice=choice, tools=[CAT, group])
    assert request.tool_choice.names == ("agents__cat",)


def test_choices_are_enforced_by_the_rules_that_all_dialects_share() -> None:
    none = parsed(tools=[LS], tool_choice="none")
    assert (callable_tools(none), len(none.tools)) == ((), 1)
    named = parsed(tools=[LS, CAT], tool_choice={"type": "function", "name": "cat"})
    assert constraint_for(named) == Constraint(tools=(named.tools[1].callable,), may_repeat=False)
    alone = parsed(tools=[LS], tool_choice="required", parallel_tool_calls=False)
    assert constraint_for(alone) == Constraint(tools=(alone.tools[0].callable,), may_repeat=False)
    format_asked = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert constraint_for(parsed(text=format_asked)) == Constraint(SCHEMA)
    assert constraint_for(parsed()) is None


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"input": None}, "input"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"instructions": 5}, "instructions"),
        ({"instructions": [5]}, "instructions[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "ten"}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": "x"}, "include"),
        ({"stream": "yes"}, "stream"),
        ({"store": 1}, "store"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": "high"}, "reasoning"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"tools": {}}, "tools"),
        ({"tools": ["ls"]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**LS, "name": 3}]}, "tools[0].name"),
        ({"tools": [{**LS, "description": 3}]}, "tools[0].description"),
        ({"tools": [{**LS, "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "name": "x"}]}, "tools[0].tools"),
        ({"tools": [{**AGENTS, "tools": [LS, {}]}]}, "tools[0].tools[1].name"),
        ({"tools": [{"type": "namespace", "tools": [LS]}]}, "tools[0].name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [LS]}}, "tool_choice.mode"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.tools",
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [LS]}},
            "tool_choice.tools[0].name",
        ),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_field(
    fields: dict[str, object], at_fault: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**fields)
    assert (caught.value.status, caught.value.field) == (400, at_fault)
    assert at_fault in caught.value.message
    assert "pydantic" not in caught.value.message


@pytest.mark.parametrize("field", ["background", "conversation", "prompt", "tools", "store"])
def test_null_is_the_absence_of_a_field(field: str) -> None:
    assert parsed(**{field: None}) == parsed()


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ('"metadata":{"a":NaN}', "metadata"),
        ('"text":{"format":{"type":"json_schema","schema":{"a":1e999}}}', "text"),
        ('"tools":[{"type":"function","name":"x","parameters":{"a":-Infinity}}]', "tools"),
        ('"instructions":"\\ud83d"', "instructions"),
    ],
)
def test_what_is_no_json_is_refused_since_a_reply_would_repeat_it(
    fields: str, at_fault: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        OpenAIResponses(ResponseStore()).parse(f'{{"input":"hi",{fields}}}'.encode())
    assert caught.value.field == at_fault
