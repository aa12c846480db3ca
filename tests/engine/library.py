"""An engine and several scripted models to load into it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from daemon.budget import Budget
from daemon.disk_tier import DiskOptions
from daemon.engine import Engine, Generation
from daemon.engine_options import EngineOptions
from daemon.generation import GenerationRequest
from daemon.prefix_cache.cache import PrefixCache
from daemon.residents import ResidencyLimits
from daemon.sources import ModelSource
from mlx_backend.messages import CacheKind, ModelInfo, Prompt, token_ids
from tests.engine.harness import Answer, collect, until
from tests.fakes import Script, ScriptedModel

WEIGHTS = 1_000_000


class Library:
    """An engine and models to load into it, by name. `loads` names every load in order."""

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        disk: DiskOptions | None = None,
        **limits: Any,
    ) -> None:
        self.script = Script()
        self.loads: list[str] = []
        self.models: dict[str, ScriptedModel] = {}
        self.caches: list[PrefixCache] = []
        self.load_errors: dict[str, Exception] = {}
        self.budget_bytes: int | None = None
        self._ids = itertools.count()
        options: dict[str, Any] = {} if clock is None else {"clock": clock}
        self.engine = Engine(
            self.source("first"),
            make_cache=self._make_cache,
            make_budget=self._make_budget,
            options=EngineOptions(
                residency=ResidencyLimits(**limits), reload_pauses=(0.0,), disk=disk
            ),
            **options,
        )

    def source(self, name: str, weight_bytes: int = WEIGHTS) -> ModelSource:
        return ModelSource(name, lambda: self._load(name), name, weight_bytes)

    async def answer(self, name: str, prompt: list[int], max_tokens: int = 20) -> Answer:
        async with self.engine.lease(self.source(name)):
            return await collect(self.submit(name, prompt, max_tokens))

    def submit(self, name: str, prompt: list[int], max_tokens: int = 20) -> Generation:
        request = GenerationRequest(
            f"r{next(self._ids)}", Prompt(token_ids(prompt)), max_tokens, model=name
        )
        return self.engine.submit(request)

    def state(self, name: str) -> str:
        found = [each.state for each in self.engine.status().models if each.key == name]
        return found[0] if found else "unknown"

    @property
    def loaded(self) -> set[str]:
        """Whose backends are open."""
        return {name for name, model in self.models.items() if not model.backend.is_closed}

    async def nudge(self) -> None:
        """Let the engine's thread look at the clock."""
        await self.engine.ask(lambda seen: None)

    def _load(self, name: str) -> ScriptedModel:
        self.loads.append(name)
        if name in self.load_errors:
            raise self.load_errors[name]
        model = ScriptedModel(self.script, CacheKind.SLICEABLE)
        model.info = replace(model.info, name=name, identity=name, weight_bytes=WEIGHTS)
        self.models[name] = model
        return model

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        cache = PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=1 << 30)
        self.caches.append(cache)
        return cache

    def _make_budget(self, info: ModelInfo) -> Budget:
        return Budget.of_model(info, self.budget_bytes)


@asynccontextmanager
async def library(
    clock: Callable[[], float] | None = None, disk: DiskOptions | None = None, **limits: Any
) -> AsyncIterator[Library]:
    shelf = Library(clock, disk, **limits)
    shelf.engine.start()
    try:
        await until(lambda: shelf.state("first") == "ready")
        yield shelf
    finally:
        await shelf.engine.close(grace_seconds=0)
    assert not shelf.loaded, "a backend was left open"
    for cache in shelf.caches:
        cache.check()
