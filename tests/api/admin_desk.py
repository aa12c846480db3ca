"""The whole application around an engine that runs, and a client with or without the token."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.authority import Authority
from daemon.api.endpoint import Door
from mlx_backend.messages import CacheKind
from tests.engine.harness import Bench, running

PORT = 8642
TOKEN = "right-token"


class Desk:
    """`ask` without the token, `order` with it."""

    def __init__(self, client: httpx2.AsyncClient, bench: Bench) -> None:
        self.client = client
        self.bench = bench

    async def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self.client.request(method, path, **options)

    async def order(self, method: str, path: str, **options: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {TOKEN}"}
        return await self.client.request(method, path, headers=headers, **options)

    async def json(self, path: str) -> Any:
        answer = await self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def desk(kind: CacheKind = CacheKind.SLICEABLE, **options: Any) -> AsyncIterator[Desk]:
    async with running(kind=kind, **options) as bench:
        authority = Authority(TOKEN, "/home/someone/token")
        identity = Identity.of_new_run("this-run", PORT)
        app = build_app(Door(bench.engine), identity, authority=authority)
        transport = httpx2.ASGITransport(app)
        url = f"http://localhost:{PORT}"
        async with httpx2.AsyncClient(transport=transport, base_url=url) as client:
            yield Desk(client, bench)
