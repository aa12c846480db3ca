"""JSON and calls that are enforced on a model that would say anything, over HTTP."""

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
