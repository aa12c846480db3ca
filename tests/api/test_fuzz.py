"""No body makes the daemon fail: whole requests of every dialect, damaged at random places.

Short by default; `pytest -n 0 tests/api/test_fuzz.py --fuzz-minutes 10` goes on for so long.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.admin_desk import Desk, desk
from tests.api.wires import CHAT, COMPLETIONS, MESSAGES, RESPONSES, WIRES, Wire
from tests.engine.harness import run as run_bounded
from tests.fakes import Script, fixed_reply

SHORT_EXAMPLES = 80
LONG_EXAMPLES = 2_000

SAID = '<think>hm</think>\nSo: <tool_call>{"name": "ls", "arguments": {"a": [1]}}</tool_call> END.'
OBJECT = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {}}}
FUNCTION = {"name": "ls", "description": "lists", "parameters": OBJECT, "strict": True}
CALL = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
SHARED = {"model": "scripted", "temperature": 0.5, "top_p": 0.9, "stream": False, "session_id": "s"}
OPENAI = {
    **SHARED,
    "max_tokens": 30,
    "top_k": 3,
    "min_p": 0.1,
    "seed": 1,
    "n": 1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "stop": ["END"],
    "stream_options": {"include_usage": True},
    "prompt_cache_key": "k",
    "metadata": {"user_id": "u"},
}

BODIES: dict[str, list[dict[str, Any]]] = {
    CHAT.name: [
        {
            **OPENAI,
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]},
                {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"},
                {"role": "tool", "content": "ok", "tool_call_id": "c1", "name": "ls"},
                {"role": "developer", "content": "late"},
            ],
            "tools": [
                {"type": "function", "function": FUNCTION},
                {"type": "custom", "custom": {"name": "p", "format": {"type": "text"}}},
                {"type": "web_search"},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "logprobs": True,
            "top_logprobs": 2,
            "reasoning_effort": "low",
            "chat_template_kwargs": {"enable_thinking": True},
        },
        {
            "messages": [{"role": "user", "content": "hi"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": OBJECT, "strict": True},
            },
            "reasoning": {"effort": "high", "enabled": True},
            "thinking": {"type": "enabled"},
            "max_completion_tokens": 5,
        },
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "function_call": {"name": "ls", "arguments": "{}"}},
                {"role": "function", "name": "ls", "content": "ok"},
            ],
            "functions": [FUNCTION],
            "function_call": {"name": "ls"},
            "stream": True,
        },
    ],
    COMPLETIONS.name: [
        {**OPENAI, "prompt": "def f(", "logprobs": 2, "echo": False, "best_of": 1},
        {"prompt": [1, 2, 3], "stream": True, "max_tokens": 3},
        {"prompt": ["one"], "suffix": "end", "stop": "E", "max_tokens": 3},
    ],
    MESSAGES.name: [
        {
            **SHARED,
            "max_tokens": 30,
            "system": [
                {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}
            ],
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "s"},
                        {"type": "text", "text": "so"},
                        {"type": "tool_use", "id": "t1", "name": "ls", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "is_error": True,
                            "content": [{"type": "text", "text": "no"}, {"type": "image"}],
                        }
                    ],
                },
            ],
            "tools": [
                {"name": "ls", "input_schema": OBJECT},
                {"type": "web_search_20250305", "name": "web_search"},
                {"name": "late", "input_schema": OBJECT, "defer_loading": True},
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "stop_sequences": ["END"],
            "top_k": 4,
            "metadata": {"user_id": "u"},
        },
        {
            "max_tokens": 9,
            "stream": True,
            "messages": [{"role": "user", "content": "hi"}],
            "output_config": {
                "effort": "low",
                "format": {"type": "json_schema", "schema": OBJECT},
            },
            "thinking": {"type": "adaptive"},
        },
    ],
    RESPONSES.name: [
        {
            **SHARED,
            "max_output_tokens": 30,
            "instructions": "be brief",
            "input": [
                {"type": "message", "role": "developer", "content": "late"},
                {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
                {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "ok"},
                {"type": "custom_tool_call", "call_id": "c2", "name": "p", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
            ],
            "tools": [
                {"type": "function", **FUNCTION},
                {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
                {"type": "custom", "name": "p", "format": {"type": "text"}},
                {"type": "web_search"},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
            "reasoning": {"effort": "low", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "store": False,
            "top_logprobs": 2,
            "prompt_cache_key": "k",
            "client_metadata": {"a": "b"},
        },
        {
            "input": "hi",
            "stream": True,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": OBJECT}},
            "tools": [{"type": "function", **FUNCTION}],
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "ls"}]},
            "previous_response_id": None,
        },
    ],
}

SPOKEN = "ls none required function text custom user assistant tool system json_schema tool_use"
ODD = '\x00 <s> <|im_end|> </think> <tool_call> é😀 {} {"a": [[[ tool_result image input_text any'
WORDS = f"{SPOKEN} {ODD}".split()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**31, -(2**63), 2**70, 1e308, 0.5, -1.5])
    | st.text(max_size=4)
    | st.sampled_from(WORDS)
)
KEYS = st.sampled_from(["type", "name", "text", "content", "function", "id", "role", "", "$ref"])
JUNK = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
SPLICES = st.none() | st.tuples(st.integers(0, 500), st.binary(max_size=3))
FLAWS = st.sampled_from(["replace", "replace", "remove", "repeat", "wrap", "swap"])


@st.composite
def bodies(draw: st.DrawFn, wire: Wire) -> dict[str, Any]:
    """A request that makes sense, but for a few places."""
    body = deepcopy(draw(st.sampled_from(BODIES[wire.name])))
    for _ in range(draw(st.integers(0, 4))):
        if found := places(body):
            damage(draw, *draw(st.sampled_from(found)))
    if draw(st.booleans()):
        body["stream"] = draw(st.booleans())
    return body


def places(value: Any) -> list[tuple[Any, Any]]:
    """Everything in a JSON value, as what holds it and under which key."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending:
        holder = pending.pop()
        inside = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, item in inside:
            found.append((holder, key))
            if isinstance(item, dict | list):
                pending.append(item)
    return found


def damage(draw: st.DrawFn, holder: Any, place: Any) -> None:
    match draw(FLAWS):
        case "remove":
            del holder[place]
        case "repeat" if isinstance(holder, list):
            holder.insert(place, deepcopy(holder[place]))
        case "wrap":
            holder[place] = draw(st.sampled_from([[holder[place]], {"type": holder[place]}]))
        case "swap":
            _, other = draw(st.sampled_from(places(holder)))
            if isinstance(holder, dict) and isinstance(other, str):
                holder[place] = deepcopy(holder.get(other))
        case _:
            holder[place] = draw(JUNK)


def check(wire: Wire, answer: httpx2.Response) -> None:
    """An answer in the dialect's form, or a refusal that speaks of JSON and not of this program."""
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200 and "event-stream" in answer.headers["content-type"]:
        assert '"error"' not in answer.text or '"error":null' in answer.text, answer.text
        assert wire.terminal in answer.text or "response.incomplete" in answer.text
        return
    told = answer.json()
    if answer.status_code != 200:
        message = told["error"]["message"]
        for word in ("pydantic", "NoneType", "dict", "Traceback", "object at 0x"):
            assert word not in message.replace("dictionary", ""), message


@asynccontextmanager
async def open_desk() -> AsyncIterator[Desk]:
    said = fixed_reply(list(SAID.encode()))
    script = Script(reply=said, takes_constraints=True, can_fill_in=True)
    async with desk(script=script) as at:
        yield at


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_the_bodies_that_are_damaged_make_sense_as_they_are(wire: Wire) -> None:
    async def scenario() -> None:
        async with open_desk() as at:
            for body in BODIES[wire.name]:
                answer = await at.ask("POST", wire.path, json=body)
                assert answer.status_code == 200, answer.text
                check(wire, answer)

    run_bounded(scenario())


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_no_body_makes_the_daemon_fail(wire: Wire, fuzz_minutes: float) -> None:
    examples = LONG_EXAMPLES if fuzz_minutes else SHORT_EXAMPLES
    deadline = time.monotonic() + fuzz_minutes * 60 / len(WIRES)
    with asyncio.Runner() as runner:
        context = open_desk()
        at = runner.run(context.__aenter__())

        @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
        @given(bodies(wire), SPLICES)
        def ask(body: dict[str, Any], splice: tuple[int, bytes] | None) -> None:
            headers = {"content-type": "application/json"}
            content = json.dumps(body).encode()
            if splice is not None:
                at_byte, inserted = splice
                content = content[:at_byte] + inserted + content[at_byte + len(inserted) :]
            answer = runner.run(at.ask("POST", wire.path, content=content, headers=headers))
            check(wire, answer)

        try:
            ask()
            while time.monotonic() < deadline:
                ask()
        finally:
            runner.run(context.__aexit__(None, None, None))
