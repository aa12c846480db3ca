"""Fields and headers that say nothing about the prompt change nothing about its reuse."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from mlx_backend.messages import CacheKind
from tests.api.admin_desk import Desk, desk
from tests.engine.harness import every_caching_kind, run
from tests.fakes import filler

CHAT = "/v1/chat/completions"
SYSTEM = filler(400, 1)
CELLS = list(itertools.product([False, True], [None, {"enable_thinking": False}]))

MARK = {"cache_control": {"type": "ephemeral"}}
VARIATIONS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({"user": "somebody"}, {}),
    ({"user": "somebody else"}, {}),
    ({"metadata": {"user_id": "user_1_session_one"}}, {}),
    ({"metadata": {"user_id": '{"session_id": "two"}'}}, {}),
    ({"prompt_cache_key": "one"}, {}),
    ({"prompt_cache_key": "two"}, {}),
    ({"session_id": "three"}, {}),
    ({"store": False, "service_tier": "flex", "seed": 7, "temperature": 1.5}, {}),
    ({}, {"x-session-id": "four"}),
    ({}, {"x-claude-code-session-id": "five", "x-claude-code-agent-id": "six"}),
    ({}, {"session-id": "family", "thread-id": "seven", "anthropic-beta": "context-1m"}),
]


def parts(text: str, *marked: int) -> list[dict[str, Any]]:
    """A message's content in three parts, of which some carry a cache mark."""
    cuts = [text[:100], text[100:200], text[200:]]
    return [
        {"type": "text", "text": cut, **(MARK if index in marked else {})}
        for index, cut in enumerate(cuts)
    ]


def conversation(turns: int, *marked: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": parts(SYSTEM, *marked)}]
    for turn in range(turns):
        messages.append({"role": "user", "content": parts(filler(300, turn + 2), *marked)})
        messages.append({"role": "assistant", "content": f"answer {turn}"})
    return messages[:-1]


async def cached(
    at: Desk,
    messages: list[dict[str, Any]],
    headers: dict[str, str] | None = None,
    **fields: Any,
) -> int:
    body = {"messages": messages, "max_tokens": 8, **fields}
    if fields.get("stream"):
        body["stream_options"] = {"include_usage": True}
    answer = await at.ask("POST", CHAT, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        last = [line for line in answer.text.splitlines() if '"usage"' in line][-1]
        usage = json.loads(last.removeprefix("data: "))["usage"]
    else:
        usage = answer.json()["usage"]
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    assert isinstance(reused, int)
    return reused


@pytest.mark.parametrize("prompt_end", ["every", "initial"])
@every_caching_kind
def test_streaming_and_template_options_leave_the_reuse_as_it_is(
    kind: CacheKind, prompt_end: str
) -> None:
    async def scenario() -> None:
        found = []
        async with desk(kind, prompt_end=prompt_end) as at:
            for stream, options in CELLS:
                fields = {"stream": stream, "chat_template_kwargs": options, "session_id": "s"}
                found.append([await cached(at, conversation(n), **fields) for n in (1, 2, 3)])
                await at.bench.engine.ask(lambda seen: seen.cache.clear())
                await at.bench.engine.ask(lambda seen: seen.sessions.delete("s"))
        assert all(numbers == found[0] for numbers in found)
        assert found[0][0] == 0
        assert found[0][1] > 700
        assert found[0][2] > (1000 if prompt_end == "every" else 700)

    run(scenario())


@every_caching_kind
def test_what_one_way_of_asking_stored_is_read_by_the_others(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind) as at:
            await cached(at, conversation(2))
            again = {
                await cached(at, conversation(2), stream=stream, chat_template_kwargs=options)
                for stream, options in CELLS
            }
            assert len(again) == 1
            assert again.pop() > 1000

    run(scenario())


@every_caching_kind
def test_names_marks_and_sampling_do_not_matter(kind: CacheKind) -> None:
    async def scenario() -> None:
        async with desk(kind) as at:
            await cached(at, conversation(2))
            usual = await cached(at, conversation(2))
            assert usual > 1000
            for fields, headers in VARIATIONS:
                assert await cached(at, conversation(2), headers, **fields) == usual
            for marked in [(0,), (1,), (2,), (0, 2), (0, 1, 2)]:
                assert await cached(at, conversation(2, *marked)) == usual
            sessions = {session.id for session in at.bench.engine.status().sessions}
            named = {"one", "two", "three", "four", "five/six", "seven"}
            assert named <= sessions

    run(scenario())


def test_requests_carry_their_family_to_their_session() -> None:
    async def scenario() -> None:
        async with desk() as at:
            headers = {"session-id": "family", "thread-id": "member"}
            await cached(at, conversation(1), headers)
            (session,) = at.bench.engine.status().sessions
            assert (session.id, session.family) == ("member", "family")

    run(scenario())
