"""Thoughts, calls and formats in responses, through the whole application."""

import json
from typing import Any

import pytest

from daemon.api.openai_responses import OpenAIResponses
from daemon.api.response_store import ResponseStore
from daemon.errors import BadRequest
from tests.api import responses_sdk as sdk
from tests.api.admin_desk import Desk, desk
from tests.engine.harness import run
from tests.fakes import Script, fixed_reply

PATH = "/v1/responses"
LS = {"type": "function", "name": "ls", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "description": "edits"}
AGENTS = {"type": "namespace", "name": "agents", "description": "d", "tools": [LS]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}

both = pytest.mark.parametrize("stream", [False, True])


def call(name: str, **arguments: object) -> str:
    """A call as the scripted model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script(said: str, **options: Any) -> Script:
    return Script(reply=fixed_reply(list(said.encode())), **options)


async def asked(at: Desk, **fields: Any) -> dict[str, Any]:
    answer = await at.ask("POST", PATH, json={"input": "hi", "tools": [LS, PATCH], **fields})
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return sdk.ended(answer.text)
    sdk.response(answer.text)
    whole: dict[str, Any] = answer.json()
    return whole


async def refused(at: Desk, **fields: Any) -> str:
    answer = await at.ask("POST", PATH, json={"input": "hi", **fields})
    assert answer.status_code == BadRequest.status, answer.text
    at_fault: str = answer.json()["error"]["param"]
    return at_fault


def kinds(response: dict[str, Any]) -> list[str]:
    return [item["type"] for item in response["output"]]


@both
def test_an_answer_comes_as_its_thought_its_text_and_its_calls(stream: bool) -> None:
    said = f"<think>\nhm\n</think>\n\nLook.\n{call('ls', path='a')}\n{call('patch', input='x')}"

    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            response = await asked(at, stream=stream)
            assert response["status"] == "completed"
            thought, message, listed, patched = response["output"]
            assert thought["summary"][0]["text"].strip() == "hm"
            assert message["content"][0]["text"].strip() == "Look."
            assert (listed["name"], json.loads(listed["arguments"])) == ("ls", {"path": "a"})
            assert (patched["type"], patched["input"]) == ("custom_tool_call", "x")
            assert len({item["id"] for item in response["output"]}) == 4
            assert listed["call_id"] != patched["call_id"]
            reasoning = response["usage"]["output_tokens_details"]["reasoning_tokens"]
            assert 0 < reasoning < response["usage"]["output_tokens"] / 2

    run(scenario())


def test_ids_of_calls_are_unique_in_a_session_and_their_results_find_them() -> None:
    async def scenario() -> None:
        async with desk(script=script(call("ls"))) as at:
            items: list[Any] = [{"role": "user", "content": "hi"}]
            seen = set()
            for _ in range(3):
                response = await asked(at, input=items)
                [called] = response["output"]
                seen |= {called["call_id"], called["id"]}
                output = {"type": "function_call_output", "output": "ok"}
                items += [called, {**output, "call_id": called["call_id"]}]
            assert len(seen) == 6

    run(scenario())


@both
def test_a_call_in_a_group_is_told_with_its_group(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script(call("ls"))) as at:
            response = await asked(at, tools=[AGENTS], stream=stream)
            [called] = response["output"]
            assert (called["name"], called["namespace"]) == ("ls", "agents")

    run(scenario())


@both
def test_a_call_cut_at_the_limit_is_no_call(stream: bool) -> None:
    said = f"{call('ls', path='a')}\n{call('ls', path='b' * 40)}"

    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            limit = len(call("ls", path="a")) + 45
            response = await asked(at, stream=stream, max_output_tokens=limit)
            assert response["status"] == "incomplete"
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert kinds(response) == ["function_call"]
            assert json.loads(response["output"][0]["arguments"]) == {"path": "a"}

    run(scenario())


@both
def test_an_unknown_name_is_no_call(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script(call("rm", path="/"))) as at:
            response = await asked(at, stream=stream)
            assert kinds(response) == ["message"]
            assert "rm" in response["output"][0]["content"][0]["text"]

    run(scenario())


@both
def test_no_choice_and_no_tools_mean_no_calls(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script(call("ls"))) as at:
            for fields in ({"tool_choice": "none"}, {"tools": []}):
                response = await asked(at, stream=stream, **fields)
                assert "function_call" not in kinds(response)
            shown = await asked(at, tool_choice="none")
            hidden = await asked(at, tools=[])
            assert shown["usage"]["input_tokens"] > hidden["usage"]["input_tokens"]
            other = {"type": "allowed_tools", "mode": "auto", "tools": [PATCH]}
            allowed = await asked(at, stream=stream, tool_choice=other)
            assert "function_call" not in kinds(allowed)

    run(scenario())


@both
def test_one_call_at_a_time_ends_behind_the_first(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script(f"{call('ls')}\n{call('ls')}")) as at:
            assert len((await asked(at, stream=stream))["output"]) == 2
            alone = await asked(at, stream=stream, parallel_tool_calls=False)
            assert (kinds(alone), alone["status"]) == (["function_call"], "completed")

    run(scenario())


def test_what_cannot_be_enforced_is_refused_by_its_field() -> None:
    named = {"type": "function", "name": "ls"}

    async def scenario() -> None:
        async with desk(script=script("x")) as at:
            assert await refused(at, text=FORMAT) == "text.format"
            assert await refused(at, tools=[LS], tool_choice=named) == "tool_choice"
            assert await refused(at, tool_choice="required") == "tool_choice"

    run(scenario())


@both
def test_formats_and_forced_calls_are_enforced_where_they_can_be(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script('{"a": 1}', takes_constraints=True)) as at:
            response = await asked(at, stream=stream, tools=[], text=FORMAT)
            assert json.loads(response["output"][0]["content"][0]["text"]) == {"a": 1}
            assert response["text"]["format"] == FORMAT["format"]
        async with desk(script=script(call("ls"), takes_constraints=True)) as at:
            named = {"type": "function", "name": "ls"}
            response = await asked(at, stream=stream, tool_choice=named)
            assert kinds(response) == ["function_call"]
            assert response["tool_choice"] == named

    run(scenario())


def test_a_thought_and_a_call_come_back_as_they_were_remembered() -> None:
    """What is remembered of an answer is what its items, sent back, are read as."""
    said = f"<think>\nhm\n</think>\n\nLook.{call('patch', input='x')}"

    async def scenario() -> None:
        async with desk(script=script(said)) as at:
            output = (await asked(at, store=False))["output"]
            [model] = at.bench.models
            _, _, turn = model.prompts.remembered[-1]
            body = json.dumps({"input": output, "tools": [LS, PATCH]}).encode()
            [message] = OpenAIResponses(ResponseStore()).parse(body).prompt.messages
            assert (message.text, message.reasoning) == (turn.text, turn.thought)
            [call_read], [call_remembered] = message.tool_calls, turn.calls
            assert (call_read.id, call_read.name) == (call_remembered.id, call_remembered.name)
            assert call_read.arguments == json.loads(call_remembered.arguments)

    run(scenario())
