"""The route for responses through the whole application, with OpenAI's own client where it can."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from daemon.api.sse import KeepAlive
from tests.api import responses_sdk as sdk
from tests.api.admin_desk import PORT, Desk, desk
from tests.engine.harness import run, until
from tests.fakes import Faults, Script, filler, fixed_reply

PATH = "/v1/responses"
LS = {"type": "function", "name": "ls", "parameters": {"type": "object"}}


def script(said: str = "Certainly.", **options: Any) -> Script:
    return Script(reply=fixed_reply(list(said.encode())), **options)


def client(at: Desk) -> openai.AsyncOpenAI:
    """The vendor's own, on this application."""
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(at.app))
    url = f"http://localhost:{PORT}/v1"
    return openai.AsyncOpenAI(api_key="any", base_url=url, http_client=http, max_retries=0)


async def asked(at: Desk, **fields: Any) -> httpx2.Response:
    return await at.ask("POST", PATH, json={"input": "hi", **fields})


async def answered(at: Desk, **fields: Any) -> dict[str, Any]:
    """A response, however it is sent."""
    answer = await asked(at, **fields)
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return sdk.ended(answer.text)
    sdk.response(answer.text)
    whole: dict[str, Any] = answer.json()
    return whole


def test_the_vendors_client_gets_the_same_response_whole_and_streamed() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at, client(at) as vendor:
            whole = await vendor.responses.create(model="gpt-any", input="hi", instructions="i")
            async with vendor.responses.stream(
                model="gpt-any", input="hi", instructions="i"
            ) as stream:
                streamed = await stream.get_final_response()
            assert whole.output_text == streamed.output_text == "Certainly."
            assert whole.status == streamed.status == "completed"
            assert whole.id.startswith("resp_")
            assert whole.model == streamed.model == "gpt-any"

    run(scenario())


def test_usage_is_the_same_whole_and_streamed() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            first = (await answered(at))["usage"]
            assert first["input_tokens_details"]["cached_tokens"] == 0
            again = (await answered(at))["usage"]
            assert again == (await answered(at, stream=True))["usage"]
            assert again["input_tokens"] == first["input_tokens"]
            assert 0 < again["input_tokens_details"]["cached_tokens"] < again["input_tokens"]

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_from_a_kept_response_and_reads_nothing_twice(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            first = await answered(at, input=filler(300, 1), stream=stream)
            before = first["usage"]["input_tokens"]
            more = {"input": "more", "previous_response_id": first["id"], "stream": stream}
            second = await answered(at, **more)
            usage = second["usage"]
            assert usage["input_tokens_details"]["cached_tokens"] >= before
            third = await answered(at, input="x", previous_response_id=second["id"])
            assert third["usage"]["input_tokens"] > usage["input_tokens"]
            items = [{"role": "user", "content": filler(300, 1)}, *first["output"]]
            items.append({"role": "user", "content": "more"})
            sent = await answered(at, input=items)
            assert sent["usage"]["input_tokens"] == usage["input_tokens"]

    run(scenario())


def test_kept_responses_are_read_and_forgotten_over_http() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            first, streamed = await answered(at), await answered(at, stream=True)
            for kept in (first, streamed):
                assert await at.json(f"{PATH}/{kept['id']}") == kept
            gone = await at.ask("DELETE", f"{PATH}/{first['id']}")
            assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
            unkept = await answered(at, store=False)
            for missing in (first["id"], unkept["id"], "resp_nonsense"):
                for method in ("GET", "DELETE"):
                    answer = await at.ask(method, f"{PATH}/{missing}")
                    assert answer.status_code == 404
                    assert missing in answer.json()["error"]["message"]
                refused = await asked(at, previous_response_id=missing)
                assert refused.status_code == 404
                assert refused.json()["error"]["param"] == "previous_response_id"
            assert await at.json(f"{PATH}/{streamed['id']}") == streamed

    run(scenario())


def test_the_id_of_a_kept_response_cannot_be_known_from_that_of_its_request() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            for stream in (False, True):
                answer = await asked(at, stream=stream)
                number = answer.headers["x-request-id"].removeprefix("req_")
                assert number not in answer.text

    run(scenario())


def test_what_agents_send_besides_is_accepted_and_listed_in_a_header() -> None:
    fields = {
        "model": "gpt-5.2-codex",
        "input": [
            {"type": "message", "id": "msg_a", "role": "developer", "content": "rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ],
        "tools": [LS, {"type": "web_search", "external_web_access": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "key",
        "text": {"verbosity": "low"},
        "client_metadata": {"x-codex-installation-id": "i"},
        "max_output_tokens": 128_000,
    }
    headers = {"session-id": "family", "thread-id": "thread", "accept": "text/event-stream"}

    async def scenario() -> None:
        async with desk(script=script()) as at:
            answer = await at.ask("POST", PATH, json={**fields, "stream": True}, headers=headers)
            assert answer.status_code == 200, answer.text
            listed = answer.headers["x-mlxd-ignored"].split(", ")
            assert listed == ["client_metadata", "tools[1] (web_search)"]
            assert sdk.ended(answer.text)["status"] == "completed"
            [session] = (await at.json("/v1/sessions"))["data"]
            assert session["id"] == "thread"

    run(scenario())


def test_an_empty_input_warms_up() -> None:
    async def scenario() -> None:
        async with desk(script=script()) as at:
            for nothing in ("", []):
                response = await answered(at, input=nothing, max_output_tokens=1)
                assert response["usage"]["output_tokens"] == 1
                assert response["status"] == "incomplete"

    run(scenario())


def test_refusals_are_openais_and_an_overlong_prompt_has_the_code_that_agents_know() -> None:
    async def scenario() -> None:
        async with desk(script=script(context_size=500)) as at, client(at) as vendor:
            for fields, status, at_fault, code in (
                ({"input": 5}, 400, "input", None),
                ({"model": "nonsense"}, 404, "model", "model_not_found"),
                ({"input": filler(2000, 1)}, 400, "input", "context_length_exceeded"),
                ({"input": filler(2000, 1), "stream": True}, 400, "input", None),
                ({"tool_choice": "required"}, 400, "tool_choice", None),
                ({"tools": [LS], "tool_choice": "required"}, 400, "tool_choice", None),
                ({"text": {"format": {"type": "json_object"}}}, 400, "text.format", None),
                ({"background": True}, 400, "background", None),
            ):
                answer = await asked(at, **fields)
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (status, at_fault)
                assert code is None or error["code"] == code
            with pytest.raises(openai.BadRequestError) as caught:
                await vendor.responses.create(model="gpt-5", input=filler(2000, 1))
            assert caught.value.code == "context_length_exceeded"
            assert "maximum context length is 500 tokens" in caught.value.message

    run(scenario())


def test_a_full_queue_says_when_to_come_back() -> None:
    async def scenario() -> None:
        async with desk(script=script(), max_queued=1, max_concurrent=1) as at:
            async with at.bench.held():
                waiting = asyncio.create_task(asked(at))
                await until(lambda: len(at.bench.engine.status().waiting) == 1)
                refused = await asked(at, stream=True)
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) > 0
            assert (await waiting).status_code == 200

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails_is_a_failed_response_and_is_not_kept(stream: bool) -> None:
    async def scenario() -> None:
        async with desk(script=script(faults=Faults(steps=1, steps_before=4))) as at:
            answer = await asked(at, stream=stream)
            if not stream:
                assert answer.status_code >= 500
                assert answer.json()["error"]["code"] == "generation_failed"
                return
            failed = sdk.ended(answer.text)
            assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
            assert "response.completed" not in answer.text
            assert (await at.ask("GET", f"{PATH}/{failed['id']}")).status_code == 404

    run(scenario())


def test_a_long_reading_is_filled_with_events_that_say_nothing() -> None:
    keep_alive = {"keep_alive": KeepAlive(comment_seconds=0.01, event_seconds=0.02)}

    async def scenario() -> None:
        async with desk(script=script(), door=keep_alive) as at:
            written: list[bytes] = []

            async def send(message: Message) -> None:
                written.append(message.get("body", b""))

            at.bench.chunks.allow(0)
            asking = asyncio.create_task(at.post(PATH, {"input": "hi", "stream": True}, send))
            while b"".join(written).count(b"event: response.in_progress\n") < 3:
                await asyncio.sleep(0.005)
            at.bench.chunks.free()
            await asking
            assert sdk.ended(b"".join(written))["output"][0]["content"][0]["text"] == "Certainly."

    run(scenario())


@pytest.mark.parametrize("path", [PATH, "/v1/realtime", "/health"])
def test_a_websocket_is_refused_so_that_agents_go_on_over_http_at_once(path: str) -> None:
    headers = {"upgrade": "WebSocket", "connection": "Upgrade", "sec-websocket-version": "13"}

    async def scenario() -> None:
        async with desk(script=script()) as at:
            answer = await at.ask("GET", path, headers=headers)
            assert answer.status_code == 426
            assert "POST" in answer.json()["error"]["message"]
            plain = await at.ask("GET", PATH)
            assert plain.status_code == 405

    run(scenario())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KINDS = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "shell_call_output",
        "web_search_call",
        "item_reference",
        "agent_message",
        "additional_tools",
        "tool_search_output",
    ]
)
PART_KINDS = ["input_text", "output_text", "refusal", "input_image", "input_file", "input_audio"]
PARTS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(PART_KINDS) | JSON},
        optional={"text": st.text(max_size=3) | JSON, "refusal": st.text(max_size=3) | JSON},
    )
    | JSON,
    max_size=3,
)
CONTENT = st.text(max_size=3) | PARTS | JSON
ITEMS = st.fixed_dictionaries(
    {"type": KINDS | JSON},
    optional={
        "role": st.sampled_from(["user", "assistant", "developer"]) | JSON,
        "content": CONTENT,
        "summary": CONTENT,
        "encrypted_content": st.just("mlxd.1.eA==") | JSON,
        "call_id": st.just("c1") | JSON,
        "id": st.just("msg_1") | JSON,
        "name": st.just("ls") | JSON,
        "namespace": JSON,
        "arguments": st.just("{}") | JSON,
        "action": JSON,
        "input": JSON,
        "output": CONTENT,
        "tools": st.just([LS]) | JSON,
    },
)
TOOLS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["function", "custom", "namespace", "web_search"]) | JSON},
        optional={
            "name": st.just("ls") | JSON,
            "function": JSON,
            "description": JSON,
            "parameters": st.just({"type": "object"}) | JSON,
            "format": JSON,
            "tools": st.just([LS]) | JSON,
        },
    ),
    max_size=2,
)
FIELDS = st.fixed_dictionaries(
    {"input": st.text(max_size=3) | st.lists(ITEMS, max_size=3) | JSON},
    optional={
        "instructions": CONTENT,
        "tools": TOOLS | JSON,
        "tool_choice": st.sampled_from(["auto", "none", {"type": "function", "name": "ls"}]) | JSON,
        "max_output_tokens": JSON,
        "temperature": JSON,
        "reasoning": st.fixed_dictionaries({"effort": JSON}) | JSON,
        "text": st.fixed_dictionaries({"format": JSON}) | JSON,
        "metadata": JSON,
        "include": JSON,
        "top_logprobs": st.integers(-1, 3),
        "previous_response_id": JSON,
        "store": st.booleans() | JSON,
        "stream": st.booleans() | JSON,
        "model": JSON,
        "chat_template_kwargs": JSON,
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
        @given(FIELDS)
        def ask(body: object) -> None:
            content = json.dumps(body)
            headers = {"content-type": "application/json"}
            answer = runner.run(at.ask("POST", PATH, content=content, headers=headers))
            assert answer.status_code < 500, answer.text
            if answer.status_code == 200 and "event-stream" in answer.headers["content-type"]:
                assert answer.text.endswith("\n\n")

        try:
            ask()
        finally:
            runner.run(context.__aexit__(None, None, None))
