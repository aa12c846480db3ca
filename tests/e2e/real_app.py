"""The whole application in this process, on a tiny real model: HTTP in, HTTP out, no socket.

Every answer can be compared with the one of a second application on the same weights that stores
nothing. Both live on one event loop for as long as a test module wants.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.endpoint import Door
from daemon.engine import Engine
from daemon.engine_options import EngineOptions
from daemon.prefix_cache.cache import PrefixCache
from mlx_backend.interface import LoadedModel
from mlx_backend.messages import ModelInfo
from tests.engine.harness import HANG_SECONDS, until

PORT = 8642
CHUNK_TOKENS = 64
DRAWN = {"temperature": 1, "seed": 1, "max_tokens": 12}


@dataclass(frozen=True)
class Reply:
    """What an answer says, whichever way it came."""

    id: str
    text: str
    reason: str
    usage: dict[str, Any]

    @property
    def prompt(self) -> int:
        return int(self.usage["prompt_tokens"])

    @property
    def cached(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])

    @property
    def said(self) -> tuple[str, str, int]:
        """What must not depend on what is cached."""
        return self.text, self.reason, int(self.usage["completion_tokens"])


class App:
    """One application; twelve tokens drawn from one seed unless a request says otherwise.

    A drawn answer tells a wrong state sooner than the likeliest one: it hangs on every
    probability, where the argmax of a random model hardly changes.
    """

    def __init__(self, folder: Path, cache: dict[str, Any], load_options: dict[str, Any]) -> None:
        self._folder = folder
        self._cache = {"max_entries": None, "max_bytes": 1 << 28, **cache}
        self._load_options = load_options
        self.caches: list[PrefixCache] = []
        options = EngineOptions(chunk_tokens=CHUNK_TOKENS)
        self.engine = Engine(self._load, make_cache=self._make_cache, options=options)
        app = build_app(Door(self.engine), Identity.of_new_run("real", PORT))
        self._http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app),
            base_url=f"http://localhost:{PORT}",
            timeout=HANG_SECONDS,
        )

    async def open(self) -> None:
        self.engine.start()
        await until(lambda: self.engine.status().model.state != "loading")
        assert self.engine.status().model.state == "ready", self.engine.status().model.error

    async def close(self) -> None:
        await self.engine.close(grace_seconds=0)
        await self._http.aclose()
        for cache in self.caches:
            cache.check()

    async def chat(self, messages: list[dict[str, Any]], **fields: Any) -> Reply:
        return await self._ask("/v1/chat/completions", {"messages": messages, **fields})

    async def complete(self, prompt: str | list[int], **fields: Any) -> Reply:
        return await self._ask("/v1/completions", {"prompt": prompt, **fields})

    async def post(self, path: str, fields: dict[str, Any]) -> httpx2.Response:
        return await self._http.post(path, json={**DRAWN, **fields})

    async def _ask(self, path: str, fields: dict[str, Any]) -> Reply:
        if fields.get("stream"):
            fields = {**fields, "stream_options": {"include_usage": True}}
        response = await self.post(path, fields)
        assert response.status_code == 200, response.text
        return _streamed(response.text) if fields.get("stream") else _whole(response.json())

    def _load(self) -> LoadedModel:
        from mlx_backend.loading import load

        return load(str(self._folder), **self._load_options)

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        cache = PrefixCache(kind=info.cache_kind, **self._cache)
        self.caches.append(cache)
        return cache


class Pair:
    """`warm` reuses what it can, `cold` nothing; `run` runs what a test asks of them."""

    def __init__(
        self, folder: Path, runner: asyncio.Runner, cache: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.kind = folder.name
        self.warm = App(folder, cache, options)
        self.cold = App(folder, {"max_bytes": 0}, options)
        self._runner = runner

    @property
    def can_cut(self) -> bool:
        return self.warm.engine.status().model.cache_kind == "sliceable"

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        self._runner.run(asyncio.wait_for(scenario, HANG_SECONDS * 2))

    async def chat(self, messages: list[dict[str, Any]], **fields: Any) -> Reply:
        """The warm answer, which has to be what the cold one is."""
        reply = await self.warm.chat(messages, **fields)
        assert reply.said == (await self.cold.chat(messages, **fields)).said
        return reply

    async def complete(self, prompt: str | list[int], **fields: Any) -> Reply:
        reply = await self.warm.complete(prompt, **fields)
        assert reply.said == (await self.cold.complete(prompt, **fields)).said
        return reply


@contextmanager
def served(
    folder: Path, *, cache: dict[str, Any] | None = None, **load_options: Any
) -> Iterator[Pair]:
    with asyncio.Runner() as runner:
        pair = Pair(folder, runner, cache or {}, load_options)
        runner.run(pair.warm.open())
        runner.run(pair.cold.open())
        try:
            yield pair
        finally:
            runner.run(pair.warm.close())
            runner.run(pair.cold.close())


def _whole(body: dict[str, Any]) -> Reply:
    [choice] = body["choices"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return Reply(body["id"], text, choice["finish_reason"], body["usage"])


def _streamed(body: str) -> Reply:
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    chunks = [json.loads(item) for item in data]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(each.get("text") or each.get("delta", {}).get("content", "") for each in choices)
    [name] = {chunk["id"] for chunk in chunks}
    return Reply(name, text, choices[-1]["finish_reason"], chunks[-1]["usage"])
