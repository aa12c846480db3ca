"""What a Responses request's input means: which messages the model's template sees."""

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.api.openai_responses import OpenAIResponses
from daemon.api.response_store import ResponseStore
from daemon.chat import ChatRequest, Conversation
from daemon.errors import BadRequest, NotFound

USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "look", "annotations": [], "logprobs": []}],
}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
LS = {"type": "function", "name": "ls", "parameters": {"type": "object"}}


def parsed(**fields: object) -> ChatRequest:
    body = json.dumps({"input": "hi", **fields}).encode()
    return OpenAIResponses(ResponseStore()).parse(body)


def rendered(given_input: object, **fields: object) -> list[dict[str, Any]]:
    prompt = parsed(input=given_input, **fields).prompt
    assert isinstance(prompt, Conversation)
    return [message.for_template() for message in prompt.messages]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def called(*calls: tuple[str, str, object], **fields: str) -> dict[str, Any]:
    told = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": "", **fields, "tool_calls": told}


def test_a_text_is_a_message_of_the_user() -> None:
    assert rendered("hi") == rendered([USER]) == rendered([{**USER, "type": "message"}])
    assert rendered("hi") == [user("hi")]


@pytest.mark.parametrize("nothing", ["", []])
def test_an_empty_input_is_an_empty_message_so_that_a_model_can_be_warmed_up(
    nothing: object,
) -> None:
    assert rendered(nothing) == [user("")]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
def test_text_and_one_part_are_the_same_and_two_parts_are_lines(role: str) -> None:
    kind = "output_text" if role == "assistant" else "input_text"
    part = {"type": kind, "text": "one", "annotations": []}
    as_text = rendered([{"role": role, "content": "one"}])
    assert rendered([{"role": role, "content": [part]}]) == as_text
    assert rendered([{"role": role, "content": ["one"]}]) == as_text
    two = rendered([{"role": role, "content": [part, {"type": kind, "text": "two"}]}])
    assert two[0]["content"] == "one\ntwo"


def test_developer_and_system_messages_stay_in_their_own_places() -> None:
    late = {"role": "developer", "content": [{"type": "input_text", "text": "be brief"}]}
    seen = rendered([late, USER, {**late, "role": "system"}, USER])
    system = {"role": "system", "content": "be brief"}
    assert seen == [system, user("hi"), system, user("hi")]


def test_instructions_come_first_and_are_not_lost_beside_developer_messages() -> None:
    developer = {"role": "developer", "content": "d"}
    seen = rendered([developer, USER], instructions="first")
    assert [message["content"] for message in seen] == ["first", "d", "hi"]
    assert seen == rendered([developer, USER], instructions=[{**developer, "content": "first"}])


def test_the_items_of_one_answer_are_one_message() -> None:
    second = {**CALL, "call_id": "c2"}
    seen = rendered([USER, THOUGHT, SAID, CALL, second, OUTPUT, {**OUTPUT, "call_id": "c2"}, SAID])
    arguments = '{"a": 1}'
    answer = called(
        ("c1", "ls", arguments), ("c2", "ls", arguments), content="look", reasoning_content="hm"
    )
    assert seen == [
        user("hi"),
        answer,
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
        {"role": "tool", "content": "ok", "tool_call_id": "c2"},
        {"role": "assistant", "content": "look"},
    ]


def test_an_answer_that_thought_twice_is_one_message_but_two_texts_in_a_row_are_two() -> None:
    [once] = rendered([THOUGHT, SAID, THOUGHT, CALL])
    assert (once["content"], once["reasoning_content"]) == ("look", "hmhm")
    [twice] = rendered([THOUGHT, SAID, THOUGHT, SAID])
    assert (twice["content"], twice["reasoning_content"]) == ("looklook", "hmhm")
    [around] = rendered([SAID, CALL, SAID])
    assert around["content"] == "looklook"
    assert len(rendered([SAID, SAID])) == 2


def test_ids_status_and_unknown_fields_make_no_difference() -> None:
    items: list[dict[str, Any]] = [USER, THOUGHT, SAID, CALL, OUTPUT]
    extra = {"id": "x1", "status": "completed", "phase": "commentary", "internal": {"a": [1]}}
    assert rendered([{**item, **extra} for item in items]) == rendered(items)


def test_tool_results_may_be_parts_and_what_is_not_text_is_named() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,xx"}
    parts = [{"type": "input_text", "text": "one"}, image, {"type": "input_file", "file_id": "f"}]
    content = rendered([CALL, {**OUTPUT, "output": parts}])[1]["content"]
    lines = content.split("\n")
    assert lines[0] == "one"
    assert ["image" in lines[1], "document" in lines[2]] == [True, True]
    assert rendered([{"role": "user", "content": [image]}])[0]["content"] == lines[1]


def test_refusals_of_the_history_are_text() -> None:
    refusal = {"type": "refusal", "refusal": "no"}
    assert rendered([{"role": "assistant", "content": [refusal]}])[0]["content"] == "no"


@pytest.mark.parametrize("arguments", ['{"city":"Oslo"}', "", "not JSON", {"city": "Oslo"}])
def test_arguments_reach_the_template_as_they_were_sent(arguments: object) -> None:
    [message] = rendered([{**CALL, "arguments": arguments}])
    assert message == called(("c1", "ls", arguments))


def test_a_call_of_free_text_is_one_of_a_function_with_that_text() -> None:
    item = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "*** Begin"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"}
    assert rendered([item, output]) == [
        called(("c1", "patch", {"input": "*** Begin"})),
        {"role": "tool", "content": "done", "tool_call_id": "c1"},
    ]


def test_a_call_in_a_group_has_the_name_that_the_model_sees() -> None:
    group = {"type": "namespace", "name": "fs", "description": "d", "tools": [LS]}
    item = {**CALL, "namespace": "fs"}
    for tools, name in (([group], "ls"), ([group, LS], "fs__ls"), ([], "ls")):
        [message] = rendered([item], tools=tools)
        assert message["tool_calls"][0]["function"]["name"] == name


def test_what_a_shell_was_told_and_gave_is_kept() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {}}
    call = {"type": "local_shell_call", "call_id": "c1", "action": action, "status": "completed"}
    given_back = {"type": "local_shell_call_output", "id": "c1", "output": "a\nb"}
    assert rendered([call, given_back]) == [
        called(("c1", "local_shell", action)),
        {"role": "tool", "content": "a\nb", "tool_call_id": "c1"},
    ]
    outcome = {"stdout": "out", "stderr": "err", "outcome": {"type": "exit", "exit_code": 1}}
    [newer] = rendered([{"type": "shell_call_output", "call_id": "c1", "output": [outcome]}])
    assert newer["content"] == "out\nerr"


def test_items_that_say_nothing_here_are_ignored_and_told() -> None:
    request = parsed(input=[USER, {"type": "web_search_call", "id": "w"}, {"type": "compaction"}])
    assert isinstance(request.prompt, Conversation)
    assert [message.text for message in request.prompt.messages] == ["hi"]
    assert request.ignored == ("input[1] (web_search_call)", "input[2] (compaction)")


def test_a_message_between_agents_is_not_lost() -> None:
    item = {
        "type": "agent_message",
        "author": "a",
        "content": [{"type": "input_text", "text": "t"}],
    }
    assert rendered([item]) == [user("t")]


def sealed(text: str) -> str:
    return "mlxd.1." + base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("item", "thought"),
    [
        ({"summary": [], "encrypted_content": sealed("whole ~ü")}, "whole ~ü"),
        ({"summary": [{"text": "short"}], "encrypted_content": sealed("whole")}, "whole"),
        ({"summary": [{"text": "short"}], "encrypted_content": "gAAAA-foreign"}, "short"),
        ({"summary": [], "encrypted_content": "gAAAA-foreign"}, None),
        ({"summary": [], "encrypted_content": "mlxd.1.!"}, None),
        ({"summary": [], "encrypted_content": "mlxd.1._w=="}, None),
        ({"summary": [{"text": "s"}], "content": [{"type": "reasoning_text", "text": "t"}]}, "t"),
        ({"summary": [{"text": "one"}, {"text": "two"}]}, "one\n\ntwo"),
        ({}, None),
    ],
)
def test_a_thought_comes_back_from_wherever_the_client_has_it(
    item: dict[str, Any], thought: str | None
) -> None:
    [message] = rendered([{"type": "reasoning", **item}, CALL])
    assert message.get("reasoning_content") == thought


@pytest.mark.parametrize(
    ("given_input", "at_fault"),
    [
        (5, "input"),
        ({"role": "user"}, "input"),
        (["hi"], "input[0]"),
        ([USER, {}], "input[1].type"),
        ([{"type": 5}], "input[0].type"),
        ([{"role": "wizard", "content": "x"}], "input[0].role"),
        ([{"role": ["user"], "content": "x"}], "input[0].role"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"role": "user", "content": ["x", {"type": "input_audio"}]}], "input[0].content[1]"),
        ([{"role": "user", "content": [5]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"type": "function_call", "call_id": "c"}], "input[0].name"),
        ([{**CALL, "name": 3}], "input[0].name"),
        ([{**CALL, "arguments": [1]}], "input[0].arguments"),
        ([{**CALL, "call_id": 3}], "input[0].call_id"),
        ([{**OUTPUT, "output": 3}], "input[0].output"),
        ([{"type": "custom_tool_call", "name": "x", "input": {}}], "input[0].input"),
        ([{"type": "reasoning", "summary": 3}], "input[0].summary"),
        ([{"type": "reasoning", "content": [3]}], "input[0].content[0].text"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(given_input: object, at_fault: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(input=given_input)
    assert caught.value.field == at_fault
    assert at_fault in caught.value.message


def test_a_reference_to_what_is_not_kept_is_not_found() -> None:
    for reference in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}):
        with pytest.raises(NotFound) as caught:
            parsed(input=[USER, reference])
        assert (caught.value.status, caught.value.field) == (404, "input")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
ITEMS = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, TEXTS),
    st.builds(lambda text: {"role": "developer", "content": text}, TEXTS),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXTS),
    st.builds(lambda text: {"type": "reasoning", "summary": [{"text": text}]}, TEXTS),
    st.builds(lambda text: {**CALL, "call_id": text}, TEXTS),
    st.builds(lambda text: {**OUTPUT, "output": text}, TEXTS),
)


@settings(max_examples=60)
@given(st.lists(ITEMS, min_size=2, max_size=12))
def test_a_longer_list_of_items_only_appends_messages(items: list[dict[str, Any]]) -> None:
    """Wherever a request may end, which is never within an answer."""
    ends_turn = [
        index + 1
        for index, (item, after) in enumerate(pairwise(items))
        if not (is_said(item) and is_said(after))
    ]
    whole = rendered(items)
    for end in ends_turn:
        begun = rendered(items[:end])
        assert whole[: len(begun)] == begun


def is_said(item: dict[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("reasoning", "function_call")


def test_tools_that_the_conversation_brings_are_shown_there_and_can_be_called_from_there() -> None:
    found = {"type": "function", "name": "find", "defer_loading": True, "parameters": {"a": 1}}
    group = {"type": "namespace", "name": "fs", "tools": [LS, found]}
    search = {"type": "tool_search_call", "call_id": "s1", "arguments": {"query": "files"}}
    result = {"type": "tool_search_output", "call_id": "s1", "tools": [LS, group]}
    call = {**CALL, "name": "ls", "namespace": "fs"}
    request = parsed(input=[USER, search, result, call], tools=[LS])
    assert isinstance(request.prompt, Conversation)
    assert [tool.name for tool in request.prompt.shown_tools] == ["ls"]
    assert [tool.name for tool in request.tools] == ["ls", "fs__ls", "find"]
    _, searched, shown, called_later = rendered([USER, search, result, call], tools=[LS])
    assert searched["tool_calls"][0]["function"] == {
        "name": "tool_search",
        "arguments": {"query": "files"},
    }
    assert (shown["role"], shown["tool_call_id"]) == ("tool", "s1")
    names = [json.loads(line)["function"]["name"] for line in shown["content"].split("\n")]
    assert names == ["ls", "fs__ls", "find"]
    assert called_later["tool_calls"][0]["function"]["name"] == "fs__ls"


def test_tools_that_are_brought_by_no_search_are_told_by_the_system() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [LS]}
    [message] = rendered([item])
    assert (message["role"], json.loads(message["content"])["function"]["name"]) == ("system", "ls")
    with pytest.raises(BadRequest) as caught:
        parsed(input=[{**item, "tools": 5}])
    assert caught.value.field == "input[0].tools"
