"""Old failures of others' caches, with the disk under the tree."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.disk_status import DiskStatus
from daemon.disk_tier import DiskOptions
from daemon.engine import Engine
from daemon.engine_options import EngineOptions
from daemon.generation import GenerationRequest
from daemon.prefix_cache.cache import PrefixCache
from mlx_backend.interface import LoadedModel
from mlx_backend.messages import CacheKind, ModelInfo, Prompt, Sampling, token_ids
from tests.engine.disks import disk, nudge, told, written
from tests.engine.harness import (
    Answer,
    Bench,
    collect,
    every_caching_kind,
    run,
    running,
    words,
)
from tests.engine.library import library
from tests.state_files import nbytes

BLOCK = 1024
DRAWN = Sampling(temperature=1.0, seed=1)  # the likeliest token hardly hangs on the state
KINDS = ["tiny-full", "tiny-sliding", "tiny-hybrid"]


def of_last(bench: Bench) -> int:
    """How much of the last prompt was reused."""
    return bench.engine.status().recent[-1].reused


# A17


@every_caching_kind
def test_one_failed_restore_from_disk_costs_one_turn_and_the_files_go(
    kind: CacheKind, tmp_path: Path
) -> None:
    """A17."""

    async def scenario() -> None:
        history: list[int] = []
        lengths, reused = [], []
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            for turn in range(2):
                history = await told(bench, history + words(1_500, turn))
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            bench.script.faults.restores = 1
            for turn in range(2, 8):
                lengths.append(len(history))
                history = await told(bench, history + words(200, turn))
                reused.append(of_last(bench))
            assert bench.script.faults.restores == 0, "something was restored"
            assert reused[0] < lengths[0] - 16
            assert all(r >= n - 16 for r, n in zip(reused[1:], lengths[1:], strict=True))
            assert bench.engine.status().cache.failed_restores == 1
            assert bench.engine.status().disk.bad_files > 0
        async with running(kind=kind, disk=disk(tmp_path)) as bench:
            await told(bench, history + words(50, 8))
            assert of_last(bench) >= len(history) - 16, "what was read instead is on disk by now"

    run(scenario())


# B11 and B12, on real models


class RealLife:
    """One life of an engine on a tiny real model, with a disk or without."""

    def __init__(
        self, folder: Path, options: DiskOptions | None, max_bytes: int, **load: Any
    ) -> None:
        self._folder = folder
        self._load_options = load
        self._max_bytes = max_bytes
        self._ids = itertools.count()
        self.engine = Engine(
            self._load,
            make_cache=self._make_cache,
            options=EngineOptions(chunk_tokens=256, disk=options),
        )

    async def run(self, prompt: list[int]) -> Answer:
        encoded = Prompt(token_ids(prompt))
        request = GenerationRequest(f"r{next(self._ids)}", encoded, 8, sampling=DRAWN)
        async with self.engine.lease():
            return await collect(self.engine.submit(request))

    def _load(self) -> LoadedModel:
        from mlx_backend.loading import load

        return load(str(self._folder), **self._load_options)

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        return PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=self._max_bytes)


@asynccontextmanager
async def life(
    folder: Path, options: DiskOptions | None = None, *, max_bytes: int = 1 << 28, **load: Any
) -> AsyncIterator[RealLife]:
    living = RealLife(folder, options, max_bytes, **load)
    living.engine.start()
    try:
        yield living
    finally:
        await living.engine.close(grace_seconds=0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from mlx_backend.tiny_models import write_folder

    root = tmp_path_factory.mktemp("models")
    return {kind: write_folder(kind, root / kind) for kind in KINDS}


def ids(length: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(20, 200, size=length)]


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_about_the_blocks_edges_are_restored_as_they_were_saved(
    folders: dict[str, Path], kind: str, tmp_path: Path
) -> None:
    """B11: conversations that end right before, at and right behind an edge."""
    heads = [ids(length, length) for length in (BLOCK - 1, BLOCK, BLOCK + 1)]
    asked = [head + ids(5, 1) for head in heads]
    if kind == "tiny-full":  # it can be cut anywhere
        asked += [heads[-1][:length] + ids(3, 2) for length in (BLOCK - 1, BLOCK)]

    async def scenario() -> None:
        async with life(folders[kind], max_bytes=0) as cold:
            expected = [(await cold.run(prompt)).tokens for prompt in asked]
        async with life(folders[kind], disk(tmp_path)) as first:
            for head in heads:
                await first.run(head)
        async with life(folders[kind], disk(tmp_path)) as second:
            answers = [await second.run(prompt) for prompt in asked]
            assert [answer.tokens for answer in answers] == expected
            for head, answer in zip(heads, answers, strict=False):
                assert answer.usage.reused >= len(head) - 1
            found = second.engine.status()
            assert found.disk.bad_files == 0
            assert found.cache.failed_restores == 0
            from_disk = [request.from_disk for request in found.recent[-len(asked) :]]
            assert all(n >= len(h) - 1 for n, h in zip(from_disk, heads, strict=False))

    run(scenario())


def of_others(status: DiskStatus) -> tuple[int, int]:
    return status.usable_bytes, status.unusable_bytes


def test_a_state_of_another_format_is_nobodys_and_the_first_to_go(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """B12: keys and values of 8 bits, then of 4, in one folder."""
    prompt, other = ids(500, 1), ids(500, 2)

    async def scenario() -> None:
        folder = folders["tiny-full"]
        async with life(folder, max_bytes=0, kv_bits=4) as cold:
            expected = [(await cold.run(each)).tokens for each in (prompt, other)]
        async with life(folder, disk(tmp_path), kv_bits=8) as eight:
            await eight.run(prompt)
        there = nbytes(tmp_path)
        limit = disk(tmp_path, max_bytes=there + 1000)
        async with life(folder, limit, kv_bits=4) as four:
            answer = await four.run(prompt)
            assert (answer.tokens, answer.usage.reused) == (expected[0], 0)
            assert of_others(four.engine.status().disk) == (0, there)
            assert (await four.run(other)).tokens == expected[1]
        async with life(folder, limit, kv_bits=4) as four:
            assert (await four.run(other)).usage.reused >= len(other) - 1
            status = four.engine.status().disk
            assert status.bytes <= there + 1000
            assert status.unusable_bytes < there, "others' files went first"
            assert status.bad_files == 0

    run(scenario())


# C9


def test_models_that_take_turns_leave_nothing_but_what_is_on_disk(tmp_path: Path) -> None:
    """C9: A, B, A, … ten times, in the memory of one."""

    async def scenario() -> None:
        prompt = words(2_000, 1)
        async with library(disk=disk(tmp_path), max_loaded=1) as shelf:
            written_bytes, held = [], []
            for _ in range(10):
                for name in ("first", "second"):
                    answer = await shelf.answer(name, prompt)
                    assert len(shelf.loaded) == 1
                await nudge(shelf)
                await written(shelf)
                status = shelf.engine.status()
                written_bytes.append(status.disk.written_bytes)
                held.append((status.cache.bytes, status.cache.arrays))
                assert answer.usage.reused >= (len(prompt) - 1 if len(held) > 1 else 0)
            assert len(set(held[1:])) == 1, held
            assert len(set(written_bytes[1:])) == 1, "nothing is written twice"

    run(scenario())
