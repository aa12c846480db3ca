"""The whole application around an engine that runs, and a client with or without the token."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from starlette.types import ASGIApp, Message, Send

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.authority import Authority
from daemon.api.endpoint import Door
from mlx_backend.messages import CacheKind
from tests.engine.harness import Bench, running

PORT = 8642
TOKEN = "right-token"


class Desk:
    """`ask` without the token, `order` with it, `post` to see each message of an answer."""

    def __init__(self, app: ASGIApp, client: httpx2.AsyncClient, bench: Bench) -> None:
        self.app = app
        self.client = client
        self.bench = bench

    async def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self.client.request(method, path, **options)

    async def order(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {TOKEN}"}
        return await self.client.request(method, path, headers=headers, **options)

    async def post(
        self, path: str, body: Any, send: Send, leaves: asyncio.Event | None = None
    ) -> None:
        """Post a body as a server would; what is answered goes to `send` as it comes. The client
        stays until it `leaves`."""
        content = json.dumps(body).encode()
        headers = {"host": f"localhost:{PORT}", "content-type": "application/json"}
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        messages = iter([{"type": "http.request", "body": content, "more_body": False}])

        async def receive() -> Message:
            message = next(messages, None)
            if message is None:
                await (leaves or asyncio.Event()).wait()
                return {"type": "http.disconnect"}
            return message

        await self.app(scope, receive, send)

    async def json(self, path: str) -> Any:
        answer = await self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def desk(
    kind: CacheKind = CacheKind.SLICEABLE, *, door: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[Desk]:
    """`door` are options of the `Door`, the others are the engine's."""
    async with running(kind=kind, **options) as bench:
        authority = Authority(TOKEN, "/home/someone/token")
        identity = Identity.of_new_run("this-run", PORT)
        app = build_app(Door(bench.engine, **(door or {})), identity, authority=authority)
        transport = httpx2.ASGITransport(app)
        url = f"http://localhost:{PORT}"
        async with httpx2.AsyncClient(transport=transport, base_url=url) as client:
            yield Desk(app, client, bench)
