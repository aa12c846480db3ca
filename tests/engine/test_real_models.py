"""The engine on real architectures: tiny random models of all three kinds of cache.

Each answer is compared with the one of an engine that stores nothing, on the same chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.engine import Engine, Generation
from daemon.engine_options import EngineOptions
from daemon.generation import Failed, Generated, GenerationRequest, Progress
from daemon.prefix_cache.cache import PrefixCache
from mlx_backend.errors import StepFailed
from mlx_backend.interface import Backend, LoadedModel, Sampled
from mlx_backend.messages import Marks, MessageStart, ModelInfo, Prompt, TokenIds, token_ids
from tests.engine.harness import Answer, collect, run, until

CHUNK = 64
KINDS = ["tiny-full", "tiny-sliding", "tiny-hybrid"]
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from mlx_backend.tiny_models import write_folder

    root = tmp_path_factory.mktemp("models")
    return {kind: write_folder(kind, root / kind) for kind in KINDS}


class BreakingBackend:
    """The real backend, but that its steps fail while `is_broken`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        if self.is_broken:
            raise StepFailed("the device went away")
        return self._backend.step(spare_bytes)


class RealBench:
    """An engine on a tiny real model. `loads` are its backends, newest last."""

    def __init__(self, folder: Path, max_bytes: int, options: dict[str, Any]) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._ids = itertools.count()
        self.loads: list[BreakingBackend] = []
        self.caches: list[PrefixCache] = []
        self.engine = Engine(
            self._load,
            make_cache=self._make_cache,
            options=EngineOptions(chunk_tokens=CHUNK, **options),
        )

    def submit(
        self,
        prompt: list[int],
        max_tokens: int = 12,
        session: str | None = None,
        messages: tuple[MessageStart, ...] = (),
    ) -> Generation:
        encoded = Prompt(token_ids(prompt), Marks(), messages)
        request = GenerationRequest(f"r{next(self._ids)}", encoded, max_tokens, session=session)
        return self.engine.submit(request)

    async def run(
        self, prompt: list[int], max_tokens: int = 12, session: str | None = None
    ) -> Answer:
        return await collect(self.submit(prompt, max_tokens, session))

    def _load(self) -> LoadedModel:
        from mlx_backend.loading import load

        model = load(str(self._folder))
        self.loads.append(BreakingBackend(model.backend))
        return replace(model, backend=self.loads[-1])

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        cache = PrefixCache(kind=info.cache_kind, max_entries=None, max_bytes=self._max_bytes)
        self.caches.append(cache)
        return cache


@asynccontextmanager
async def real(folder: Path, max_bytes: int = 1 << 28, **options: Any) -> AsyncIterator[RealBench]:
    bench = RealBench(folder, max_bytes, options)
    bench.engine.start()
    try:
        await until(lambda: bench.engine.status().model.state != "loading")
        assert bench.engine.status().model.state == "ready", bench.engine.status().model.error
        yield bench
    finally:
        await bench.engine.close(grace_seconds=0)
    for cache in bench.caches:
        cache.check()


async def cold(folder: Path, prompts: list[list[int]], max_tokens: int = 12) -> list[list[int]]:
    """What an engine that stores nothing says to each prompt, one after the other."""
    async with real(folder, max_bytes=0) as bench:
        return [(await bench.run(prompt, max_tokens)).tokens for prompt in prompts]


def ids(length: int, seed: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(20, 200, size=length)]


@every_kind
def test_a_growing_conversation_is_answered_as_if_read_from_scratch(
    folders: dict[str, Path], kind: str
) -> None:
    async def scenario() -> None:
        prompts, answers, prompt = [], [], list[int]()
        async with real(folders[kind]) as bench:
            for turn in range(4):
                prompt = prompt + ids(100, turn)
                prompts.append(prompt)
                answers.append(await bench.run(prompt))
                prompt = prompt + answers[-1].tokens
        for turn, answer in enumerate(answers):
            assert answer.usage.reused >= (len(prompts[turn - 1]) - 16 if turn else 0)
        assert [a.tokens for a in answers] == await cold(folders[kind], prompts)

    run(scenario())


@every_kind
def test_a_cancelled_prompt_and_its_followers_are_answered_as_if_read_from_scratch(
    folders: dict[str, Path], kind: str
) -> None:
    async def scenario() -> None:
        head = ids(1500, 1)
        prompts = [head + ids(30, 10 + n) for n in range(3)]
        async with real(folders[kind]) as bench:
            leader = bench.submit(head + ids(20, 9))
            followers = [bench.submit(prompt) for prompt in prompts]
            async for event in leader:
                if isinstance(event, Progress) and event.done >= 300:
                    leader.cancel()
            answers = [await collect(follower) for follower in followers]
            assert sum(answer.usage.reused for answer in answers) >= 2 * 1500 + 300
        assert [a.tokens for a in answers] == await cold(folders[kind], prompts)

    run(scenario())


@every_kind
def test_a_cancelled_answer_is_taken_up_where_it_was_left(
    folders: dict[str, Path], kind: str
) -> None:
    async def scenario() -> None:
        prompt = ids(200, 1)
        async with real(folders[kind]) as bench:
            generation = bench.submit(prompt, 2000)
            said: list[int] = []
            async for event in generation:
                if isinstance(event, Generated):
                    said += event.tokens
                    if len(said) > 30:
                        generation.cancel()
            again = await bench.run(prompt)
            longer = await bench.run(prompt + said)
            assert again.usage.reused == 199
            can_cut = kind == "tiny-full"
            assert longer.usage.reused >= (len(prompt) + len(said) - 1 if can_cut else 199)
        expected = await cold(folders[kind], [prompt, prompt + said])
        assert [again.tokens, longer.tokens] == expected

    run(scenario())


@every_kind
def test_what_was_stored_is_good_after_the_model_was_loaded_again(
    folders: dict[str, Path], kind: str
) -> None:
    async def scenario() -> None:
        prompt = ids(300, 1)
        async with real(folders[kind]) as bench:
            first = await bench.run(prompt)
            bench.loads[0].is_broken = True
            assert isinstance((await bench.run(ids(50, 2))).end, Failed)
            await until(lambda: bench.engine.status().model.state == "ready")
            assert len(bench.loads) == 2
            again = await bench.run(prompt)
            assert again.usage.reused >= 299 - 16
            assert again.tokens == first.tokens
            assert len(bench.caches) == 1

    run(scenario())


@pytest.mark.parametrize("kind", ["tiny-sliding", "tiny-hybrid"])
def test_a_history_that_was_read_at_once_goes_on_from_between_its_messages(
    folders: dict[str, Path], kind: str
) -> None:
    async def scenario() -> None:
        history = ids(4_600, 1)
        messages = tuple(MessageStart(at, at // 500, "user") for at in range(0, 4_600, 500))
        async with real(folders[kind]) as bench:
            await collect(bench.submit(history, 1, messages=messages))
            shorter = history[:4_100] + ids(20, 2)
            answer = await bench.run(shorter)
        assert answer.usage.reused == 4_000
        assert [answer.tokens] == await cold(folders[kind], [shorter])

    run(scenario(), hang_seconds=60)


def two_thirds(start: int, prompt: TokenIds, opening: bool, marks: Marks) -> list[int]:
    return [len(prompt) * 2 // 3]


POLICIES: dict[str, dict[str, Any]] = {
    "every": {},
    "initial": {"prompt_end": "initial"},
    "interval": {"prompt_end": "initial", "checkpoint_interval": 130},
    "custom": {"checkpoint_offsets": two_thirds},
}


@pytest.mark.parametrize("policy", POLICIES)
@every_kind
def test_a_cut_turn_is_sent_again_after_its_session_was_forgotten(
    folders: dict[str, Path], kind: str, policy: str
) -> None:
    async def scenario() -> None:
        turn_1 = ids(200, 1)
        async with real(folders[kind], **POLICIES[policy]) as bench:
            r = (await bench.run(turn_1, session="first")).tokens
            turn_2 = turn_1 + r + ids(150, 2)
            generation = bench.submit(turn_2, 2000, session="first")
            async for event in generation:
                if isinstance(event, Generated):
                    generation.cancel()
            await bench.engine.ask(lambda seen: seen.sessions.delete("first"))
            again = await bench.run(turn_2, session="second")
            assert (
                again.usage.reused
                == {
                    "every": len(turn_2) - 1,
                    "initial": 199,
                    "interval": (len(turn_2) - 1) // 130 * 130,
                    "custom": len(turn_2) * 2 // 3,
                }[policy]
            )
            await bench.engine.ask(lambda seen: seen.cache.clear())
            cold = await bench.run(turn_2)
            assert cold.usage.reused == 0
            assert cold.tokens == again.tokens

    run(scenario())


@every_kind
def test_what_was_stored_is_good_after_the_weights_were_away(
    folders: dict[str, Path], kind: str
) -> None:
    async def scenario() -> None:
        prompt = ids(300, 1)
        async with real(folders[kind]) as bench:
            first = await bench.run(prompt)
            longer = [*prompt, *first.tokens, *ids(40, 2)]
            await bench.engine.unload()
            assert bench.engine.status().model.state == "unloaded"
            async with bench.engine.lease():
                answer = await bench.run(longer)
            assert len(bench.loads) == 2
            assert answer.usage.reused >= 299
        assert answer.tokens == (await cold(folders[kind], [longer]))[0]

    run(scenario())
