"""A client like any coding agent: it streams, resends its whole history, and may walk away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from daemon.demo.day import History
from daemon.demo.report import DemoFailed, Turn

MAX_ANSWER_TOKENS = 16
LOOK_SECONDS = 0.05
SETTLE_SECONDS = 300.0  # a chunk takes long where nothing makes mlx fast


@dataclass(slots=True)
class _Reply:
    """What one stream has said so far."""

    started: float = field(default_factory=time.perf_counter)
    first_token_seconds: float | None = None
    text: str = ""
    usage: dict[str, Any] | None = None

    def take(self, chunk: dict[str, Any]) -> None:
        if error := chunk.get("error"):
            raise DemoFailed(f"The daemon ended a stream with an error: {error.get('message')}")
        for choice in chunk.get("choices", ()):
            piece = choice.get("delta", {}).get("content")
            if piece and self.first_token_seconds is None:
                self.first_token_seconds = self.elapsed()
            self.text += piece or ""
        self.usage = chunk.get("usage") or self.usage

    def elapsed(self) -> float:
        return time.perf_counter() - self.started

    def turn(self, name: str, *, is_alone: bool) -> Turn:
        if self.usage is None:
            raise DemoFailed("The daemon ended a stream without its usage.")
        prompt = self.usage["prompt_tokens"]
        reused = self.usage["prompt_tokens_details"]["cached_tokens"]
        return Turn(
            name=name,
            prompt=prompt,
            reused=reused,
            read=prompt - reused,
            generated=self.usage["completion_tokens"],
            first_token_seconds=self.first_token_seconds,
            seconds=self.elapsed(),
            answer=self.text,
            is_alone=is_alone,
        )


@dataclass(frozen=True, slots=True)
class Agent:
    """One session of one client. `session` labels it; the daemon goes by the tokens alone."""

    http: httpx2.AsyncClient
    model: str
    session: str

    async def ask(self, name: str, history: History, *, is_alone: bool = True) -> Turn:
        """Send `history`, read the reply to its end."""
        reply = _Reply()
        await self._read(history, reply)
        return reply.turn(name, is_alone=is_alone)

    async def ask_and_leave(self, name: str, history: History, fraction: float) -> Turn:
        """Send `history` and hang up once `fraction` of what must be read has been read.

        On a machine that reads faster than it can be watched, this is an ordinary turn.
        """
        reply = _Reply()
        reading = asyncio.create_task(self._read(history, reply))
        watching = asyncio.create_task(self._wait_until_read(fraction))
        await asyncio.wait((reading, watching), return_when=asyncio.FIRST_COMPLETED)
        finished_first = reading.done()
        reading.cancel()
        watching.cancel()
        await asyncio.wait((reading, watching))
        if finished_first:
            reading.result()
            return reply.turn(name, is_alone=True)
        watching.result()
        seconds = reply.elapsed()
        return await self._left(name, seconds)

    async def _read(self, history: History, reply: _Reply) -> None:
        body = {
            "model": self.model,
            "messages": list(history),
            "max_tokens": MAX_ANSWER_TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"x-session-id": self.session}
        async with self.http.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as response:
            if response.status_code != 200:
                raise DemoFailed(_refusal(response.status_code, await response.aread()))
            async for chunk in _chunks(response):
                reply.take(chunk)

    async def _wait_until_read(self, fraction: float) -> None:
        while True:
            for request in await self._requests("running"):
                goal = request["reused"] + fraction * (request["prompt"] - request["reused"])
                if 0 < goal <= request["reused"] + request["read"]:
                    return
            await asyncio.sleep(LOOK_SECONDS)

    async def _left(self, name: str, seconds: float) -> Turn:
        """The turn that was left, as the daemon tells it once it has noticed."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while not (gone := await self._requests("recent", phase="cancelled")):
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise DemoFailed("The daemon did not notice that its client left.") from None
        last = gone[-1]
        counts = {each: last[each] for each in ("prompt", "reused", "read", "generated")}
        return Turn(
            name=name, **counts, first_token_seconds=None, seconds=seconds, is_cancelled=True
        )

    async def _requests(self, where: str, phase: str | None = None) -> list[dict[str, Any]]:
        """This session's requests on the status page."""
        status = (await self.http.get("/mlxd/status")).json()
        return [
            request
            for request in status["engine"][where]
            if request["session"] == self.session and phase in (None, request["phase"])
        ]


async def _chunks(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event; comments and the closing `[DONE]` left out."""
    async for line in response.aiter_lines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            yield json.loads(data)


def _refusal(status: int, body: bytes) -> str:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = body[:200].decode(errors="replace")
    return f"The daemon answered {status}: {message}"
