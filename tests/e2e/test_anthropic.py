"""Anthropic's messages on tiny real models: what is reused, and that a count is what is read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message

from tests.api import anthropic_sdk as sdk
from tests.e2e.real_app import App, Pair, served
from tests.fakes import filler

GAP = 16
Messages = list[dict[str, Any]]
READ = {"name": "read", "description": "reads a file", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a.py"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "print(1)"}
REMINDER = {"role": "system", "content": "Reminder 7: keep the todo list fresh"}


@pytest.fixture(scope="module", params=["tiny-full", "tiny-hybrid"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    from mlx_backend.tiny_models import write_folder

    root: Path = tmp_path_factory.mktemp("models")
    with served(write_folder(request.param, root / request.param)) as started:
        yield started


def on(*kinds: str) -> pytest.MarkDecorator:
    """The kinds of cache that a test is about; without this it is about both."""
    return pytest.mark.parametrize("pair", kinds, indirect=True)


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def say(role: str, *content: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": role, "content": [text(c) if isinstance(c, str) else c for c in content]}


async def told(app: App, messages: Messages, **fields: Any) -> Message:
    answer = await app.post("/v1/messages", {"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return sdk.accumulated(sdk.events(answer.text))
    return sdk.message(answer.text)


async def ask(pair: Pair, messages: Messages, **fields: Any) -> Message:
    """The warm answer, which has to be what the cold one is."""
    warm = await told(pair.warm, messages, **fields)
    cold = await told(pair.cold, messages, **fields)
    assert sdk.said(warm)["content"] == sdk.said(cold)["content"]
    assert warm.stop_reason == cold.stop_reason
    return warm


def cached(message: Message) -> int:
    return message.usage.cache_read_input_tokens or 0


def prompt(message: Message) -> int:
    """The three parts of what was read, added up."""
    return message.usage.input_tokens + cached(message) + _created(message)


def _created(message: Message) -> int:
    return message.usage.cache_creation_input_tokens or 0


def said(message: Message) -> dict[str, Any]:
    """The answer as the client sends it back."""
    return {"role": "assistant", "content": sdk.said(message)["content"]}


@on("tiny-hybrid")
def test_a_vendors_line_at_the_top_of_the_system_prompt_costs_nothing(pair: Pair) -> None:
    def system(checksum: str) -> Messages:
        line = (
            f"x-anthropic-billing-header: cc_version=9.9.9.aaa; cc_entrypoint=cli; cch={checksum};"
        )
        return [text(line), text(filler(600, 1))]

    async def scenario() -> None:
        messages: Messages = [say("user", "first question")]
        first = await ask(pair, messages, system=system("11111"))
        messages += [said(first), say("user", "and now?")]
        second = await ask(pair, messages, system=system("22222"), stream=True)
        assert cached(second) >= 0.95 * prompt(first)

    pair.run(scenario())


def test_late_system_messages_cost_only_themselves(pair: Pair) -> None:
    """Also where one stands between a call and its result."""

    async def scenario() -> None:
        messages: Messages = [say("user", "u1"), say("assistant", "a1"), say("user", "u2")]
        steps: list[Messages] = [
            messages,
            [REMINDER],
            [say("assistant", "a2"), say("user", "u3"), {**REMINDER, "content": "Reminder 8"}],
            [say("assistant", "looking", CALL), REMINDER, say("user", RESULT)],
            [say("assistant", "a3"), say("user", "u4")],
        ]
        history: Messages = []
        answers = []
        for step in steps:
            history = [*history, *step]
            answers.append(await ask(pair, history, system=filler(400, 2), tools=[READ]))
        for before, after in pairwise(answers):
            assert cached(after) >= prompt(before) - GAP
            assert prompt(after) > prompt(before)

    pair.run(scenario())


@on("tiny-full")
def test_the_form_of_content_and_moving_cache_marks_make_no_difference(pair: Pair) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}

    async def scenario() -> None:
        blocks: Messages = [say("user", "one"), say("assistant", "two"), say("user", "three")]
        strings = [{**each, "content": each["content"][0]["text"]} for each in blocks]
        marked = [{**each, "content": [{**each["content"][0], **mark}]} for each in blocks]
        system = filler(300, 3)
        first = await ask(pair, blocks, system=[text(system)])
        for messages, opening in ((strings, system), (marked, [text(system, **mark)])):
            again = await ask(pair, messages, system=opening, metadata={"user_id": "someone"})
            assert prompt(again) == prompt(first)
            assert cached(again) >= prompt(first) - GAP

    pair.run(scenario())


def test_a_tool_that_is_loaded_late_costs_only_its_own_definition(pair: Pair) -> None:
    search = {**READ, "name": "search"}
    late = {**READ, "name": "edit", "description": filler(300, 4), "defer_loading": True}
    reference = {**RESULT, "content": [{"type": "tool_reference", "tool_name": "edit"}]}

    async def scenario() -> None:
        messages: Messages = [say("user", "change it")]
        first = await ask(pair, messages, tools=[READ, search], system=filler(300, 5))
        messages += [say("assistant", CALL), say("user", reference)]
        second = await ask(pair, messages, tools=[late, READ, search], system=filler(300, 5))
        assert cached(second) >= prompt(first) - GAP
        assert prompt(second) > prompt(first) + 50

    pair.run(scenario())


@on("tiny-full")
def test_equal_conversations_are_equal_prompts_in_both_apis(pair: Pair) -> None:
    function = {"name": "read", "description": "reads a file", "parameters": {"type": "object"}}
    called = {"name": "read", "arguments": json.dumps(CALL["input"])}
    spoken: Messages = [
        {"role": "system", "content": filler(100, 8)},
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Where is it?",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": called}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "print(1)"},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
    ]
    thought = {"type": "thinking", "thinking": "Where is it?", "signature": "x"}
    told_here: Messages = [
        {"role": "user", "content": "look"},
        say("assistant", thought, "I look.", CALL),
        say("user", RESULT),
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "and now?"},
    ]

    async def scenario() -> None:
        tools = [{"type": "function", "function": function}]
        first = await pair.warm.chat(spoken, tools=tools)
        second = await ask(pair, told_here, tools=[READ], system=filler(100, 8))
        assert prompt(second) == first.prompt
        assert cached(second) == first.prompt - 1

    pair.run(scenario())


@on("tiny-full")
def test_what_was_said_is_not_read_again_when_it_comes_back(pair: Pair) -> None:
    async def scenario() -> None:
        messages: Messages = [say("user", "hello there")]
        answers = []
        for seed in range(4):
            answers.append(
                await ask(pair, messages, system=filler(200, 7), seed=seed, stream=bool(seed % 2))
            )
            messages = [*messages, said(answers[-1]), say("user", f"next {seed}")]
        plain = 0
        for before, after in pairwise(answers):
            if [block.type for block in before.content] == ["text"]:
                plain += 1
                assert cached(after) >= prompt(before) + before.usage.output_tokens
        assert plain >= 2

    pair.run(scenario())


@on("tiny-full")
def test_counts_are_exact_also_with_tools_calls_long_results_and_thoughts(pair: Pair) -> None:
    thought = {"type": "thinking", "thinking": "I should look.", "signature": "x"}
    long_result = {**RESULT, "content": filler(5000, 6)}
    turns = [say("user", "u1"), say("assistant", thought, "ok", CALL), say("user", long_result)]
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    bodies: list[dict[str, Any]] = [
        {"messages": turns, "tools": [READ], "system": "s"},
        {"messages": turns[:1], "thinking": {"type": "adaptive"}},
        {"messages": [say("user", "x", image), REMINDER], "tools": [READ]},
    ]

    async def scenario() -> None:
        await pair.warm.engine.ask(lambda seen: seen.cache.clear())
        posted = [pair.warm.post("/v1/messages/count_tokens", body) for body in bodies * 8]
        counts = [json.loads(answer.text) for answer in await asyncio.gather(*posted)]
        status = pair.warm.engine.status()
        assert status.cache.entries == 0
        for body, count in zip(bodies, counts[: len(bodies)], strict=True):
            assert count == {"input_tokens": prompt(await told(pair.warm, **body))}
        assert counts == counts[: len(bodies)] * 8

    pair.run(scenario())
