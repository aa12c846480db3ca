"""An engine around a scripted model, with what a test wants to ask of both.

Everything that waits is bounded. Prompts are token ids; what the model must answer is computed
from the script alone, so every answer is compared with that of a cold run.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from daemon.budget import GROWTH_TOKENS, Budget
from daemon.engine import Engine, Generation
from daemon.engine_options import EngineOptions
from daemon.errors import GenerationFailed, ModelUnavailable
from daemon.generation import (
    Failed,
    Finished,
    FinishReason,
    Generated,
    GenerationEvent,
    GenerationRequest,
    Usage,
)
from daemon.prefix_cache.cache import PrefixCache
from mlx_backend.interface import Sampled
from mlx_backend.messages import (
    CacheKind,
    Marks,
    MessageStart,
    ModelInfo,
    Prompt,
    TokenIds,
    token_ids,
)
from tests.fakes import END_OF_TEXT, FakeRow, Script, ScriptedBackend, ScriptedModel, filler

HANG_SECONDS = 60.0
"""What a busy machine may take for what is soon done: more is a hang."""
GATE = 299

every_kind = pytest.mark.parametrize("kind", list(CacheKind))
every_caching_kind = pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])


def run(scenario: Coroutine[Any, Any, None], hang_seconds: float = HANG_SECONDS) -> None:
    """Run a scenario on an event loop of its own; a hang fails."""
    asyncio.run(asyncio.wait_for(scenario, hang_seconds))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread will bring about."""
    deadline = time.monotonic() + HANG_SECONDS / 2
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        await asyncio.sleep(0.001)


def words(length: int, seed: int) -> list[int]:
    """`length` token ids of deterministic text; different from the first id on per seed."""
    return [128 + seed % 100, *filler(length - 1, seed).encode()]


@dataclass(frozen=True)
class Answer:
    """All that came of one request."""

    events: tuple[GenerationEvent, ...]

    @property
    def end(self) -> Finished | Failed:
        assert isinstance(self.events[-1], Finished | Failed)
        assert not any(isinstance(event, Finished | Failed) for event in self.events[:-1])
        return self.events[-1]

    @property
    def reason(self) -> FinishReason:
        assert isinstance(self.end, Finished), self.end
        return self.end.reason

    @property
    def usage(self) -> Usage:
        return self.end.usage

    @property
    def tokens(self) -> list[int]:
        generated = [event for event in self.events if isinstance(event, Generated)]
        return [token for event in generated for token in event.tokens]


class Clock:
    """Time that passes only when a test says so. `asked` counts who wanted to know it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


class Pace:
    """Lets the engine's thread do so many things of one sort, then stops it in the midst of one."""

    def __init__(self) -> None:
        self._allowed: int | None = None
        self._is_standing = False
        self._changed = threading.Condition()

    def allow(self, count: int) -> None:
        """`count` more, counted from now on."""
        with self._changed:
            self._allowed, self._is_standing = count, False
            self._changed.notify_all()

    def free(self) -> None:
        """No limit any more."""
        with self._changed:
            self._allowed, self._is_standing = None, False
            self._changed.notify_all()

    async def standing(self) -> None:
        """Wait until what was allowed is used up and the thread stands."""
        await until(lambda: self._is_standing)

    def one(self) -> None:
        """On the engine's thread: about to do one more."""
        with self._changed:
            if self._allowed == 0:
                self._is_standing = True
                assert self._changed.wait_for(lambda: not self._is_standing, HANG_SECONDS)
            if self._allowed is not None:
                self._allowed -= 1


class PacedBackend(ScriptedBackend):
    """A scripted backend whose chunks and steps a test can hold up. `trims` counts pool trims.

    `watch` is called on the engine's thread whenever a step or a chunk is about to begin.
    """

    def __init__(self, kind: CacheKind, script: Script, chunks: Pace, steps: Pace) -> None:
        super().__init__(kind, script)
        self._chunks = chunks
        self._steps = steps
        self.trims = 0
        self.watch: Callable[[], None] = lambda: None

    def read(self, row: FakeRow, tokens: TokenIds) -> None:
        self._chunks.one()
        self.watch()
        super().read(row, tokens)

    def step(self, spare_bytes: int | None = None) -> list[Sampled]:
        self._steps.one()
        self.watch()
        return super().step(spare_bytes)

    def trim_pool(self) -> None:
        super().trim_pool()
        self.trims += 1


class Bench:
    """The engine under test. `models` and `caches` list every load and every tree, newest last.

    `budget_bytes` and `growth_tokens` make its budget. `most_held` is the most that rows and tree
    kept together whenever work began.
    """

    def __init__(self, script: Script, kind: CacheKind, **options: Any) -> None:
        self.script = script
        self.chunks = Pace()
        self.steps = Pace()
        self.load_errors: list[Exception] = []  # what the coming loads raise
        self.models: list[ScriptedModel] = []
        self.caches: list[PrefixCache] = []
        self._kind = kind
        self._cache_options: dict[str, Any] = {"max_entries": None, "max_bytes": 1 << 30}
        self._cache_options |= options.pop("cache", {})
        self._cache_class: type[PrefixCache] = options.pop("cache_class", PrefixCache)
        self.budget_bytes: int | None = options.pop("budget_bytes", None)
        self._growth_tokens: int = options.pop("growth_tokens", GROWTH_TOKENS)
        self.most_held = 0
        self._ids = itertools.count()
        self._gate_is_reached = threading.Event()
        self._gate_opens = threading.Event()
        self._reply, script.reply = script.reply, self._gated_reply
        edges = {name: options.pop(name) for name in ("clock", "on_busy") if name in options}
        self.engine = Engine(
            self._load,
            make_cache=self._make_cache,
            make_budget=self._make_budget,
            options=EngineOptions(**options),
            **edges,
        )

    @property
    def backend(self) -> PacedBackend:
        backend = self.models[-1].backend
        assert isinstance(backend, PacedBackend)
        return backend

    @property
    def log(self) -> list[tuple[Any, ...]]:
        return self.backend.log

    def calls(self, name: str) -> list[tuple[Any, ...]]:
        """The backend's calls of that name."""
        return [call for call in self.log if call[0] == name]

    @property
    def tokens_read(self) -> int:
        return sum(call[1] for call in self.calls("read"))

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 100,
        *,
        session: str | None = None,
        family: str | None = None,
        marks: Marks | None = None,
        messages: tuple[MessageStart, ...] = (),
    ) -> Generation:
        encoded = Prompt(token_ids(list(prompt)), marks or Marks(), messages)
        request = GenerationRequest(
            f"r{next(self._ids)}", encoded, max_tokens, session=session, family=family
        )
        return self.engine.submit(request)

    async def run(self, prompt: Sequence[int], max_tokens: int = 100, **more: Any) -> Answer:
        """Submit, and collect what comes."""
        return await collect(self.submit(prompt, max_tokens, **more))

    async def together(
        self, prompts: Sequence[Sequence[int]], max_tokens: int = 100
    ) -> list[Answer]:
        """Run prompts that arrive in this order, all before any of them is begun."""
        async with self.held():
            generations = [self.submit(prompt, max_tokens) for prompt in prompts]
        return list(await asyncio.gather(*map(collect, generations)))

    def cold(self, prompt: Sequence[int], max_tokens: int = 100) -> list[int]:
        """What the model answers with no cache at all."""
        stops = self.models[-1].info.stop_ids
        state, answer = list(prompt), list[int]()
        while len(answer) < max_tokens:
            token = self._reply(state, len(answer))
            if token in stops:
                break
            state.append(token)
            answer.append(token)
        return answer

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """The engine's thread stands still inside: what is submitted arrives all at once."""
        self._gate_is_reached.clear()
        self._gate_opens.clear()
        gate = self.submit([GATE])
        await until(self._gate_is_reached.is_set)
        del self.log[:]
        try:
            yield
        finally:
            self._gate_opens.set()
        await collect(gate)

    async def ready(self) -> None:
        await until(lambda: self.engine.status().model.state == "ready")

    async def idle(self) -> None:
        """Wait until nothing runs; then nothing may be left of it."""
        await until(lambda: not self.engine.status().running and self.backend.live_rows == 0)

    def _gated_reply(self, state: Sequence[int], index: int) -> int:
        if state[0] != GATE:
            return self._reply(state, index)
        self._gate_is_reached.set()
        assert self._gate_opens.wait(HANG_SECONDS), "the test never opened the gate"
        return END_OF_TEXT

    def _load(self) -> ScriptedModel:
        if self.load_errors:
            raise self.load_errors.pop(0)
        model = ScriptedModel(self.script, self._kind)
        model.backend = PacedBackend(self._kind, self.script, self.chunks, self.steps)
        model.backend.watch = self.weigh
        self.models.append(model)
        return model

    def weigh(self) -> None:
        """Note what is held now; on the engine's thread, or while it is idle."""
        rows = sum(row.nbytes for row in self.backend.rows if not row.is_released)
        self.most_held = max(self.most_held, rows + self.caches[-1].status().bytes)

    def _make_budget(self, info: ModelInfo) -> Budget:
        budget = Budget.of_model(info, self.budget_bytes)
        return replace(budget, growth_tokens=self._growth_tokens)

    def _make_cache(self, info: ModelInfo) -> PrefixCache:
        cache = self._cache_class(kind=info.cache_kind, **self._cache_options)
        self.caches.append(cache)
        return cache


async def collect(generation: Generation) -> Answer:
    return Answer(tuple([event async for event in generation]))


@asynccontextmanager
async def running(
    script: Script | None = None, kind: CacheKind = CacheKind.SLICEABLE, **options: Any
) -> AsyncIterator[Bench]:
    """An engine with its model loaded; closed and checked at the end."""
    bench = Bench(script or Script(), kind, **options)
    bench.engine.start()
    try:
        await bench.ready()
        yield bench
    finally:
        bench.chunks.free()
        bench.steps.free()
        await bench.engine.close(grace_seconds=0)
    assert bench.backend.live_rows == 0, "a row was leaked"
    assert all(model.backend.is_closed for model in bench.models)
    for cache in bench.caches:
        cache.check()


def expect_unavailable(bench: Bench) -> ModelUnavailable:
    with pytest.raises(ModelUnavailable) as caught:
        bench.submit([1, 2, 3])
    assert caught.value.retry_after
    return caught.value


def failure(answer: Answer) -> str:
    """The words of a request that failed."""
    assert isinstance(answer.end, Failed), answer.end
    assert isinstance(answer.end.error, GenerationFailed)
    return answer.end.error.message
