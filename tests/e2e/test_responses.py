"""Responses on tiny real models: what is reused when a conversation only grows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.api import responses_sdk as sdk
from tests.e2e.real_app import App, Pair, served
from tests.fakes import filler

GAP = 16
Items = list[dict[str, Any]]
READ = {"type": "function", "name": "read", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"a"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "print(1)"}
REMINDER = {"role": "developer", "content": "Reminder 7: keep the todo list fresh"}
HEAD = {"role": "developer", "content": filler(400, 2)}


@pytest.fixture(scope="module", params=["tiny-full", "tiny-hybrid"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    from mlx_backend.tiny_models import write_folder

    root: Path = tmp_path_factory.mktemp("models")
    with served(write_folder(request.param, root / request.param)) as started:
        yield started


def say(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


async def told(app: App, items: Items, **fields: Any) -> dict[str, Any]:
    answer = await app.post("/v1/responses", {"input": items, "max_output_tokens": 8, **fields})
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return sdk.ended(answer.text)
    sdk.response(answer.text)
    whole: dict[str, Any] = answer.json()
    return whole


async def ask(pair: Pair, items: Items, **fields: Any) -> dict[str, Any]:
    """The warm answer, which has to say what the cold one says."""
    warm, cold = await told(pair.warm, items, **fields), await told(pair.cold, items, **fields)
    assert said(warm) == said(cold)
    return warm


def said(response: dict[str, Any]) -> list[Any]:
    return [item.get("content") or item.get("summary") for item in response["output"]]


def cached(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens_details"]["cached_tokens"])


def prompt(response: dict[str, Any]) -> int:
    return int(response["usage"]["input_tokens"])


def test_late_developer_messages_cost_only_themselves(pair: Pair) -> None:
    """Also two of them, and where one stands between a call and its result."""
    steps: list[Items] = [
        [HEAD, say("user", "u1"), say("assistant", "a1"), say("user", "u2")],
        [REMINDER],
        [say("assistant", "a2"), say("user", "u3"), {**REMINDER, "role": "system"}, REMINDER],
        [say("assistant", "looking"), CALL, REMINDER, OUTPUT],
        [say("assistant", "a3"), say("user", "u4")],
    ]

    async def scenario() -> None:
        history: Items = []
        answers = []
        for step in steps:
            history = [*history, *step]
            answers.append(await ask(pair, history, tools=[READ]))
        for before, after in pairwise(answers):
            assert prompt(after) > prompt(before)
            assert cached(after) >= prompt(before) - GAP

    pair.run(scenario())


def test_a_conversation_that_goes_on_by_id_reads_what_one_that_sends_all_of_it_reads(
    pair: Pair,
) -> None:
    async def scenario() -> None:
        items = [HEAD, say("user", filler(100, 3))]
        first = await told(pair.warm, items, stream=True)
        more = [say("user", "and now?")]
        by_id = await told(pair.warm, more, previous_response_id=first["id"])
        assert cached(by_id) >= prompt(first) - GAP
        in_full = await told(pair.warm, [*items, *first["output"], *more], stream=True)
        assert prompt(in_full) == prompt(by_id)
        assert cached(in_full) >= prompt(by_id) - GAP

    pair.run(scenario())


def test_ids_status_and_content_as_parts_reuse_what_was_read(pair: Pair) -> None:
    """Codex draws new ids for its first items in every process."""

    def items(name: str) -> Items:
        part = {"type": "input_text", "text": filler(200, 4)}
        content: object = [part] if name == "one" else part["text"]
        return [
            {"type": "message", "id": f"{name}_1", **HEAD},
            {"id": f"{name}_2", "status": "completed", "role": "user", "content": content},
        ]

    async def scenario() -> None:
        first = await ask(pair, items("one"), client_metadata={"turn": "1"})
        again = await ask(pair, items("two"), client_metadata={"turn": "2"})
        assert prompt(again) == prompt(first)
        assert cached(again) >= prompt(first) - GAP

    pair.run(scenario())
