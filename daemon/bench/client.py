"""A client that streams chat completions and can hang up where a scenario says so.

It understands what both servers send: text deltas, thinking under either of its two names, a
usage chunk, tool calls in pieces, and SSE comments that tell how far a prompt has been read.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx2

from daemon.bench.traffic import Answer, Cancel, ToolCall
from daemon.errors import CommandFailed

_PROGRESS = re.compile(r"(\d+)/(\d+)")
ReadProgress = tuple[int, int]
"""Tokens of a prompt that are in the model's state, reused ones included, and its length."""


class BenchFailed(CommandFailed):
    """A server could not be started, or answered a request with an error."""


@dataclass(slots=True)
class Reply:
    """What came back so far. Counts are -1 until the server has told them. Times are seconds."""

    text: str = ""
    thinking: str = ""
    deltas: int = 0
    prompt: int = -1
    reused: int = -1
    generated: int = -1
    first_token_seconds: float | None = None
    seconds: float = 0.0
    progress: ReadProgress | None = None
    is_cancelled: bool = False
    _calls: dict[int, ToolCall] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    @property
    def answer(self) -> Answer:
        return Answer(self.text, self.thinking, tuple(self._calls.values()))

    @property
    def has_begun(self) -> bool:
        """Whether the whole prompt has been read."""
        return self.deltas > 0 or self.prompt >= 0

    def take(self, line: str) -> None:
        """One line of the event stream."""
        if line.startswith(":"):
            if found := _PROGRESS.search(line):
                self.progress = (int(found[1]), int(found[2]))
        elif line.startswith("data: ") and line != "data: [DONE]":
            self._take_chunk(json.loads(line.removeprefix("data: ")))

    def _take_chunk(self, chunk: Mapping[str, Any]) -> None:
        if "error" in chunk:
            raise BenchFailed(f"the stream ended with an error: {chunk['error']}")
        for choice in chunk.get("choices") or ():
            self._take_delta(choice.get("delta") or {})
        if usage := chunk.get("usage"):
            self.prompt = usage["prompt_tokens"]
            self.reused = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            self.generated = usage.get("completion_tokens", -1)

    def _take_delta(self, delta: Mapping[str, Any]) -> None:
        text = delta.get("content") or ""
        thinking = delta.get("reasoning_content") or delta.get("reasoning") or ""
        calls = delta.get("tool_calls") or ()
        if text or thinking or calls:
            self.text += text
            self.thinking += thinking
            self.deltas += 1
            if self.first_token_seconds is None:
                self.first_token_seconds = time.monotonic() - self._began
        for number, call in enumerate(calls):
            self._take_call(call.get("index", number), call)

    def _take_call(self, index: int, part: Mapping[str, Any]) -> None:
        """More of a call: its id and name come once, its arguments in pieces."""
        call = self._calls.get(index, ToolCall("", "", ""))
        function = part.get("function") or {}
        self._calls[index] = ToolCall(
            part.get("id") or call.id,
            function.get("name") or call.name,
            call.arguments + (function.get("arguments") or ""),
        )

    def end(self) -> None:
        self.seconds = time.monotonic() - self._began


async def ask(
    http: httpx2.AsyncClient,
    body: Mapping[str, Any],
    cancel: Cancel | None = None,
    read_progress: Callable[[], Awaitable[ReadProgress | None]] | None = None,
) -> Reply:
    """Send one streaming chat completion and collect the reply, up to its end or `cancel`.

    `read_progress` asks the server how far it has read, for servers that do not say so in the
    stream. Raises BenchFailed.
    """
    reply = Reply()
    stream = asyncio.create_task(_collect(http, body, reply, cancel))
    watch = None
    if cancel and cancel.at_share_read is not None and read_progress is not None:
        watch = asyncio.create_task(_hang_up(stream, reply, cancel.at_share_read, read_progress))
    try:
        await stream
    except asyncio.CancelledError:
        if not reply.is_cancelled:
            raise
    finally:
        reply.end()
        if watch is not None:
            watch.cancel()
    return reply


async def _collect(
    http: httpx2.AsyncClient, body: Mapping[str, Any], reply: Reply, cancel: Cancel | None
) -> None:
    async with aclosing(_lines(http, body)) as lines:
        async for line in lines:
            reply.take(line)
            if cancel is not None and _is_due(cancel, reply):
                reply.is_cancelled = True
                return


async def _lines(http: httpx2.AsyncClient, body: Mapping[str, Any]) -> AsyncGenerator[str, None]:
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", "/v1/chat/completions", json=stream) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode(errors="replace")
            raise BenchFailed(f"HTTP {response.status_code}: {text[:400]}")
        async for line in response.aiter_lines():
            yield line


async def _hang_up(
    stream: asyncio.Task[None],
    reply: Reply,
    share: float,
    read_progress: Callable[[], Awaitable[ReadProgress | None]],
) -> None:
    while not stream.done():
        reply.progress = await read_progress() or reply.progress
        if _has_read(reply, share):
            reply.is_cancelled = True
            stream.cancel()
            return
        await asyncio.sleep(0.002)


def _is_due(cancel: Cancel, reply: Reply) -> bool:
    if cancel.after_deltas is not None and reply.deltas >= cancel.after_deltas:
        return True
    return cancel.at_share_read is not None and _has_read(reply, cancel.at_share_read)


def _has_read(reply: Reply, share: float) -> bool:
    return reply.progress is not None and reply.progress[0] >= share * reply.progress[1] > 0
