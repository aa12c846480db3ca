"""The streaming client, against canned event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence

import httpx2
import pytest

from daemon.bench.client import BenchFailed, Reply, ask
from daemon.bench.traffic import Cancel, ToolCall


class Stream(httpx2.AsyncByteStream):
    """Sends `lines` one by one and counts those that were asked for."""

    def __init__(self, lines: Sequence[str], then_hangs: bool = False) -> None:
        self.lines = lines
        self.then_hangs = then_hangs
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for line in self.lines:
            self.sent += 1
            yield f"{line}\n\n".encode()
            await asyncio.sleep(0)
        if self.then_hangs:
            await asyncio.Event().wait()


def delta(**fields: object) -> str:
    return "data: " + json.dumps({"choices": [{"delta": fields}]})


def usage(prompt: int, cached: int) -> str:
    details = {"cached_tokens": cached}
    counts = {
        "prompt_tokens": prompt,
        "prompt_tokens_details": details,
        "completion_tokens": 7,
    }
    return "data: " + json.dumps({"choices": [], "usage": counts})


def reply_to(
    stream: Stream, cancel: Cancel | None = None, progress: Sequence[tuple[int, int]] = ()
) -> Reply:
    async def session() -> Reply:
        def handler(request: httpx2.Request) -> httpx2.Response:
            assert json.loads(request.content)["stream_options"] == {"include_usage": True}
            return httpx2.Response(200, stream=stream)

        told = iter(progress)

        async def read_progress() -> tuple[int, int] | None:
            return next(told, None)

        transport = httpx2.MockTransport(handler)
        async with httpx2.AsyncClient(transport=transport, base_url="http://bench") as http:
            return await asyncio.wait_for(ask(http, {}, cancel, read_progress), timeout=10)

    return asyncio.run(session())


def test_text_thinking_and_usage_are_collected() -> None:
    lines = [
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(reasoning="m"),
    ]
    lines += [delta(content="a"), delta(content="b"), usage(50, 40), "data: [DONE]"]
    reply = reply_to(Stream(lines))
    assert (reply.text, reply.thinking) == ("ab", "hmm")
    assert (reply.prompt, reply.reused, reply.generated) == (50, 40, 7)
    assert reply.first_token_seconds is not None
    assert not reply.is_cancelled


def test_calls_are_put_together_from_their_pieces() -> None:
    def part(index: int, arguments: str, **begin: str) -> str:
        name = {"name": begin["name"]} if begin else {}
        function = {**name, "arguments": arguments}
        identity = {"id": begin["id"], "type": "function"} if begin else {}
        return delta(tool_calls=[{"index": index, **identity, "function": function}])

    lines = [part(0, "", id="a", name="find"), part(0, '{"x"'), part(0, ":1}")]
    whole = part(1, "{}", id="b", name="list")
    reply = reply_to(Stream([*lines, whole, usage(5, 0), "data: [DONE]"]))
    assert reply.answer.calls == (ToolCall("a", "find", '{"x":1}'), ToolCall("b", "list", "{}"))
    assert reply.first_token_seconds is not None


def test_it_hangs_up_after_so_many_deltas() -> None:
    stream = Stream([delta(content=letter) for letter in "abcdef"])
    reply = reply_to(stream, Cancel(after_deltas=2))
    assert reply.text == "ab"
    assert reply.is_cancelled
    assert reply.prompt == -1
    assert stream.sent < 6


def test_it_hangs_up_when_the_stream_tells_that_enough_was_read() -> None:
    stream = Stream([": keepalive 500/1000", ": keepalive 600/1000", ": keepalive 1000/1000"])
    reply = reply_to(stream, Cancel(at_share_read=0.6))
    assert reply.is_cancelled
    assert reply.progress == (600, 1000)
    assert stream.sent == 2


def test_it_hangs_up_when_the_server_tells_on_the_side_that_enough_was_read() -> None:
    stream = Stream([": reading"], then_hangs=True)
    told = [(0, 0), (100, 1000), (700, 1000)]
    reply = reply_to(stream, Cancel(at_share_read=0.6), told)
    assert reply.is_cancelled
    assert reply.progress == (700, 1000)


def test_an_answer_that_ends_before_its_cancel_is_whole() -> None:
    reply = reply_to(Stream([delta(content="a"), usage(5, 0)]), Cancel(after_deltas=9))
    assert not reply.is_cancelled
    assert reply.prompt == 5


def test_errors_say_what_the_server_said() -> None:
    with pytest.raises(BenchFailed, match="out of luck"):
        reply_to(Stream(['data: {"error": {"message": "out of luck"}}']))

    async def refused() -> Reply:
        transport = httpx2.MockTransport(lambda r: httpx2.Response(400, text="no such model"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://bench") as http:
            return await ask(http, {})

    with pytest.raises(BenchFailed, match="400: no such model"):
        asyncio.run(refused())
