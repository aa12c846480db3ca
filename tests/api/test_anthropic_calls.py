"""Thoughts, calls and formats in Anthropic's messages, through the whole application."""

import json
from typing import Any

import pytest
from anthropic.types import Message, ToolUseBlock

from daemon.api.anthropic_messages import AnthropicMessages
from daemon.chat import Conversation
from mlx_backend.messages import Effort, SampledCall
from tests.api import anthropic_sdk as sdk
from tests.api.admin_desk import Desk, desk
from tests.engine.harness import run
from tests.fakes import CALL_MARK, BytePrompts, Script, fixed_reply

PATH = "/v1/messages"
USER = {"role": "user", "content": "hi"}
LS = {"name": "ls", "input_schema": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}}

both = pytest.mark.parametrize("stream", [False, True])


def call(name: str, **arguments: object) -> str:
    """A call as the scripted model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script(said: str, **options: Any) -> Script:
    return Script(reply=fixed_reply(list(said.encode())), **options)


async def asked(at: Desk, **fields: Any) -> Message:
    answer = await at.ask("POST", PATH, json={"messages": [USER], "tools": [LS], **fields})
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return sdk.message(answer.text)
    told = sdk.events(answer.text)
    sdk.blocks_in_order(told)
    return sdk.accumulated(told)


async def refused(at: Desk, **fields: Any) -> str:
    answer = await at.ask("POST", PATH, json={"messages": [USER], **fields})
    assert answer.status_code == 400, answer.text
    words: str = answer.json()["error"]["message"]
    return words


def prompts(at: Desk) -> BytePrompts:
    return at.bench.models[-1].prompts


def kinds(message: Message) -> list[str]:
    return [block.type for block in message.content]


def calls(message: Message) -> list[ToolUseBlock]:
    return [block for block in message.content if isinstance(block, ToolUseBlock)]


@both
def test_an_answer_comes_as_its_thought_its_texts_and_its_calls(stream: bool) -> None:
    said = f"<think>\nhm\n</think>\n\nLook.\n{call('ls', path='a')}\nAnd\n{call('ls', path='b')}"

    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            message = await asked(at, stream=stream)
            assert kinds(message) == ["thinking", "text", "tool_use", "text", "tool_use"]
            assert [each.input for each in calls(message)] == [{"path": "a"}, {"path": "b"}]
            assert message.stop_reason == "tool_use"
            again = await asked(at, stream=stream)
            ids = [each.id for each in (*calls(message), *calls(again))]
            assert len(set(ids)) == 4
            assert all(each.startswith("toolu_") for each in ids)

    run(scenario())


@both
@pytest.mark.parametrize(
    ("said", "expected", "reason"),
    [
        ("Just text.", ["text"], "end_turn"),
        (call("ls"), ["tool_use"], "tool_use"),
        (call("rm", path="/"), ["text"], "end_turn"),
        (f"<think>{call('ls')}</think>done", ["thinking", "text"], "end_turn"),
        ('Ok <tool_call>\n{"name": "ls", "argu', ["text"], "end_turn"),
    ],
)
def test_only_a_whole_call_of_a_known_tool_is_a_call(
    stream: bool, said: str, expected: list[str], reason: str
) -> None:
    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            message = await asked(at, stream=stream)
            assert kinds(message)[: len(expected)] == expected
            assert set(kinds(message)) == set(expected)
            assert message.stop_reason == reason
            if not calls(message):
                text = "".join(getattr(block, "text", "") for block in message.content)
                assert text.strip() in said
                assert text.strip()

    run(scenario())


def test_wherever_the_limit_cuts_a_call_it_is_whole_in_both_forms_or_in_neither() -> None:
    said = "Ok " + call("ls", path="a/long/path", depth=3)
    end = said.index("}")

    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            for limit in (1, *range(10, end, 7), *range(end, end + 4)):
                whole = await asked(at, max_tokens=limit)
                body = {"messages": [USER], "tools": [LS], "max_tokens": limit, "stream": True}
                told = sdk.events((await at.ask("POST", PATH, json=body)).text)
                assert whole.stop_reason == told[-2]["delta"]["stop_reason"] == "max_tokens"
                fragments = [
                    event["delta"]["partial_json"]
                    for event in told
                    if event["type"] == "content_block_delta" and "partial_json" in event["delta"]
                ]
                assert ("tool_use" in sdk.blocks_in_order(told)) == bool(fragments)
                assert [_parsed("".join(fragments))] == ([c.input for c in calls(whole)] or [None])
            assert calls(whole)

    run(scenario())


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


@both
def test_one_call_at_most_ends_the_answer_behind_it(stream: bool) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}

    async def scenario() -> None:
        async with desk(script=script(call("ls", path="a") + call("ls", path="b"))) as at:
            message = await asked(at, stream=stream, tool_choice=choice)
            assert [each.input for each in calls(message)] == [{"path": "a"}]
            assert message.stop_reason == "tool_use"

    run(scenario())


def test_no_call_is_wanted_but_the_tools_are_still_in_the_prompt() -> None:
    async def scenario() -> None:
        async with desk(script=script(call("ls"))) as at:
            free = await asked(at)
            denied = await asked(at, tool_choice={"type": "none"})
            assert calls(denied) == []
            assert denied.usage.cache_read_input_tokens == free.usage.input_tokens - 1
            [row] = [row for row in at.bench.backend.rows[-1:] if row.sampling is not None]
            assert row.sampling is not None
            assert CALL_MARK in dict(row.sampling.logit_bias)

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"tools": [LS], "tool_choice": {"type": "any"}}, "`tool_choice`"),
        ({"tools": [LS], "tool_choice": {"type": "tool", "name": "ls"}}, "`tool_choice`"),
        ({"tools": [LS], "tool_choice": {"type": "tool", "name": "rm"}}, "`tool_choice`"),
        ({"tool_choice": {"type": "any"}}, "`tool_choice`"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "`output_config.format`",
        ),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_its_name(
    fields: dict[str, Any], at_fault: str
) -> None:
    async def scenario() -> None:
        async with desk(script=script("x")) as at:
            assert (await refused(at, **fields)).startswith(at_fault)

    run(scenario())


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "ls"}])
def test_a_call_that_is_asked_for_constrains_the_answer(choice: dict[str, str]) -> None:
    async def scenario() -> None:
        async with desk(script=script(call("ls"), takes_constraints=True)) as at:
            assert kinds(await asked(at, tool_choice=choice)) == ["tool_use"]
            sampling = at.bench.backend.rows[-1].sampling
            assert sampling is not None
            assert sampling.grammar is not None
            assert [tool.name for tool in sampling.grammar.constraint.tools] == ["ls"]

    run(scenario())


def test_a_schema_constrains_the_answer() -> None:
    output = {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"}

    async def scenario() -> None:
        async with desk(script=script('{"title": "x"}', takes_constraints=True)) as at:
            await asked(at, tools=[], output_config=output, thinking={"type": "disabled"})
            sampling = at.bench.backend.rows[-1].sampling
            assert sampling is not None
            assert sampling.grammar is not None
            assert sampling.grammar.constraint.schema == SCHEMA
            assert prompts(at).efforts[-1] == Effort(False, "low")

    run(scenario())


@both
def test_what_was_said_is_remembered_under_the_ids_that_the_client_was_given(stream: bool) -> None:
    said = f"<think>\nhm\n</think>\n\nLook.\n{call('ls', path='a')}"

    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            message = await asked(at, stream=stream)
            [used] = calls(message)
            [(_, sampled, turn)] = prompts(at).remembered
            assert bytes(sampled).decode() == said
            assert (turn.text.strip(), turn.thought.strip()) == ("Look.", "hm")
            assert turn.calls == (SampledCall(used.id, "ls", '{"path": "a"}'),)

    run(scenario())


def test_the_echo_of_an_answer_is_what_was_remembered() -> None:
    """Sent back block for block, it has the same text, the same thought and the same calls."""
    said = f"<think>\nhm\n</think>\n\nLook.\n{call('ls', path='a')}\nThen\n{call('ls', path='b')}"

    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            message = await asked(at)
            [(_, _, turn)] = prompts(at).remembered
            echo = {"role": "assistant", "content": sdk.said(message)["content"]}
            results = [
                {"type": "tool_result", "tool_use_id": each.id, "content": "ok"}
                for each in calls(message)
            ]
            seen = _rendered(USER, echo, {"role": "user", "content": results})[1]
            assert seen["content"] == turn.text
            assert seen["reasoning_content"] == turn.thought
            told = [(each["id"], each["function"]["arguments"]) for each in seen["tool_calls"]]
            assert told == [(each.id, json.loads(each.arguments)) for each in turn.calls]

    run(scenario())


def _rendered(*messages: object) -> list[dict[str, Any]]:
    prompt = AnthropicMessages().parse(json.dumps({"messages": messages}).encode()).prompt
    assert isinstance(prompt, Conversation)
    return [message.for_template() for message in prompt.messages]
