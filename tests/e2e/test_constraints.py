"""JSON and calls that are enforced on a model that would say anything, and come back; over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.real_app import Pair, served

SCHEMA = {
    "type": "object",
    "properties": {"is_safe": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["is_safe", "size"],
    "additionalProperties": False,
}
FUNCTION = {"type": "function", "function": {"name": "judge", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"


@pytest.fixture(scope="module", params=["tiny-full", "tiny-hybrid"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    from mlx_backend.tiny_models import write_folder

    root: Path = tmp_path_factory.mktemp("models")
    with served(write_folder(request.param, root / request.param, template="plain")) as started:
        yield started


def without_thinking() -> dict[str, int]:
    """A model of random weights that begins to think does not stop."""
    from mlx_backend.tiny_tokenizer import token_id

    return {str(token_id("<think>")): -100}


def judged(value: Any) -> bool:
    return (
        list(value) == ["is_safe", "size"]
        and isinstance(value["is_safe"], bool)
        and value["size"] in ("small", "large")
    )


async def choice(pair: Pair, **fields: Any) -> dict[str, Any]:
    body = {"messages": MESSAGES, "max_tokens": 200, "logit_bias": without_thinking(), **fields}
    answer = await pair.warm.post(PATH, body)
    assert answer.status_code == 200, answer.text
    [found] = answer.json()["choices"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_an_answer_keeps_to_its_schema(pair: Pair, seed: int) -> None:
    async def scenario() -> None:
        format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        answered = await choice(pair, response_format=format_, seed=seed)
        assert answered["finish_reason"] == "stop"
        assert judged(json.loads(answered["message"]["content"]))

    pair.run(scenario())


@pytest.mark.parametrize("name", ["required", "judge"])
def test_a_call_that_is_asked_for_comes_whole(pair: Pair, name: str) -> None:
    named = {"type": "function", "function": {"name": name}}
    asked = {"tools": [FUNCTION], "tool_choice": name if name == "required" else named}

    async def scenario() -> None:
        answered = await choice(pair, parallel_tool_calls=False, **asked)
        assert answered["finish_reason"] == "tool_calls"
        [made] = answered["message"]["tool_calls"]
        assert made["function"]["name"] == "judge"
        assert judged(json.loads(made["function"]["arguments"]))

    pair.run(scenario())


def test_a_call_that_comes_back_in_other_words_is_not_read_again(pair: Pair) -> None:
    """The client parses the arguments and writes them anew; a changed value is another call."""

    async def scenario() -> None:
        named = {"type": "function", "function": {"name": "judge"}}
        fields = {
            "tools": [FUNCTION],
            "tool_choice": named,
            "logit_bias": without_thinking(),
            "session_id": "s",
            "max_tokens": 200,
        }
        first = (await pair.warm.post(PATH, {"messages": MESSAGES, **fields})).json()
        [choice_] = first["choices"]
        [made] = choice_["message"]["tool_calls"]
        judgement = json.loads(made["function"]["arguments"])
        past = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]

        async def echoed(**changes: Any) -> dict[str, Any]:
            arguments = json.dumps(dict(reversed((judgement | changes).items())), indent=1)
            called = {**made, "function": {"name": "judge", "arguments": arguments}}
            answered = {"role": "assistant", "content": None, "tool_calls": [called]}
            result = {"role": "tool", "tool_call_id": made["id"], "content": "so be it"}
            sent = {**fields, "tool_choice": "none", "max_tokens": 3}
            body = {"messages": [*MESSAGES, answered, result], **sent}
            answer = await pair.warm.post(PATH, body)
            assert answer.status_code == 200, answer.text
            usage: dict[str, Any] = answer.json()["usage"]
            return usage

        other = await echoed(is_safe=not judgement["is_safe"])
        same = await echoed()
        assert other["prompt_tokens_details"]["cached_tokens"] < past
        assert same["prompt_tokens_details"]["cached_tokens"] >= past
        assert same["prompt_tokens"] - past < 64  # the result and the marks around it

    pair.run(scenario())
