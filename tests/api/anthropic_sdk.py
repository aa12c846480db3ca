"""Anthropic's own client library as a judge of what is answered: its types parse it strictly."""

from __future__ import annotations

import json
from typing import Any

from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
OUTSIDE = ("ping", "error")
"""Events that the library handles before its types."""


def message(body: bytes | str) -> Message:
    """A whole reply."""
    return Message.model_validate_json(body)


def events(stream: bytes | str) -> list[dict[str, Any]]:
    """A stream's events, each of its own type and named by it."""
    text = stream.decode() if isinstance(stream, bytes) else stream
    told = []
    for frame in text.split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] == "error":
            ErrorResponse.model_validate(event)
        elif event["type"] not in OUTSIDE:
            EVENT.validate_python(event)
        told.append(event)
    return told


def accumulated(told: list[dict[str, Any]]) -> Message:
    """What the library makes of a stream that ended well."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in told:
        if event["type"] not in OUTSIDE:
            snapshot = accumulate_event(
                event=EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers
            )
    return Message.model_validate(snapshot.to_dict())


def said(message: Message) -> dict[str, Any]:
    """All that a message says, without what it leaves open."""
    return message.to_dict(exclude_none=True)


def blocks_in_order(told: list[dict[str, Any]]) -> list[str]:
    """The types of a stream's blocks; asserts that each begins and ends once, one after another."""
    kinds: list[str] = []
    is_open = False
    for event in told:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(kinds)
                kinds.append(event["content_block"]["type"])
                is_open = True
            case "content_block_delta":
                assert is_open
                assert event["index"] == len(kinds) - 1
            case "content_block_stop":
                assert is_open
                assert event["index"] == len(kinds) - 1
                is_open = False
    assert not is_open
    return kinds
