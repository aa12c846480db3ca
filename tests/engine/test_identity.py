"""What was cached under one model is never used under another that comes to its place."""

from __future__ import annotations

from dataclasses import replace

from daemon.engine import Engine
from daemon.generation import GenerationRequest
from daemon.prefix_cache.cache import PrefixCache
from mlx_backend.messages import CacheKind, Marks, ModelInfo, Prompt, token_ids
from tests.engine.harness import Answer, collect, every_caching_kind, failure, run, until, words
from tests.fakes import Faults, Script, ScriptedModel


class Shelf:
    """A folder whose model changes between two loads: other weights, or an adapter on and off."""

    def __init__(self, kind: CacheKind, script: Script) -> None:
        self.identity = "plain"
        self._kind = kind
        self._script = script
        self.engine = Engine(self._load, make_cache=self._make_cache)

    def _load(self) -> ScriptedModel:
        model = ScriptedModel(self._script, self._kind)
        model.info = replace(model.info, identity=self.identity)
        return model

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        return PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=1 << 20)

    async def ask(self, seed: int) -> Answer:
        prompt = Prompt(token_ids(words(300, seed)), Marks())
        return await collect(self.engine.submit(GenerationRequest("r", prompt, 5)))

    async def ready(self) -> None:
        await until(lambda: self.engine.status().model.state == "ready")

    async def loaded_again_as(self, identity: str) -> None:
        """The model breaks, and another is found in its place."""
        self.identity = identity
        self._script.faults.steps = 1
        failure(await self.ask(seed=2))
        await self.ready()


@every_caching_kind
def test_nothing_of_a_model_is_reused_under_another_in_its_place(kind: CacheKind) -> None:
    async def scenario() -> None:
        shelf = Shelf(kind, Script(faults=Faults()))
        shelf.engine.start()
        await shelf.ready()
        await shelf.ask(seed=1)
        assert (await shelf.ask(seed=1)).usage.reused > 0
        for identity in ("with an adapter", "plain"):
            await shelf.loaded_again_as(identity)
            assert shelf.engine.status().model.identity == identity
            assert (await shelf.ask(seed=1)).usage.reused == 0
            assert (await shelf.ask(seed=1)).usage.reused > 0
        await shelf.loaded_again_as("plain")
        assert (await shelf.ask(seed=1)).usage.reused > 0, "the same model's cache outlives a load"
        await shelf.engine.close(grace_seconds=0)

    run(scenario())
