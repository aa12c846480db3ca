"""The day itself, in the order in which it happens."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from daemon.demo import day
from daemon.demo.agent import Agent
from daemon.demo.child import free_port, running_daemon, serve_command
from daemon.demo.day import History
from daemon.demo.report import DemoFailed, DemoReport, Turn

PATIENCE_SECONDS = 300.0
CANCELLED_AT = 0.3  # of what must be read; the chunk that runs by then is read to its end

OnTurn = Callable[[Turn], None]


async def run(model: str, log: Path, on_turn: OnTurn) -> DemoReport:
    """Start a daemon with `model`, play the day, stop the daemon. Raises DemoFailed.

    SIGTERM is taken for Ctrl-C, so that the daemon is not left behind.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, signal.raise_signal, signal.SIGINT)
    port = free_port()
    async with running_daemon(serve_command(model, port), port, log) as base_url:
        return await play(base_url, on_turn)


async def play(base_url: str, on_turn: OnTurn) -> DemoReport:
    """Play the day against the daemon at `base_url`; `on_turn` hears of each turn as it ends."""
    started = time.perf_counter()
    timeout = httpx2.Timeout(PATIENCE_SECONDS)
    async with httpx2.AsyncClient(base_url=base_url, timeout=timeout, trust_env=False) as http:
        try:
            name = (await http.get("/v1/models")).json()["data"][0]["id"]
            stage = _Stage(http, name, on_turn)
            await _play(stage)
        except httpx2.HTTPError as error:
            raise DemoFailed(f"The daemon broke off: {error or type(error).__name__}") from error
    return DemoReport(name, tuple(stage.turns), time.perf_counter() - started)


@dataclass(slots=True)
class _Stage:
    """Where the turns gather."""

    http: httpx2.AsyncClient
    model: str
    on_turn: OnTurn
    turns: list[Turn] = field(default_factory=list)

    def agent(self, session: str) -> Agent:
        return Agent(self.http, self.model, session)

    def note(self, turn: Turn) -> Turn:
        self.turns.append(turn)
        self.on_turn(turn)
        return turn


async def _play(stage: _Stage) -> None:
    agent = stage.agent("demo-main")
    history = await _open_and_read_a_file(stage, agent)
    await _fork_two_sub_agents(stage, history)
    before = history
    await _cancel_and_send_again(stage, agent, history)
    history = day.asked(before, "Never mind. What would you read next, and why?")
    undone = stage.note(await agent.ask("undo, then another question", history))
    history = day.asked(day.answered(history, undone.answer), "Good. Sum up what you know so far.")
    stranger = stage.agent("demo-forgotten")
    stage.note(await stranger.ask("forgotten session, all resent", history))


async def _open_and_read_a_file(stage: _Stage, agent: Agent) -> History:
    history = day.opening()
    turn = stage.note(await agent.ask("open: system, tools, task", history))
    history = day.answered(history, turn.answer)
    question = "What can go wrong, in one sentence?"
    history = day.tool_result(history, "daemon", "errors.py", question)
    turn = stage.note(await agent.ask("tool result: errors.py", history))
    return day.answered(history, turn.answer)


async def _fork_two_sub_agents(stage: _Stage, history: History) -> None:
    """Both go on from the same history, with a file that is new to both and a task of their own."""
    tasks = ("Your task: name the events.", "Your task: say when a generation ends well.")
    turns = (
        stage.agent(f"demo-sub-agent-{number}").ask(
            f"sub-agent {number} of 2, at once: generation.py",
            day.tool_result(history, "daemon", "generation.py", task),
            is_alone=False,
        )
        for number, task in enumerate(tasks, start=1)
    )
    for turn in await asyncio.gather(*turns):
        stage.note(turn)


async def _cancel_and_send_again(stage: _Stage, agent: Agent, history: History) -> None:
    """A long file; the user presses Esc while it is read, then sends the same once more."""
    question = "What does a backend promise?"
    history = day.tool_result(history, "mlx_backend", "interface.py", question)
    name = "tool result: interface.py"
    stage.note(await agent.ask_and_leave(f"{name}, cancelled", history, CANCELLED_AT))
    stage.note(await agent.ask("the same, sent again", history))
