"""The fields of Anthropic's messages API: what each asks for, is ignored as, or refused for."""

import json

import pytest

from daemon.api.anthropic_messages import AnthropicMessages
from daemon.chat import CallRule, ChatRequest, Conversation, SamplingWishes, ToolChoice
from daemon.errors import BadRequest
from mlx_backend.messages import Effort

USER = {"role": "user", "content": "hi"}
READ = {"name": "read", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}
FORMAT = {"type": "json_schema", "schema": SCHEMA}


def parsed(**fields: object) -> ChatRequest:
    return AnthropicMessages().parse(json.dumps({"messages": [USER], **fields}).encode())


def effort(**fields: object) -> Effort:
    prompt = parsed(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt.effort


def test_a_silent_request_has_no_wishes() -> None:
    request = parsed()
    assert request == ChatRequest(prompt=request.prompt, fields=request.fields)
    assert effort() == Effort()


def test_sampling_stop_strings_and_streaming_are_taken_over() -> None:
    request = parsed(
        model="claude-x", temperature=0, top_p=0.5, top_k=5, stop_sequences=["a", "", "b"]
    )
    assert request.sampling == SamplingWishes(temperature=0, top_p=0.5, top_k=5)
    assert request.stop == ("a", "b")
    assert request.model == "claude-x"
    assert parsed(stream=True).stream
    assert not parsed(stream=None, stop_sequences=None).stream


@pytest.mark.parametrize(("asked", "limit"), [(None, None), (-1, None), (128_000, 128_000)])
def test_the_limit_may_be_absent(asked: int | None, limit: int | None) -> None:
    assert parsed(max_tokens=asked).max_tokens == limit


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, Effort(True)),
        ({"thinking": {"type": "disabled"}}, Effort(False)),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, Effort(True, "minimal")),
        ({"thinking": {"type": "enabled", "budget_tokens": 4000}}, Effort(True, "low")),
        ({"thinking": {"type": "enabled", "budget_tokens": 10_000}}, Effort(True, "medium")),
        ({"thinking": {"type": "enabled", "budget_tokens": 31_999}}, Effort(True, "high")),
        ({"output_config": {"effort": "xhigh"}}, Effort(None, "xhigh")),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 1024},
                "output_config": {"effort": "max"},
            },
            Effort(True, "max"),
        ),
        ({"output_config": {"effort": "heroic"}}, Effort()),
        ({"output_config": {"effort": ["high"]}}, Effort()),
        ({"output_config": {}}, Effort()),
    ],
)
def test_thinking_and_effort_are_one_wish(fields: dict[str, object], wanted: Effort) -> None:
    assert effort(**fields) == wanted


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(may_repeat=False)),
        ({"type": "none"}, ToolChoice(CallRule.NONE)),
        ({"type": "any"}, ToolChoice(CallRule.REQUIRED)),
        ({"type": "tool", "name": "read"}, ToolChoice(CallRule.REQUIRED, ("read",))),
    ],
)
def test_every_tool_choice_has_its_rule(choice: dict[str, object], wanted: ToolChoice) -> None:
    assert parsed(tools=[READ], tool_choice=choice).tool_choice == wanted


@pytest.mark.parametrize(
    "fields", [{"output_config": {"format": FORMAT}}, {"output_format": FORMAT}]
)
def test_an_output_format_is_a_schema_for_the_text(fields: dict[str, object]) -> None:
    assert parsed(**fields).json_schema == SCHEMA


def test_a_session_is_named_outright_or_hinted_at_in_metadata() -> None:
    user = json.dumps({"device_id": "d", "session_id": "s1"})
    request = parsed(metadata={"user_id": user}, session_id="mine")
    assert (request.session, request.session_hint) == ("mine", "s1")


def test_the_template_can_be_given_options() -> None:
    prompt = parsed(chat_template_kwargs={"enable_thinking": False}).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.options == {"enable_thinking": False}


def test_what_changes_nothing_is_ignored_and_listed() -> None:
    request = parsed(
        betas=["x"],
        context_management={"edits": [{"type": "clear_thinking", "keep": "all"}]},
        service_tier="auto",
        container=None,
        thinking={"type": "adaptive", "display": "omitted"},
        output_config={"effort": "heroic"},
        mcp_servers=[],
    )
    assert set(request.ignored) == {
        "betas",
        "context_management",
        "service_tier",
        "container",
        "thinking.display",
        "output_config.effort",
    }


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "video"}]}, "system[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["x", 1]}, "stop_sequences[1]"),
        ({"stop_sequences": ["x"] * 33}, "stop_sequences"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        (
            {"output_config": {"format": {"type": "yaml", "schema": {}}}},
            "output_config.format.type",
        ),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"tool_choice": {"type": "perhaps"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "x", "input_schema": []}]}, "tools[0].input_schema"),
        ({"mcp_servers": [{"type": "url", "url": "https://example.org"}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"compaction": {"type": "summarize"}}, "compaction"),
    ],
)
def test_what_cannot_be_done_is_refused_by_its_name(
    fields: dict[str, object], at_fault: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(**fields)
    assert caught.value.field == at_fault
    assert at_fault in caught.value.message


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"nonsense", b'{"messages":' + b"[" * 10_000, b'{"messages": [NaN]}'],
)
def test_a_body_that_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        AnthropicMessages().parse(body)


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("messages[0].content", rb'{"messages":[{"role":"user","content":"\ud83d"}]}'),
        (
            "messages[0].content[0].content",
            rb'{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t",'
            rb'"content":"\ud83d"}]}]}',
        ),
        (
            "tools[0].name",
            rb'{"messages":[{"role":"user","content":"x"}],"tools":[{"name":"\ud83d"}]}',
        ),
    ],
)
def test_half_a_character_is_refused_with_its_place(place: str, body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        AnthropicMessages().parse(body)
    assert (caught.value.field, caught.value.code) == (place, "invalid_unicode")
