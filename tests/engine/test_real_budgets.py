"""Budgets on real architectures: tiny random models whose rows are parked, grown and weighed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.budget import Budget
from daemon.engine import Engine
from daemon.engine_options import EngineOptions
from daemon.generation import Failed, GenerationRequest
from daemon.prefix_cache.cache import PrefixCache
from mlx_backend.interface import Backend, LoadedModel, Row, Sampled, Snapshot
from mlx_backend.messages import Marks, ModelInfo, Prompt, Sampling, TokenIds, token_ids
from tests.engine.harness import Answer, collect, run, until

CHUNK = 64
KINDS = ["tiny-full", "tiny-sliding", "tiny-hybrid"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from mlx_backend.tiny_models import write_folder

    root = tmp_path_factory.mktemp("models")
    return {kind: write_folder(kind, root / kind) for kind in KINDS}


class WeighedBackend:
    """The real backend, which notes before each chunk and step what rows and tree keep."""

    def __init__(self, backend: Backend, caches: list[PrefixCache]) -> None:
        self._backend = backend
        self._caches = caches
        self._rows: dict[int, Row] = {}
        self.most_held = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def open_row(self, snapshot: Snapshot | None, room: int) -> Row:
        row = self._backend.open_row(snapshot, room)
        self._rows[id(row)] = row
        return row

    def release(self, row: Row) -> None:
        self._backend.release(row)
        self._rows.pop(id(row), None)

    def read(self, row: Row, tokens: TokenIds) -> None:
        self._weigh()
        self._backend.read(row, tokens)

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        self._weigh()
        return self._backend.step(spare_bytes)

    def _weigh(self) -> None:
        rows = sum(row.nbytes for row in self._rows.values())
        self.most_held = max(self.most_held, rows + self._caches[-1].status().bytes)


class RealBench:
    """An engine on a tiny real model. `rows` of 512 tokens fit in its budget beside each other."""

    def __init__(self, folder: Path, rows: float, max_bytes: int) -> None:
        self._folder = folder
        self._rows = rows
        self._max_bytes = max_bytes
        self._ids = itertools.count()
        self.caches: list[PrefixCache] = []
        self.backend: WeighedBackend
        self.budget: Budget
        self.engine = Engine(
            self._load,
            make_cache=self._make_cache,
            make_budget=self._make_budget,
            options=EngineOptions(chunk_tokens=CHUNK, max_concurrent=3, max_queued=200),
        )

    async def run(
        self, prompt: list[int], max_tokens: int, seed: int, patience: float | None = None
    ) -> Answer:
        sampling = Sampling(temperature=0.9, seed=seed, frequency_penalty=0.2)
        encoded = Prompt(token_ids(prompt), Marks())
        request = GenerationRequest(f"r{next(self._ids)}", encoded, max_tokens, sampling)
        generation = self.engine.submit(request)
        if patience is not None:
            asyncio.get_running_loop().call_later(patience, generation.cancel)
        return await collect(generation)

    def _load(self) -> LoadedModel:
        from mlx_backend.loading import load

        model = load(str(self._folder))
        info = replace(model.info, stop_ids=frozenset())
        self.backend = WeighedBackend(model.backend, self.caches)
        return replace(model, backend=self.backend, info=info)

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        cache = PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=self._max_bytes)
        self.caches.append(cache)
        return cache

    def _make_budget(self, info: ModelInfo) -> Budget:
        budget = replace(Budget.of_model(info, None, CHUNK), growth_tokens=100)
        self.budget = replace(budget, max_bytes=int(self._rows * budget.row_bytes(512)))
        return self.budget


@asynccontextmanager
async def real(
    folder: Path, rows: float = 100, max_bytes: int = 1 << 30
) -> AsyncIterator[RealBench]:
    bench = RealBench(folder, rows, max_bytes)
    bench.engine.start()
    try:
        await until(lambda: bench.engine.status().model.state != "loading")
        assert bench.engine.status().model.state == "ready", bench.engine.status().model.error
        yield bench
    finally:
        await bench.engine.close(grace_seconds=0)
    bench.caches[-1].check()


def ids(length: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(20, 200, size=length)]


@every_kind
def test_a_parked_row_draws_the_tokens_that_it_would_have_drawn(
    folders: dict[str, Path], kind: str
) -> None:
    prompts = [ids(180, 1), ids(150, 2)]

    async def scenario() -> None:
        async with real(folders[kind]) as bench:
            undisturbed = [await bench.run(p, 150, seed) for seed, p in enumerate(prompts)]
            assert bench.engine.status().totals.parked == 0
        async with real(folders[kind], rows=1.7) as bench:
            answers = await asyncio.gather(
                *(bench.run(p, 150, seed) for seed, p in enumerate(prompts))
            )
            assert bench.engine.status().totals.parked > 0
            assert bench.engine.status().totals.failed == 0
            assert bench.budget.max_bytes is not None
            assert bench.backend.most_held <= bench.budget.max_bytes
        for answer, expected in zip(answers, undisturbed, strict=True):
            assert answer.tokens == expected.tokens
            assert len(answer.tokens) == 150

    run(scenario())


@every_kind
def test_traffic_leaves_no_array_behind(folders: dict[str, Path], kind: str) -> None:
    """What the device holds in the end is the weights and the tree, and without it the weights."""
    import mlx.core as mx

    from mlx_backend.checkpoints import MlxCheckpoint
    from mlx_backend.snapshots import MlxSpan

    async def scenario() -> None:
        async with real(folders[kind], rows=3, max_bytes=400_000) as bench:
            dice = random.Random(4)
            await bench.run(ids(100, 0), 5, 1)
            await bench.engine.ask(lambda inside: inside.cache.clear())
            idle_bytes = active_bytes(mx)
            others = {state: living_bytes(state) for state in (MlxSpan, MlxCheckpoint)}
            histories = [ids(60, n) for n in range(8)]

            async def agent() -> None:
                for _ in range(12):
                    n = dice.randrange(len(histories))
                    history = histories[n] if len(histories[n]) < 400 else ids(60, n)
                    prompt = history + ids(dice.randint(1, 40), dice.randrange(1000))
                    patience = dice.choice([0.002, 0.02, None, None, None])
                    answer = await bench.run(prompt, dice.randint(1, 20), 1, patience)
                    assert not isinstance(answer.end, Failed), answer.end
                    histories[n] = prompt + answer.tokens

            await asyncio.gather(*(agent() for _ in range(4)))
            for seed in range(6):  # rows may have had all the memory; now the tree has it
                await bench.run(ids(80, 2_000 + seed), 2, 1)
            await until(lambda: not bench.engine.status().running)
            cache = await bench.engine.ask(lambda inside: inside.cache.status())
            assert cache.bytes <= cache.max_bytes
            assert cache.bytes > cache.max_bytes / 2
            assert cache.evicted_entries > 3 * cache.entries, "it was not filled again and again"
            kept = {MlxSpan: cache.span_bytes, MlxCheckpoint: cache.checkpoint_bytes}
            for state, nbytes in kept.items():
                assert living_bytes(state) - others[state] == nbytes, "kept outside the tree"
            await bench.engine.ask(lambda inside: inside.cache.clear())
            assert active_bytes(mx) == pytest.approx(idle_bytes, abs=0.05 * cache.bytes)
            assert bench.budget.max_bytes is not None
            assert bench.backend.most_held <= bench.budget.max_bytes

    run(scenario(), hang_seconds=60)


def living_bytes(kind: type) -> int:
    gc.collect()
    return sum(thing.nbytes for thing in gc.get_objects() if type(thing) is kind)


def active_bytes(mx: Any) -> int:
    gc.collect()
    return int(mx.get_active_memory())
