"""The benchmark's traffic on the engine's own reading, sharing and storing, without a model.

The model follows a script and its spans carry their tokens, so a wrong restore fails at once and
what is read is counted exactly, in milliseconds per scenario. There is no disk here, nor anything
that interrupts it: what stands between waves does not happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from daemon.bench.floor import History, boundary_before, floor
from daemon.bench.traffic import Answer, Request, Scenario
from daemon.budget import Budget
from daemon.deliveries import Delivery, Generation, Outbox
from daemon.generation import GenerationRequest
from daemon.inference import Inference, ReadingPolicy
from daemon.prefix_cache.cache import PrefixCache
from daemon.records import Records
from daemon.sessions import Sessions
from daemon.turns import Turn
from mlx_backend.interface import PromptEncoder
from mlx_backend.messages import CacheKind, Prompt
from tests.fakes import Script, ScriptedModel


@dataclass(frozen=True)
class Counted:
    """One request: tokens of its prompt, reused, read, and the least that could be read."""

    label: str
    prompt: int
    reused: int
    read: int
    floor: int


@dataclass(frozen=True)
class Result:
    requests: tuple[Counted, ...]
    distinct: int
    cache: PrefixCache

    @property
    def read(self) -> int:
        return sum(request.read for request in self.requests)

    @property
    def floor(self) -> int:
        return sum(request.floor for request in self.requests)


@dataclass(frozen=True)
class Tongue:
    """How prompts are encoded and answers read. An answer is one of `letters`, repeated, so that
    its text encodes to what was sampled; it is thinking where the prompt ends in an open thought.
    """

    encoder: PromptEncoder
    letters: tuple[int, ...]
    decode: Callable[[Sequence[int]], str]
    thinks: bool = False

    def reply(self, state: Sequence[int], index: int) -> int:
        return state[-1] if index else self.letters[sum(state[-9:]) % len(self.letters)]

    def answer(self, ids: Sequence[int]) -> Answer:
        text = self.decode(ids)
        return Answer(thinking=text) if self.thinks else Answer(text)


class Simulation:
    """One engine without its thread. `chunk_tokens` is what is read between two cancels."""

    def __init__(
        self,
        kind: CacheKind,
        tongue: Tongue,
        *,
        chunk_tokens: int = 2048,
        span_token_bytes: int = 1_000,
        checkpoint_bytes: int = 1_000,
        max_bytes: int = 1_000_000_000,
    ) -> None:
        self.kind = kind
        self.tongue = tongue
        self.cache = PrefixCache(kind=kind, max_entries=None, max_bytes=max_bytes)
        self.history = History()
        self._sessions = Sessions()
        self._loop = asyncio.new_event_loop()
        self._loop.close()
        self._ticks = count()
        self._arrivals = count()
        script = Script(
            tongue.reply,
            yields=False,
            span_token_bytes=span_token_bytes,
            checkpoint_bytes=checkpoint_bytes,
        )
        model = ScriptedModel(script, kind)
        self._inference = Inference(
            model=model,
            cache=self.cache,
            budget=Budget.without_limit(model.info),
            policy=ReadingPolicy(chunk_tokens=chunk_tokens),
            sessions=self._sessions,
            records=Records(),
            outbox=Outbox(_ignore),
            announce=_announce,
            clock=lambda: float(next(self._ticks)),
        )

    def play(self, scenario: Scenario) -> Result:
        answers: dict[str, Answer] = {}
        counted = [c for wave in scenario.waves for c in self._play_wave(wave, answers)]
        self.cache.check()
        return Result(tuple(counted), self.history.distinct, self.cache)

    def _play_wave(self, wave: Sequence[Request], answers: dict[str, Answer]) -> list[Counted]:
        turns, floors = [], []
        for request in wave:
            prompt, least = self._prepare(request, answers)
            floors.append(least)
            turns.append(self._turn(request, prompt))
            self._inference.add(turns[-1])
        self._run(wave, turns)
        for request, turn in zip(wave, turns, strict=True):
            self.history.add(np.concatenate([turn.tokens, np.array(turn.outputs, np.int32)]))
            answers[request.label] = self.tongue.answer(turn.outputs)
        return [
            Counted(r.label, t.usage.prompt, t.usage.reused, t.usage.read, least)
            for r, t, least in zip(wave, turns, floors, strict=True)
        ]

    def _prepare(self, request: Request, answers: dict[str, Answer]) -> tuple[Prompt, int]:
        messages = request.resolve(answers)
        prompt = self.tongue.encoder.chat(messages, request.tools)
        known = self.history.known(prompt.tokens)
        if self.kind is CacheKind.CHECKPOINTED:
            known = boundary_before(
                self.tongue.encoder, prompt.tokens, messages, request.tools, known
            )
        self.history.add(prompt.tokens)
        return prompt, floor(prompt.tokens, known)

    def _turn(self, request: Request, prompt: Prompt) -> Turn:
        asked = GenerationRequest(request.label, prompt, request.max_tokens)
        arrival = next(self._arrivals)
        generation = Generation(asked, self._loop, lambda generation: None)
        now = float(next(self._ticks))
        return Turn(generation, arrival, now, self._sessions.open(asked, now))

    def _run(self, wave: Sequence[Request], turns: Sequence[Turn]) -> None:
        while self._inference.turns:
            self._inference.decode_step()
            self._inference.read_chunk()
            for request, turn in zip(wave, turns, strict=True):
                if turn in self._inference.turns and _is_due(request, turn):
                    self._inference.cancel(turn)


def _is_due(request: Request, turn: Turn) -> bool:
    cancel = request.cancel
    if cancel is None:
        return False
    if cancel.after_deltas is not None:
        return turn.generated >= cancel.after_deltas
    assert cancel.at_share_read is not None
    return turn.position >= cancel.at_share_read * len(turn.tokens)


def _ignore(deliveries: Sequence[Delivery]) -> None:
    """Nobody listens: what a turn has come to is read from the turn itself."""


def _announce() -> None:
    """Nobody waits for a status in between."""
