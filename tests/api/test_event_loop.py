"""While a prompt is encoded or a constraint compiled, the event loop goes on for everybody else."""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mlx_backend.interface import ShouldStop, never
from mlx_backend.messages import NO_EFFORT, Constraint, Effort, Grammar, Prompt
from tests.api.admin_desk import Desk, desk
from tests.api.wires import CHAT, CHATS, WIRES, Wire
from tests.engine.harness import run
from tests.fakes import BytePrompts, Script

TICKS = 20
BOUND_SECONDS = 3.0


class Ticker:
    """Work that waits until the event loop has turned so many times, and notes if it never does."""

    def __init__(self) -> None:
        self.works = 0
        self.was_held_up = False
        self._is_working = threading.Event()
        self._has_ticked = threading.Event()

    def work(self) -> None:
        self.works += 1
        self._is_working.set()
        self.was_held_up |= not self._has_ticked.wait(BOUND_SECONDS)

    async def tick(self) -> None:
        while not self._is_working.is_set():
            await asyncio.sleep(0.001)
        for _ in range(TICKS):
            await asyncio.sleep(0.001)
        self._has_ticked.set()


class SlowPrompts(BytePrompts):
    def __init__(self, ticker: Ticker) -> None:
        super().__init__()
        self._ticker = ticker

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        should_stop: ShouldStop = never,
        effort: Effort = NO_EFFORT,
    ) -> Prompt:
        self._ticker.work()
        return super().chat(messages, tools, template_options, should_stop, effort)

    def text(self, text: str, should_stop: ShouldStop = never) -> Prompt:
        self._ticker.work()
        return super().text(text, should_stop)


async def asked(at: Desk, ticker: Ticker, path: str, body: dict[str, Any]) -> int:
    """The answer's status; the loop turned all the while."""
    ticking = asyncio.create_task(ticker.tick())
    answer = await at.ask("POST", path, json=body)
    assert ticker.works
    assert not ticker.was_held_up
    await ticking
    return answer.status_code


PATHS = [(wire, wire.path) for wire in WIRES]
PATHS += [(wire, f"{wire.path}/count_tokens") for wire in WIRES if wire.name == "messages"]


@pytest.mark.parametrize(("wire", "path"), PATHS, ids=[path for _, path in PATHS])
def test_encoding_leaves_the_loop_to_others(wire: Wire, path: str) -> None:
    async def scenario() -> None:
        async with desk() as at:
            ticker = Ticker()
            at.bench.models[-1].prompts = SlowPrompts(ticker)
            assert await asked(at, ticker, path, wire.body(**wire.limit(1))) == 200

    run(scenario())


@pytest.mark.parametrize("wire", CHATS, ids=lambda wire: wire.name)
def test_compiling_leaves_the_loop_to_others(wire: Wire) -> None:
    async def scenario() -> None:
        async with desk(script=Script(takes_constraints=True)) as at:
            ticker, model = Ticker(), at.bench.models[-1]

            def compile_slowly(constraint: Constraint, prompt: Prompt) -> Grammar:
                ticker.work()
                return Grammar(constraint, None)

            model.compile = compile_slowly  # type: ignore[method-assign]
            body = wire.body(**wire.schema(), **wire.limit(1))
            assert await asked(at, ticker, wire.path, body) == 200

    run(scenario())


def test_constraints_are_compiled_one_at_a_time() -> None:
    """What the first makes of the model's vocabulary takes a second, and is there for the next."""

    async def scenario() -> None:
        async with desk(script=Script(takes_constraints=True)) as at:
            working: list[int] = []
            most_at_once = 0

            def compile_slowly(constraint: Constraint, prompt: Prompt) -> Grammar:
                nonlocal most_at_once
                working.append(1)
                most_at_once = max(most_at_once, len(working))
                time.sleep(0.02)
                working.pop()
                return Grammar(constraint, None)

            at.bench.models[-1].compile = compile_slowly  # type: ignore[method-assign]
            body = CHAT.body(**CHAT.schema(), **CHAT.limit(1))
            answers = [at.ask("POST", CHAT.path, json=body) for _ in range(4)]
            assert {each.status_code for each in await asyncio.gather(*answers)} == {200}
            assert most_at_once == 1

    run(scenario())
