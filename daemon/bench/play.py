"""Plays scenarios against one server and counts each request against its floor.

Prompts are encoded here, with the model's own template and tokenizer, before they are sent: the
floor does not depend on what a server says. A server that renders another prompt is found out by
its own count of the prompt's tokens, which then stands in the report.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daemon.bench.client import Reply, ask
from daemon.bench.floor import History, boundary_before, floor, output_encoder
from daemon.bench.peers import Reading, Server
from daemon.bench.report import RequestResult, ScenarioResult
from daemon.bench.traffic import Answer, Request, Scenario
from mlx_backend.interface import PromptEncoder
from mlx_backend.messages import TokenIds

LETTER_BIAS = 100.0
_LETTERS = "abcdefghklmnoprstuvw"


@dataclass(frozen=True, slots=True)
class _Sent:
    request: Request
    body: dict[str, Any]
    prompt: TokenIds
    floor: int


@dataclass(slots=True)
class Player:
    """One server's run. `is_cuttable`: its model's state can be taken up at any token.

    `plain_answers` makes a model of random weights answer with one letter, repeated: then the ids
    that it sampled are those of the text that the client sends back.
    """

    server: Server
    encoder: PromptEncoder
    is_cuttable: bool
    plain_answers: bool
    _history: History = field(default_factory=History)
    _sent: int = 0

    async def play(self, scenario: Scenario) -> ScenarioResult:
        before, distinct = await self.server.tally(), self._history.distinct
        began = time.monotonic()
        answers: dict[str, Answer] = {}
        results = [await self._play_wave(wave, answers) for wave in scenario.waves]
        seconds = time.monotonic() - began
        after = await self.server.tally()
        return ScenarioResult(
            name=scenario.name,
            requests=tuple(result for wave in results for result in wave),
            distinct=self._history.distinct - distinct,
            seconds=seconds,
            retained=after.cache_bytes - before.cache_bytes if before and after else None,
            counted_read=after.read - before.read if before and after else None,
        )

    async def _play_wave(
        self, wave: tuple[Request, ...], answers: dict[str, Answer]
    ) -> list[RequestResult]:
        sent = [self._prepare(request, answers) for request in wave]
        replies = await asyncio.gather(*(self._ask(each) for each in sent))
        results = []
        for each, reply in zip(sent, replies, strict=True):
            answers[each.request.label] = reply.answer
            self._remember(each.prompt, reply.answer)
            told = await self.server.last_cancelled() if reply.is_cancelled else None
            results.append(_result(each, reply, told))
        return results

    async def _ask(self, sent: _Sent) -> Reply:
        return await ask(
            self.server.http, sent.body, sent.request.cancel, self.server.read_progress
        )

    def _prepare(self, request: Request, answers: dict[str, Answer]) -> _Sent:
        messages = request.resolve(answers)
        prompt = self.encoder.chat(messages, request.tools).tokens
        known = self._history.known(prompt)
        if not self.is_cuttable:
            known = boundary_before(self.encoder, prompt, messages, request.tools, known)
        self._history.add(prompt)
        return _Sent(request, self._body(request, messages), prompt, floor(prompt, known))

    def _body(self, request: Request, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.server.model,
            "messages": messages,
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
        }
        if request.tools:
            body["tools"] = request.tools
        if self.plain_answers:
            letter = output_encoder(self.encoder)(_LETTERS[self._sent % len(_LETTERS)])
            body["logit_bias"] = {str(int(letter[-1])): LETTER_BIAS}
        self._sent += 1
        return body

    def _remember(self, prompt: TokenIds, answer: Answer) -> None:
        output = output_encoder(self.encoder)(answer.thinking or answer.text)
        self._history.add(np.concatenate([prompt, output]))


def _result(sent: _Sent, reply: Reply, told: Reading | None) -> RequestResult:
    """`told` is the server's own word on a request whose usage never came."""
    if reply.reused >= 0:
        told = Reading(reply.reused, reply.prompt - reply.reused)
    seen_read = reply.progress[0] if reply.progress else None
    return RequestResult(
        label=sent.request.label,
        prompt=reply.prompt if reply.prompt >= 0 else len(sent.prompt),
        floor=sent.floor,
        reused=told.reused if told else None,
        read=told.read if told else seen_read,
        first_token_seconds=reply.first_token_seconds,
        seconds=reply.seconds,
        is_cancelled=reply.is_cancelled,
    )
