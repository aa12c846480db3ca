"""What a request asks for, in the words of the model that serves it: ids, and a grammar.

All of it takes its time, so it happens in worker threads, in the door's places; it stops when the
client leaves. The engine hears nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from daemon.api.door import Door, Incoming
from daemon.api.incoming import ClientLeft
from daemon.api.rules import overflow
from daemon.api.telemetry import without_telemetry
from daemon.chat import (
    ChatRequest,
    Conversation,
    FieldNames,
    FillIn,
    PlainText,
    PromptSource,
    RawTokens,
)
from daemon.errors import BadRequest
from mlx_backend.errors import (
    ConstraintRejected,
    EncodingStopped,
    PromptRejected,
    PromptTooLong,
)
from mlx_backend.interface import LoadedModel, PromptEncoder, ShouldStop, never
from mlx_backend.messages import Constraint, Grammar, Prompt

Made = TypeVar("Made")

TEMPLATE_OPTIONS, CLIENTS_OPTIONS = "template_options", "chat_template_kwargs"
"""What an encoder calls a template's options, and what clients do."""


async def prompt_of(
    request: ChatRequest, model: LoadedModel, door: Door, incoming: Incoming
) -> Prompt:
    """The prompt, as the engine would read it. Raises BadRequest, or ClientLeft."""
    source = without_telemetry(request.prompt) if door.cuts_telemetry else request.prompt
    departure = incoming.departure
    try:
        return await _beside(
            door, incoming, lambda: encoded(source, model.prompts, lambda: departure.is_over)
        )
    except PromptTooLong as error:
        size, name = model.info.context_size, request.fields.prompt
        raise overflow(error.tokens, size, name, is_at_least=True) from error
    except PromptRejected as error:
        raise rejection(error, request.fields.prompt) from error


async def grammar_of(
    request: ChatRequest,
    constraint: Constraint,
    prompt: Prompt,
    model: LoadedModel,
    door: Door,
    incoming: Incoming,
) -> Grammar:
    """The constraint, compiled for the answer to `prompt`. Raises BadRequest, or ClientLeft.

    One at a time: what the first has to make of the model's vocabulary, or of a schema that
    others sent too, is there for the next.
    """
    try:
        async with door.compiler:
            return await _beside(door, incoming, lambda: model.compile(constraint, prompt))
    except ConstraintRejected as error:
        raise BadRequest(
            f"`{_at_fault(constraint, request.fields)}`: {error}",
            field=_at_fault(constraint, request.fields),
            code="unsupported_constraint",
        ) from error


async def _beside(door: Door, incoming: Incoming, work: Callable[[], Made]) -> Made:
    """The result of `work`, done beside the event loop, for a client who is still there."""
    departure = incoming.departure
    async with door.encoder(incoming.body_bytes):
        if departure.has_left:
            raise ClientLeft
        try:
            made = await asyncio.to_thread(work)
        except EncodingStopped:
            raise ClientLeft from None
    if departure.has_left:
        raise ClientLeft
    return made


def _at_fault(constraint: Constraint, fields: FieldNames) -> str:
    return fields.tool_choice if constraint.schema is None else fields.json_schema


def rejection(error: PromptRejected, prompt_field: str = "messages") -> BadRequest:
    """What an encoder refuses, as every other refusal: beginning with the client's field.

    It speaks of messages; a dialect that calls them otherwise has them in another order, too.
    """
    name = error.field
    if name.startswith("messages") and prompt_field != "messages":
        name = prompt_field
    elif name.startswith(TEMPLATE_OPTIONS):
        name = CLIENTS_OPTIONS + name.removeprefix(TEMPLATE_OPTIONS)
    return BadRequest(f"`{name}`: {error}" if name else str(error), field=name or None)


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
