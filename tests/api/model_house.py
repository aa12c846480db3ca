"""The whole application around several scripted models of one disk."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.authority import Authority
from daemon.api.door import Door
from daemon.budget import Budget
from daemon.catalog import Catalog
from daemon.engine import Engine
from daemon.engine_options import EngineOptions
from daemon.prefix_cache.cache import PrefixCache
from daemon.residents import ResidencyLimits
from daemon.sources import ModelSource
from mlx_backend.errors import ModelNotFound
from mlx_backend.messages import CacheKind, LocalModel, ModelInfo
from tests.api.admin_desk import PORT, TOKEN, Desk
from tests.engine.harness import until
from tests.fakes import Script, ScriptedModel

WEIGHTS = 1_000_000
CONTEXT = 5000
NAMES = ("first", "second", "third")


def on_disk(name: str) -> LocalModel:
    return LocalModel(name, f"/models/{name}", f"owner/{name}", WEIGHTS, CONTEXT)


class House(Desk):
    """`here` is what is on the disk, by name; `loads` every load in order."""

    def __init__(self, clock: Callable[[], float] | None, **options: Any) -> None:
        self.script = Script(context_size=CONTEXT)
        self.here = {name: on_disk(name) for name in NAMES}
        self.loads: list[str] = []
        self.load_errors: dict[str, Exception] = {}
        self.loaded: dict[str, ScriptedModel] = {}
        self.identities: dict[str, str] = {}
        door = options.pop("door", {})
        aliases = options.pop("aliases", {})
        self.caches: list[PrefixCache] = []
        timing = {} if clock is None else {"clock": clock}
        self.engine = Engine(
            self.source(self.here["first"]),
            make_cache=self._make_cache,
            make_budget=Budget.without_limit,
            options=EngineOptions(residency=ResidencyLimits(**options), reload_pauses=()),
            **timing,
        )
        self.catalog = Catalog(self.here["first"], self.source, self, aliases)
        self.door = Door(self.engine, catalog=self.catalog, **door)
        authority = Authority(TOKEN, "/home/someone/token")
        self.app = build_app(self.door, Identity.of_new_run("x", PORT), authority=authority)

    def source(self, model: LocalModel) -> ModelSource:
        return ModelSource(
            model.key, lambda: self._load(model.name), model.name, model.weight_bytes
        )

    def models(self) -> tuple[LocalModel, ...]:
        return tuple(self.here.values())

    def model(self, path_or_repo: str) -> LocalModel:
        raise ModelNotFound(f"There is no folder {path_or_repo}.")

    async def chat(self, model: str | None = None, text: str = "hi", **fields: Any) -> Any:
        """The answer to one message, which has to be there."""
        answer = await self.ask("POST", "/v1/chat/completions", json=body(text, model, **fields))
        assert answer.status_code == 200, answer.text
        return answer.json()

    def state(self, name: str) -> str:
        key = self.here[name].key
        found = [each.state for each in self.engine.status().models if each.key == key]
        return found[0] if found else ""

    async def look_at_the_clock(self) -> None:
        await self.engine.ask(lambda seen: None)

    def _load(self, name: str) -> ScriptedModel:
        self.loads.append(name)
        if name in self.load_errors:
            raise self.load_errors[name]
        model = ScriptedModel(self.script, CacheKind.SLICEABLE)
        identity = self.identities.get(name, name)
        model.info = replace(model.info, name=name, identity=identity, weight_bytes=WEIGHTS)
        self.loaded[name] = model
        return model

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        cache = PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=1 << 30)
        self.caches.append(cache)
        return cache


def body(text: str = "hi", model: str | None = None, **fields: Any) -> dict[str, Any]:
    named = {} if model is None else {"model": model}
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 5, **named, **fields}


class Stream:
    """A streamed answer as it comes; `leave` hangs up."""

    def __init__(self, house: House, payload: Mapping[str, Any]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._leaves = asyncio.Event()
        posted = house.post("/v1/chat/completions", payload, self._send, self._leaves)
        self.done = asyncio.create_task(posted)

    async def _send(self, message: Any) -> None:
        self.sent.append(message)

    def leave(self) -> None:
        self._leaves.set()

    @property
    def text(self) -> str:
        pieces = (message.get("body", b"") for message in self.sent)
        return b"".join(pieces).decode()

    @property
    def tokens(self) -> int:
        lines = [line for line in self.text.splitlines() if line.startswith("data: {")]
        return sum(
            bool(json.loads(line[6:])["choices"][0]["delta"].get("content")) for line in lines
        )


@asynccontextmanager
async def house(clock: Callable[[], float] | None = None, **options: Any) -> AsyncIterator[House]:
    """Options are those of ResidencyLimits; `door` are the Door's, `aliases` the settings'."""
    at = House(clock, **options)
    at.engine.start()
    transport = httpx2.ASGITransport(at.app)
    async with httpx2.AsyncClient(
        transport=transport, base_url=f"http://localhost:{PORT}"
    ) as client:
        at.client = client
        try:
            if not options.get("held"):
                await until(lambda: at.state("first") == "ready")
            yield at
        finally:
            await at.engine.close(grace_seconds=0)
    assert all(model.backend.is_closed for model in at.loaded.values())
    assert all(model.backend.live_rows == 0 for model in at.loaded.values())
    for cache in at.caches:
        cache.check()
