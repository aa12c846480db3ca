"""Anthropic's route through the whole application, with the vendor's own client where it can."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from daemon.api.sse import KeepAlive
from tests.api import anthropic_sdk as sdk
from tests.api.admin_desk import PORT, Desk, desk
from tests.engine.harness import run, until
from tests.fakes import Faults, Script, filler, fixed_reply

PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
USER = {"role": "user", "content": "hi"}
READ = {"name": "read", "description": "reads", "input_schema": {"type": "object"}}
LOOP = [
    {"role": "user", "content": "look"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should look.", "signature": "x"},
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "a"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": filler(900, 3)}],
    },
]


def script(said: str = "Certainly.", **options: Any) -> Script:
    return Script(reply=fixed_reply(list(said.encode())), **options)


def client(at: Desk) -> anthropic.AsyncAnthropic:
    """The vendor's own, on this application."""
    transport = httpx2.ASGITransport(at.app)
    http = httpx2.AsyncClient(transport=transport)
    url = f"http://localhost:{PORT}"
    return anthropic.AsyncAnthropic(api_key="any", base_url=url, http_client=http, max_retries=0)


async def asked(at: Desk, path: str = PATH, **fields: Any) -> httpx2.Response:
    return await at.ask("POST", path, json={"messages": [USER], "max_tokens": 50, **fields})


def test_the_vendors_client_gets_the_same_message_whole_and_streamed() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at, client(at) as vendor:
            wanted: Any = {"model": "claude-any", "max_tokens": 50, "messages": [USER]}
            whole = await vendor.messages.create(**wanted)
            async with vendor.messages.stream(**wanted) as stream:
                streamed = await stream.get_final_message()
            assert sdk.said(whole)["content"] == sdk.said(streamed)["content"]
            assert [block.type for block in whole.content] == ["text"]
            assert whole.stop_reason == streamed.stop_reason == "end_turn"
            assert whole.id == f"msg_{str(whole._request_id).removeprefix('req_')}"
            counted = await vendor.messages.count_tokens(model="claude-any", messages=[USER])  # type: ignore[list-item]
            assert counted.input_tokens == whole.usage.input_tokens

    run(scenario())


def test_usage_is_the_same_whole_and_streamed_and_known_from_the_start() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            first = sdk.message((await asked(at)).text).usage
            prompt = first.input_tokens
            assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, 0)
            again = sdk.message((await asked(at)).text).usage
            told = sdk.events((await asked(at, stream=True)).text)
            at_start, at_end = told[0]["message"]["usage"], told[-2]["usage"]
            assert again.cache_read_input_tokens == at_end["cache_read_input_tokens"] > 0
            assert at_end["input_tokens"] + at_end["cache_read_input_tokens"] == prompt
            assert (at_start["output_tokens"], at_end["output_tokens"]) == (0, 10)
            assert at_end.items() >= {**at_start, "output_tokens": 10}.items()

    run(scenario())


def test_a_stop_string_ends_the_answer_and_is_named() -> None:
    async def scenario() -> None:
        async with desk(script=script("one beta gamma x")) as at:
            for stream in (False, True):
                answer = await asked(at, stop_sequences=["beta gamma"], stream=stream)
                message = (
                    sdk.accumulated(sdk.events(answer.text)) if stream else sdk.message(answer.text)
                )
                assert sdk.said(message)["content"] == [{"type": "text", "text": "one "}]
                assert message.stop_reason == "stop_sequence"
                assert message.stop_sequence == "beta gamma"

    run(scenario())


def test_what_agents_send_besides_is_accepted_and_listed_in_a_header() -> None:
    fields = {
        "model": "claude-opus-4-6",
        "max_tokens": 128_000,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "metadata": {"user_id": json.dumps({"session_id": "s1"})},
        "tools": [{"type": "web_search_20250305", "name": "web_search"}, READ],
    }
    headers = {"anthropic-version": "2026-10-21", "anthropic-beta": "a,b", "x-api-key": "any"}

    async def scenario() -> None:
        async with desk(script=script()) as at:
            body = {"messages": [USER], **fields}
            answer = await at.ask("POST", f"{PATH}?beta=true", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            listed = answer.headers["x-mlxd-ignored"].split(", ")
            assert listed == ["context_management", "thinking.display", "tools[0]"]
            [session] = (await at.json("/v1/sessions"))["data"]
            assert session["id"] == "s1"

    run(scenario())


def test_refusals_have_the_vendors_envelope_and_the_answers_own_request_id() -> None:
    async def scenario() -> None:
        async with desk(script=script(context_size=500)) as at, client(at) as vendor:
            for answer, kind, words in (
                (await asked(at, messages=[]), "invalid_request_error", "`messages`"),
                (await asked(at, model="nonsense"), "not_found_error", "nonsense"),
                (
                    await asked(at, tools=[READ], tool_choice={"type": "tool", "name": "x"}),
                    "invalid_request_error",
                    "`tool_choice`",
                ),
                (
                    await asked(at, messages=[{"role": "user", "content": filler(2000, 1)}]),
                    "invalid_request_error",
                    "prompt is too long: ",
                ),
            ):
                told = answer.json()
                assert told["error"]["type"] == kind
                assert words in told["error"]["message"]
                assert told["request_id"] == answer.headers["x-request-id"]
            messages: Any = [{"role": "user", "content": filler(2000, 1)}]
            with pytest.raises(anthropic.BadRequestError) as caught:
                await vendor.messages.create(model="claude", max_tokens=1, messages=messages)
            assert caught.value.type == "invalid_request_error"

    run(scenario())


def test_a_full_queue_says_when_to_come_back() -> None:
    async def scenario() -> None:
        async with desk(script=script(), max_queued=1, max_concurrent=1) as at:
            async with at.bench.held():
                waiting = asyncio.create_task(asked(at))
                await until(lambda: len(at.bench.engine.status().waiting) == 1)
                refused = await asked(at)
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) > 0
                assert refused.json()["error"]["type"] == "rate_limit_error"
            assert (await waiting).status_code == 200

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_is_an_error_in_the_form_of_the_answer(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script(faults=Faults(steps=1))) as at:
            answer = await asked(at, stream=stream)
            if not stream:
                assert answer.status_code >= 500
                assert answer.json()["type"] == "error"
                return
            told = sdk.events(answer.text)
            assert [told[0]["type"], told[-1]["type"]] == ["message_start", "error"]
            assert "message_stop" not in {event["type"] for event in told}

    run(scenario())


def test_a_long_reading_is_filled_with_pings_behind_the_true_prompt_length() -> None:
    keep_alive = {"keep_alive": KeepAlive(comment_seconds=0.01, event_seconds=0.02)}

    async def scenario() -> None:
        async with desk(script=script(), door=keep_alive) as at:
            body = {"messages": [USER], "stream": True}
            counted = (await asked(at, COUNT_PATH)).json()["input_tokens"]
            written: list[bytes] = []

            async def send(message: Message) -> None:
                written.append(message.get("body", b""))

            at.bench.chunks.allow(0)
            asking = asyncio.create_task(at.post(PATH, body, send))
            while b"".join(written).count(b"event: ping\n") < 3:
                await asyncio.sleep(0.005)
            at.bench.chunks.free()
            await asking
            told = sdk.events(b"".join(written))
            assert told[0]["message"]["usage"]["input_tokens"] == counted
            assert told[1] == {"type": "ping"}
            assert told[-1]["type"] == "message_stop"

    run(scenario())


def test_twenty_five_counts_at_once_are_exact_and_leave_the_engine_alone() -> None:
    bodies: list[dict[str, Any]] = [
        {"messages": LOOP, "tools": [READ], "system": f"s{index}" * index} for index in range(24)
    ]
    bodies.append({"messages": LOOP[:2]})

    async def scenario() -> None:
        async with desk(script=script()) as at:
            await asked(at)
            await at.bench.idle()
            del at.bench.log[:]
            before = at.bench.engine.status().totals
            async with at.bench.held():
                counts = await asyncio.gather(*(asked(at, COUNT_PATH, **body) for body in bodies))
            assert all(answer.status_code == 200 for answer in counts)
            assert at.bench.engine.status().totals.requests == before.requests + 1  # the gate's
            for body, counted in list(zip(bodies, counts, strict=True))[:24:6]:
                usage = sdk.message((await asked(at, **body)).text).usage
                total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
                assert counted.json() == {"input_tokens": total}

    run(scenario())


def test_counting_refuses_as_asking_does() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            assert (await asked(at, COUNT_PATH, model="nonsense")).status_code == 404
            refused = await asked(at, COUNT_PATH, messages=[])
            assert (refused.status_code, refused.json()["type"]) == (400, "error")

    run(scenario())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Right ten times out of eleven."""
    return st.integers(0, 10).flatmap(lambda chance: right if chance else JSON)


def block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    rights = {name: mostly(right) for name, right in fields.items()}
    return st.fixed_dictionaries({"type": st.just(kind), **rights})


WORDS = st.text(max_size=3)
TEXTS = st.lists(block("text", text=WORDS) | block("image") | WORDS, max_size=2)
SOURCES = block("text", data=WORDS) | block("content", content=TEXTS) | block("url")
READABLE = block("document", source=SOURCES) | block("tool_reference", tool_name=st.just("read"))
RESULT = block("tool_result", tool_use_id=WORDS, content=TEXTS | WORDS, is_error=st.booleans())
CALL = block("tool_use", id=WORDS, name=WORDS, input=st.dictionaries(WORDS, JSON, max_size=2))
THOUGHT = block("thinking", thinking=WORDS)
SAYS = {
    "user": st.lists(RESULT | READABLE, max_size=2) | TEXTS | WORDS,
    "assistant": st.lists(THOUGHT | CALL | block("text", text=WORDS), max_size=3) | WORDS,
    "system": TEXTS | WORDS,
}
MESSAGE = st.sampled_from(list(SAYS)).flatmap(
    lambda role: st.fixed_dictionaries({"role": st.just(role), "content": mostly(SAYS[role])})
)
FIELDS = st.fixed_dictionaries(
    {"messages": mostly(st.lists(MESSAGE, min_size=1, max_size=4))},
    optional={
        "system": mostly(TEXTS | WORDS),
        "tools": mostly(st.just([READ])),
        "tool_choice": mostly(block("auto") | block("none") | block("any")),
        "max_tokens": mostly(st.integers(1, 20)),
        "stop_sequences": mostly(st.lists(WORDS, max_size=2)),
        "temperature": mostly(st.floats(0, 1)),
        "thinking": mostly(block("adaptive") | block("disabled")),
        "output_config": mostly(block("x", effort=WORDS)),
        "metadata": JSON,
        "stream": mostly(st.booleans()),
        "chat_template_kwargs": mostly(st.dictionaries(WORDS, JSON, max_size=1)),
    },
)


@asynccontextmanager
async def open_desk() -> AsyncIterator[Desk]:
    async with desk(script=script("ok")) as at:
        yield at


def test_no_body_makes_the_daemon_fail() -> None:
    with asyncio.Runner() as runner:
        context = open_desk()
        at = runner.run(context.__aenter__())

        @settings(max_examples=100)
        @given(FIELDS, st.sampled_from([PATH, COUNT_PATH]))
        def ask(body: object, path: str) -> None:
            content = json.dumps(body)
            headers = {"content-type": "application/json"}
            answer = runner.run(at.ask("POST", path, content=content, headers=headers))
            assert answer.status_code < 500, answer.text
            if answer.status_code == 200 and "event-stream" in answer.headers["content-type"]:
                sdk.accumulated(sdk.events(answer.text))

        try:
            ask()
        finally:
            runner.run(context.__aexit__(None, None, None))
