"""What Anthropic's messages and tools become: turns in order, with nothing lost in silence."""

import json
from typing import Any

import pytest

from daemon.api.anthropic_messages import AnthropicMessages, AnthropicTokenCount
from daemon.chat import ChatRequest, Conversation
from daemon.errors import BadRequest

MESSAGES = AnthropicMessages()
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "line": {}}}
READ = {"name": "read", "description": "reads a file", "input_schema": SCHEMA}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.py", "line": 3}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
IMAGE_TEXT = "[image: not shown, this model reads text only]"


def text(words: str, **more: object) -> dict[str, object]:
    return {"type": "text", "text": words, **more}


def result(content: object = "ok", **more: object) -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def parsed(**fields: object) -> ChatRequest:
    return MESSAGES.parse(json.dumps({"messages": [USER], **fields}).encode())


def conversation(**fields: object) -> Conversation:
    prompt = parsed(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def rendered(*messages: object, **fields: object) -> list[dict[str, Any]]:
    """The messages as the model's template would see them; a user's turn is put at their end."""
    return [
        message.for_template()
        for message in conversation(messages=[*messages, USER], **fields).messages[:-1]
    ]


def refusal(*messages: object, **fields: object) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parsed(messages=list(messages) or [USER], **fields)
    assert "pydantic" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_a_string_and_one_block_are_the_same_wherever_the_cache_mark_is(role: str) -> None:
    marked = text("one", cache_control={"type": "ephemeral"}, citations=None)
    as_text = rendered({"role": role, "content": "one"})
    assert as_text == [{"role": role, "content": "one"}]
    assert rendered({"role": role, "content": [marked]}) == as_text
    assert rendered({"role": role, "content": [text("one")]}) == as_text
    assert rendered({"role": role, "content": ["one"]}) == as_text


def test_the_system_prompt_is_a_string_or_blocks_and_comes_first() -> None:
    opening = {"role": "system", "content": "be brief"}
    assert rendered(system="be brief") == [opening]
    assert rendered(system=[text("be brief", cache_control={"type": "ephemeral"})]) == [opening]
    assert rendered(system=[text("be"), text("brief")])[0]["content"] == "be\nbrief"
    assert rendered(system="") == rendered(system=[]) == rendered(system=None) == []


def test_blocks_are_lines_except_an_assistants_which_are_pieces_of_one_text() -> None:
    two = [text("one"), text(" two")]
    assert rendered({"role": "user", "content": two})[0]["content"] == "one\n two"
    assert rendered({"role": "assistant", "content": two})[0]["content"] == "one two"


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", ["Reminder 7", [text("Reminder 7")]])
def test_a_late_system_message_stays_in_its_place(role: str, content: object) -> None:
    late = {"role": role, "content": content, "output_config": {"effort": "high"}}
    called = {"role": "assistant", "content": [CALL]}
    seen = rendered(USER, called, late, {"role": "user", "content": [result()]}, system="s")
    assert [message["role"] for message in seen] == [
        "system",
        "user",
        "assistant",
        "system",
        "tool",
    ]
    assert seen[3]["content"] == "Reminder 7"


def test_longer_histories_only_add_messages() -> None:
    history = [
        USER,
        {"role": "assistant", "content": [text("look"), CALL]},
        {"role": "user", "content": [result([text("ok"), IMAGE]), text("and now?")]},
        {"role": "system", "content": "Reminder 7"},
        USER,
    ]
    whole = rendered(*history, system="s")
    for length in range(len(history)):
        part = rendered(*history[:length], system="s")
        assert whole[: len(part)] == part


def test_an_assistants_turn_is_its_text_its_thought_and_its_calls() -> None:
    content = [
        {"type": "thinking", "thinking": "because", "signature": "from elsewhere"},
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
        text("I look. "),
        CALL,
        text("And again."),
        {**CALL, "id": "toolu_2", "input": {}},
    ]
    [seen] = rendered({"role": "assistant", "content": content})
    assert seen["content"] == "I look. And again."
    assert seen["reasoning_content"] == "because"
    arguments = {"path": "a.py", "line": 3}
    function = {"name": "read", "arguments": arguments}
    assert seen["tool_calls"][0] == {"id": "toolu_1", "type": "function", "function": function}
    assert [call["id"] for call in seen["tool_calls"]] == ["toolu_1", "toolu_2"]


@pytest.mark.parametrize("signature", [{}, {"signature": ""}, {"signature": "foreign"}])
def test_a_thought_counts_whoever_signed_it(signature: dict[str, str]) -> None:
    thought = {"type": "thinking", "thinking": "because", **signature}
    [seen] = rendered({"role": "assistant", "content": [thought, text("so")]})
    assert seen == {"role": "assistant", "content": "so", "reasoning_content": "because"}


@pytest.mark.parametrize("before", [[], [text("")], ["", {"type": "redacted_thinking"}]])
def test_a_call_without_text_is_kept(before: list[object]) -> None:
    [seen] = rendered({"role": "assistant", "content": [*before, CALL]})
    assert seen["content"] == ""
    assert seen["tool_calls"][0]["function"]["name"] == "read"


@pytest.mark.parametrize("content", [None, "", []])
def test_an_empty_message_is_an_empty_turn(content: object) -> None:
    for role in ("user", "assistant"):
        assert rendered({"role": role, "content": content}) == [{"role": role, "content": ""}]
        assert rendered({"role": role}) == [{"role": role, "content": ""}]


def test_results_become_turns_of_their_own_before_the_texts_beside_them() -> None:
    other = {**result("second"), "tool_use_id": "toolu_2"}
    told = {"role": "tool", "content": "first", "tool_call_id": "toolu_1"}
    also = {"role": "tool", "content": "second", "tool_call_id": "toolu_2"}
    beside = {"role": "user", "content": "one\ntwo"}
    in_order = [result("first"), other, text("one"), text("two")]
    assert rendered({"role": "user", "content": in_order}) == [told, also, beside]
    mixed = [text("one"), result("first"), text("two"), other]
    assert rendered({"role": "user", "content": mixed}) == [told, also, beside]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("plain", "plain"),
        ([text("one"), IMAGE, text("two")], f"one\n{IMAGE_TEXT}\ntwo"),
        (None, ""),
        ("", ""),
        ([], ""),
        ([text("")], ""),
    ],
)
def test_a_result_is_text_in_its_order_with_images_named(content: object, shown: str) -> None:
    [seen] = rendered({"role": "user", "content": [result(content)]})
    assert seen == {"role": "tool", "content": shown, "tool_call_id": "toolu_1"}


@pytest.mark.parametrize(
    ("content", "shown"), [("no such file", "[error]\nno such file"), ("", "[error]")]
)
def test_a_result_that_is_an_error_says_so(content: str, shown: str) -> None:
    [seen] = rendered({"role": "user", "content": [result(content, is_error=True)]})
    assert seen["content"] == shown
    [fine] = rendered({"role": "user", "content": [result(content, is_error=False)]})
    assert fine["content"] == content


def test_documents_and_search_results_are_their_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "the text"}
    nested = {"type": "content", "content": [text("one"), IMAGE]}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    found = {"type": "search_result", "title": "T", "source": "S", "content": [text("found")]}
    blocks = [
        {"type": "document", "source": plain, "title": "notes"},
        {"type": "document", "source": nested},
        {"type": "document", "source": pdf},
        found,
    ]
    [seen] = rendered({"role": "user", "content": blocks})
    assert seen["content"].split("\n") == [
        "notes",
        "the text",
        "one",
        IMAGE_TEXT,
        "[document: not shown, this model reads text only]",
        "T",
        "S",
        "found",
    ]


def test_what_a_vendors_server_did_is_named_in_its_place() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    [seen] = rendered({"role": "assistant", "content": [text("Well: "), search, found]})
    assert seen["content"].startswith("Well: [server_tool_use: not shown")
    assert "[web_search_tool_result: not shown" in seen["content"]
    summary = {"type": "compaction", "content": "so far"}
    [seen] = rendered({"role": "assistant", "content": [summary]})
    assert seen["content"] == "so far"


def shown_names(prompt: Conversation) -> list[str]:
    return [tool.name for tool in prompt.shown_tools]


def test_tools_reach_the_template_with_their_keys_in_order() -> None:
    tools = [{"type": "custom", "eager_input_streaming": True, "cache_control": None, **READ}]
    [tool] = conversation(tools=tools).tools
    function = {"name": "read", "description": "reads a file", "parameters": SCHEMA}
    assert json.dumps(tool.for_template()) == json.dumps({"type": "function", "function": function})


def test_tools_of_a_vendors_server_are_skipped_and_listed() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search"},
        READ,
        {"type": "mcp_toolset", "mcp_server_name": "x"},
        {"type": "bash_20250124", "name": "bash", "input_schema": {"type": "object"}},
    ]
    request = parsed(tools=tools)
    assert [tool.name for tool in request.tools] == ["read", "bash"]
    assert request.ignored == ("tools[0]", "tools[2]")


def test_a_deferred_tool_is_shown_where_the_conversation_refers_to_it() -> None:
    deferred = {**READ, "name": "late", "defer_loading": True}
    tools = [deferred, READ]
    reference = {"type": "tool_reference", "tool_name": "late"}
    turn = {"role": "user", "content": [result([reference])]}
    prompt = conversation(messages=[turn], tools=tools)
    assert shown_names(prompt) == ["read"]
    assert {tool.name for tool in prompt.tools} == {"read", "late"}
    shown = json.loads(prompt.messages[0].for_template()["content"])
    assert shown == prompt.tools[0].for_template()


def test_deferring_more_tools_leaves_what_is_shown_as_it_was() -> None:
    before = conversation(tools=[READ])
    after = conversation(tools=[{**READ, "name": "early", "defer_loading": True}, READ])
    assert shown_names(after) == shown_names(before)


def test_nothing_is_deferred_to_a_search_that_only_the_vendors_servers_can_do() -> None:
    search = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    prompt = conversation(tools=[search, {**READ, "defer_loading": True}])
    assert shown_names(prompt) == ["read"]


def test_a_reference_to_a_tool_that_is_not_there_is_no_failure() -> None:
    reference = {"type": "tool_reference", "tool_name": "gone"}
    [seen] = rendered({"role": "user", "content": [result([reference])]})
    assert "gone" in seen["content"]


@pytest.mark.parametrize(
    ("message", "at_fault"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": ["x", 5]}, "messages[0].content[1]"),
        ({"role": "user", "content": [{"text": "x"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [CALL]}, "messages[0].content[0]"),
        ({"role": "system", "content": [result()]}, "messages[0].content[0]"),
        (
            {"role": "user", "content": [{"type": "tool_result", "content": "x"}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"role": "user", "content": [result([{"type": "video"}])]},
            "messages[0].content[0].content[0]",
        ),
        (
            {"role": "assistant", "content": [{**CALL, "input": [1]}]},
            "messages[0].content[0].input",
        ),
        (
            {"role": "assistant", "content": [{**CALL, "name": None}]},
            "messages[0].content[0].name",
        ),
    ],
)
def test_what_is_no_message_is_refused_by_its_place(message: object, at_fault: str) -> None:
    assert refusal(message, USER).field == at_fault


def test_a_conversation_that_ends_with_the_assistant_is_refused_but_can_be_counted() -> None:
    begun = {"role": "assistant", "content": "The answer is ("}
    assert refusal(USER, begun).field == "messages[1]"
    body = json.dumps({"messages": [USER, begun]}).encode()
    prompt = AnthropicTokenCount().parse(body).prompt
    assert isinstance(prompt, Conversation)
    assert prompt.messages[-1].text == "The answer is ("
