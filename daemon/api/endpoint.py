"""The I/O of every dialect: body in, prompt encoded, generation followed, answer out.

Errors that are found before the first byte have their status; a stream begins only when the
request was admitted. A client that leaves cancels its generation in whatever phase that is.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import time
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from daemon.api.answer import Answer, collected
from daemon.api.dialect import Dialect
from daemon.api.incoming import ClientLeft, Departure, read_json_body, watching
from daemon.api.responses import error_response, json_response, stopping
from daemon.api.reuse_header import reuse_header
from daemon.api.rules import SEED_BITS, answer_limit, answering_name, overflow, sampling_for
from daemon.api.session_key import family_key, session_key
from daemon.api.sse import EventStream, KeepAlive
from daemon.api.telemetry import without_telemetry
from daemon.chat import (
    ChatRequest,
    Conversation,
    Envelope,
    FillIn,
    PlainText,
    PromptSource,
    RawTokens,
)
from daemon.engine import Engine
from daemon.errors import BadRequest, DaemonError
from daemon.generation import GenerationRequest
from mlx_backend.errors import EncodingStopped, PromptRejected, PromptTooLong
from mlx_backend.interface import LoadedModel, PromptEncoder, ShouldStop, never
from mlx_backend.messages import AnswerForm, Prompt

log = logging.getLogger(__name__)

REQUEST_ID = "mlxd.request_id"
"""Key of the ASGI scope that holds the request's id."""

HEADERS_SECONDS = 0.5
"""How long a stream's headers wait for its turn to come, so that they can say what is reused."""

ENCODERS = 2
"""Prompts encoded at once: encoding is for one core each, and the engine needs one too."""

LARGE_BYTES = 1_000_000
"""A body from here on is parsed beside the event loop, and waits for others like it: they have
one encoder between them, so that a small one always finds another."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request's way in, apart from what it asks for."""

    request_id: str
    headers: Headers
    body_bytes: int
    departure: Departure


Admitted: TypeAlias = tuple[Answer, Envelope]


@dataclass(slots=True)
class Door:
    """What all endpoints of a daemon have in common."""

    engine: Engine
    max_body_bytes: int = 64 * 2**20
    keep_alive: KeepAlive = field(default_factory=KeepAlive)
    clock: Callable[[], float] = time
    cuts_telemetry: bool = True
    draw_seed: Callable[[], int] = lambda: secrets.randbits(SEED_BITS)
    encoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ENCODERS))
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    @asynccontextmanager
    async def encoder(self, body_bytes: int) -> AsyncIterator[None]:
        """A place to encode the prompt of such a body in."""
        if body_bytes < LARGE_BYTES:
            async with self.encoders:
                yield
        else:
            async with self.large, self.encoders:
                yield


class Endpoint:
    """An ASGI application that answers one dialect's requests."""

    def __init__(self, dialect: Dialect, door: Door) -> None:
        self._dialect = dialect
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except ClientLeft:
            log.debug("a client left before its request was served")
        except DaemonError as error:
            await self._refuse(error, scope, receive, send)
        except asyncio.CancelledError:  # by the server, which waits for this task to end
            await self._refuse(stopping(), scope, receive, send)

    async def _refuse(self, error: DaemonError, scope: Scope, receive: Receive, send: Send) -> None:
        body = self._dialect.error(error, scope[REQUEST_ID])
        await error_response(error, body)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        body = await read_json_body(headers, receive, self._door.max_body_bytes)
        async with watching(receive) as departure:
            request = await self._parsed(body)
            incoming = Incoming(scope[REQUEST_ID], headers, len(body), departure)
            del body
            answer, envelope = await self._admit(request, incoming)
            departure.react(answer.generation.cancel)
            try:
                if request.stream:
                    started = await answer.generation.begun(HEADERS_SECONDS)
                    stream = EventStream(
                        send, self._dialect.stream(envelope, request), self._door.keep_alive
                    )
                    await stream.run(answer.opening, answer.events(), reuse_header(started))
                else:
                    completion = await collected(answer.events(), envelope)
                    told = reuse_header(answer.generation.started)
                    reply = json_response(self._dialect.reply(completion, request), headers=told)
                    await reply(scope, receive, send)
            finally:
                answer.generation.cancel()

    async def _parsed(self, body: bytes) -> ChatRequest:
        if len(body) < LARGE_BYTES:
            return self._dialect.parse(body)
        return await asyncio.to_thread(self._dialect.parse, body)

    async def _admit(self, request: ChatRequest, incoming: Incoming) -> Admitted:
        """Everything that can be refused is refused here, before a token is read."""
        model = self._door.engine.model()
        name = answering_name(request.model, model.info)
        sampling = sampling_for(request.sampling, model.info, self._door.draw_seed())
        source = without_telemetry(request.prompt) if self._door.cuts_telemetry else request.prompt
        field_at_fault = "messages" if isinstance(request.prompt, Conversation) else "prompt"
        try:
            prompt = await self._encode(source, model, incoming)
        except PromptTooLong as error:
            told = f"more than {error.tokens}"
            raise overflow(told, model.info.context_size, field_at_fault) from error
        except PromptRejected as error:
            raise rejection(error) from error
        limit = answer_limit(
            request.max_tokens, len(prompt), model.info.context_size, field_at_fault
        )
        generation = self._door.engine.submit(
            GenerationRequest(
                incoming.request_id,
                prompt,
                limit,
                sampling,
                session=session_key(request, incoming.headers),
                family=family_key(incoming.headers),
            )
        )
        answer_id = self._dialect.id_prefix + incoming.request_id.removeprefix("req_")
        envelope = Envelope(answer_id, name, int(self._door.clock()))
        call_id = self._dialect.call_prefix + incoming.request_id.removeprefix("req_")
        form = AnswerForm(
            request.stop,
            tuple(tool.callable for tool in request.tools),
            prompt.begins_in_thought,
            is_raw=not isinstance(request.prompt, Conversation),
        )
        return Answer(generation, model.output(form), len(prompt), call_id), envelope

    async def _encode(self, source: PromptSource, model: LoadedModel, incoming: Incoming) -> Prompt:
        departure = incoming.departure
        async with self._door.encoder(incoming.body_bytes):
            if departure.has_left:
                raise ClientLeft
            try:
                prompt = await asyncio.to_thread(
                    encoded, source, model.prompts, lambda: departure.is_over
                )
            except EncodingStopped:
                raise ClientLeft from None
        if departure.has_left:
            raise ClientLeft
        return prompt


def rejection(error: PromptRejected) -> BadRequest:
    """What an encoder refuses, as every other refusal: beginning with the field."""
    where = f"`{error.field}`: " if error.field else ""
    return BadRequest(f"{where}{error}", field=error.field or None)


def encoded(
    source: PromptSource, prompts: PromptEncoder, should_stop: ShouldStop = never
) -> Prompt:
    """The prompt's tokens. Takes its time: not for the event loop. Raises as `prompts` does."""
    match source:
        case Conversation(messages, _, options, effort):
            rendered = [message.for_template() for message in messages]
            tools = [tool.for_template() for tool in source.shown_tools]
            return prompts.chat(rendered, tools, options, should_stop, effort)
        case PlainText(text):
            return prompts.text(text, should_stop)
        case RawTokens(ids):
            return prompts.ids(ids)
        case FillIn(before, after):
            return prompts.fill_in(before, after, should_stop)
