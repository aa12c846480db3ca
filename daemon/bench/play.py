"""Plays scenarios against one server and counts each request against its floor.

Prompts are encoded here, with the model's own template and tokenizer, before they are sent. A
server that renders another prompt is found out by its own count of the prompt's tokens, which then
stands in the report.

The ids of an answer are not on the wire, but their number is. Where a prompt goes on from an
answer that comes back with its meaning unchanged, its floor is what the server counts of it beyond
the earlier prompt and that answer, if this is less: so answers count, however they are spelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from daemon.bench.client import Reply, ask
from daemon.bench.floor import (
    History,
    boundary_before,
    common_prefix,
    floor,
    output_encoder,
    turn_end,
)
from daemon.bench.peers import Reading, Server, Tally
from daemon.bench.report import RequestResult, ScenarioResult
from daemon.bench.traffic import Answer, Interruption, Request, Scenario, Wave
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
    after: int | None = None
    """Tokens of the prompt and the answer that this one goes on from, if that is known."""


@dataclass(frozen=True, slots=True)
class _Answered:
    """A prompt as it was encoded here, and the server's count of it with its answer."""

    prompt: TokenIds
    tokens: int


@dataclass(slots=True)
class _Known:
    """What a server can have of earlier requests: tokens, and how many they were by label."""

    history: History = field(default_factory=History)
    answered: dict[str, _Answered] = field(default_factory=dict)

    def copy(self) -> _Known:
        return _Known(self.history.copy(), dict(self.answered))


@dataclass(slots=True)
class _Counted:
    """What a server's own counters say of a scenario, over all the processes that it took.

    `read` is None of a server that does not tell; `retained` of one that was stopped in between.
    """

    since: Tally | None
    read: int | None = 0
    retained: int | None = None
    is_whole: bool = True

    def end(self, now: Tally | None) -> None:
        """The process that has counted since then has come to this."""
        if now is None or self.since is None or self.read is None:
            self.read = self.retained = None
            return
        self.read += now.read - self.since.read
        self.retained = now.cache_bytes - self.since.cache_bytes if self.is_whole else None

    def go_on(self, since: Tally | None) -> None:
        self.since, self.is_whole = since, False


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
    _known: _Known = field(default_factory=_Known)
    _saved: _Known = field(default_factory=_Known)  # what outlives a kill
    _sent: int = 0

    @property
    def distinct(self) -> int:
        """Tokens of all prompts and outputs so far, those that they share counted once."""
        return self._known.history.distinct

    async def play(self, scenario: Scenario) -> ScenarioResult:
        counted, distinct = _Counted(await self.server.tally()), self.distinct
        began = time.monotonic()
        answers: dict[str, Answer] = {}
        self._known.answered.clear()
        results: list[RequestResult] = []
        for step in scenario.steps:
            if isinstance(step, Interruption):
                await self._interrupt(step, counted)
            else:
                results += await self._play_wave(step, answers)
        seconds = time.monotonic() - began
        counted.end(await self.server.tally())
        return ScenarioResult(
            name=scenario.name,
            requests=tuple(results),
            distinct=self.distinct - distinct,
            seconds=seconds,
            retained=counted.retained,
            counted_read=counted.read,
        )

    async def _interrupt(self, interruption: Interruption, counted: _Counted) -> None:
        counted.end(await self.server.tally())
        await self.server.interrupt(interruption)
        counted.go_on(await self.server.tally())
        if interruption is Interruption.KILL:
            self._known = self._saved.copy()
        else:
            self._saved = self._known.copy()

    async def _play_wave(self, wave: Wave, answers: dict[str, Answer]) -> list[RequestResult]:
        sent = [self._prepare(request, answers) for request in wave]
        replies = await asyncio.gather(*(self._ask(each) for each in sent))
        results = []
        for each, reply in zip(sent, replies, strict=True):
            answers[each.request.label] = reply.answer
            self._remember(each, reply)
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
        known = self._known.history.known(prompt)
        if not self.is_cuttable:
            known = boundary_before(self.encoder, prompt, messages, request.tools, known)
        self._known.history.add(prompt)
        after = self._after(request, answers, messages, prompt)
        return _Sent(request, self._body(request, messages), prompt, floor(prompt, known), after)

    def _after(
        self,
        request: Request,
        answers: Mapping[str, Answer],
        messages: list[dict[str, Any]],
        prompt: TokenIds,
    ) -> int | None:
        """What the server counted of the prompt and answer that `prompt` goes on from, if all of
        both is in it."""
        echo = request.last_echo
        answered = self._known.answered.get(echo.label) if echo else None
        if echo is None or answered is None or not echo.is_answer(answers[echo.label]):
            return None
        if common_prefix(answered.prompt, prompt) < len(answered.prompt):
            return None
        if answers[echo.label].thinking and not self._shows_thought(request, messages, prompt):
            return None
        return answered.tokens

    def _shows_thought(
        self, request: Request, messages: list[dict[str, Any]], prompt: TokenIds
    ) -> bool:
        """Whether the template writes the thought of the last answer."""
        last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
        without = {k: v for k, v in messages[last].items() if k != "reasoning_content"}
        changed = [*messages[:last], without, *messages[last + 1 :]]
        return len(self.encoder.chat(changed, request.tools)) < len(prompt)

    def _body(self, request: Request, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.server.model,
            "messages": messages,
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
        }
        if request.tools:
            body["tools"] = request.tools
        if request.must_call:
            body |= {"tool_choice": "required", "parallel_tool_calls": False}
        if self.plain_answers:
            body["logit_bias"] = self._bias(request)
        self._sent += 1
        return body

    def _bias(self, request: Request) -> dict[str, float]:
        """A letter, repeated; of a call, the end of the turn as the template writes it, and a
        thought that comes to an end, or none."""
        encode = output_encoder(self.encoder)
        letters = _LETTERS[self._sent % len(_LETTERS)] + request.blanks
        bias = {int(encode(letter)[-1]): LETTER_BIAS for letter in letters}
        if request.must_call:
            bias[turn_end(self.encoder)] = LETTER_BIAS
            opening, closing = encode("<think>"), encode("</think>")
            if request.thinks and len(closing) == 1:
                bias[int(closing[0])] = LETTER_BIAS
            elif len(opening) == 1:
                bias[int(opening[0])] = -LETTER_BIAS
        return {str(token): by for token, by in bias.items()}

    def _remember(self, sent: _Sent, reply: Reply) -> None:
        output = output_encoder(self.encoder)(reply.thinking or reply.text)
        self._known.history.add(np.concatenate([sent.prompt, output]))
        if reply.prompt >= 0 and reply.generated >= 0:
            counted = _Answered(sent.prompt, reply.prompt + reply.generated)
            self._known.answered[sent.request.label] = counted


def _result(sent: _Sent, reply: Reply, told: Reading | None) -> RequestResult:
    """`told` is the server's own word on a request whose usage never came."""
    if reply.reused >= 0:
        told = Reading(reply.reused, reply.prompt - reply.reused)
    seen_read = reply.progress[0] if reply.progress else None
    counted = told.reused + told.read if told and reply.has_begun else None
    return RequestResult(
        label=sent.request.label,
        prompt=counted or len(sent.prompt),
        floor=_floor(sent, counted),
        reused=told.reused if told else None,
        read=told.read if told else seen_read,
        first_token_seconds=reply.first_token_seconds,
        seconds=reply.seconds,
        is_cancelled=reply.is_cancelled,
    )


def _floor(sent: _Sent, counted: int | None) -> int:
    """`counted`: the server's count of the prompt."""
    if sent.after is None or counted is None:
        return sent.floor
    return max(1, min(sent.floor, counted - sent.after))
