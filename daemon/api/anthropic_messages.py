"""`POST /v1/messages`: Anthropic's format to a `ChatRequest`, and answers back. Pure.

Usage: `input_tokens` are the prompt's tokens that had to be read, `cache_read_input_tokens` those
that were reused; together they are the prompt. What is read is kept for the next turn at no cost,
so `cache_creation_input_tokens` is always 0; clients add up all three.

The last character of a call's arguments is told with its end, so that those of a call that was cut
are never a whole JSON object, whatever the cut hit. Its block is begun with the first of them,
since a call without any would be taken for one without arguments.

An answer that began to repeat itself for ever ends as one that is too long: the API has no word
for it. Log-probabilities and warnings are not told here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from daemon.api.anthropic_fields import MessagesFields
from daemon.api.json_body import parse_body
from daemon.api.openai_fields import dump
from daemon.chat import (
    Block,
    CallBegun,
    CallBlock,
    CallDelta,
    CallDone,
    ChatRequest,
    Completion,
    Ended,
    EndReason,
    Envelope,
    Event,
    Opening,
    TextBlock,
    TextDelta,
    ThoughtBlock,
    ThoughtDelta,
)
from daemon.errors import ContextOverflow, DaemonError
from daemon.generation import Usage

STOP_REASONS = {
    EndReason.STOP: "end_turn",
    EndReason.STOP_STRING: "stop_sequence",
    EndReason.LENGTH: "max_tokens",
    EndReason.CALLS: "tool_use",
    EndReason.REPETITION: "max_tokens",
}
ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
SIGNATURE = "bWx4ZA=="
"""Of every thought. Nobody checks it, but agents turn a thought without one into text."""

_TEXT = {"type": "text", "text": ""}
_THOUGHT = {"type": "thinking", "thinking": "", "signature": ""}


class MessageStream:
    """A stream of message events: blocks one after the other, each begun and ended once."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self._index = -1  # of the last block that was begun
        self._open: str | None = None  # its type, while it is open
        self._call: CallBegun | None = None  # one whose block is not begun yet
        self._held = ""  # the last character of its arguments so far

    def start(self, opening: Opening) -> bytes:
        message = {
            **_message_fields(self._envelope),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _prompt_fields(opening.prompt, opening.reused),
        }
        return _frame("message_start", {"message": message})

    def silence(self) -> bytes:
        return _frame("ping")

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta(text):
                begun = self._begun("text", _TEXT)
                return begun + self._delta({"type": "text_delta", "text": text})
            case ThoughtDelta(text):
                begun = self._begun("thinking", _THOUGHT)
                return begun + self._delta({"type": "thinking_delta", "thinking": text})
            case CallBegun():
                self._call, self._held = event, ""
                return self._ended_block()
            case CallDelta(_, fragment):
                arguments = self._held + fragment
                self._held = arguments[-1:]
                return self._arguments(arguments[:-1])
            case CallDone():
                return self._arguments(self._held) + self._ended_block()
            case Ended():
                return self._end(event)
            case _:
                return b""

    def fail(self, error: DaemonError) -> bytes:
        request_id = "req_" + self._envelope.id.removeprefix(AnthropicMessages.id_prefix)
        return _frame("error", error_fields(error, request_id))

    def _begun(self, kind: str, block: Mapping[str, Any]) -> bytes:
        """Whatever it takes for a block of that type to be open."""
        if self._open == kind:
            return b""
        ended = self._ended_block()
        self._index += 1
        self._open = kind
        return ended + self._block_frame("content_block_start", {"content_block": block})

    def _arguments(self, fragment: str) -> bytes:
        if not fragment:
            return b""
        begun = b""
        if self._call is not None:
            begun = self._begun("tool_use", _call_fields(self._call.id, self._call.name, {}))
            self._call = None
        return begun + self._delta({"type": "input_json_delta", "partial_json": fragment})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return self._block_frame("content_block_delta", {"delta": delta})

    def _ended_block(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": SIGNATURE})
        self._open = None
        return signed + self._block_frame("content_block_stop", {})

    def _block_frame(self, event: str, fields: Mapping[str, Any]) -> bytes:
        return _frame(event, {"index": self._index, **fields})

    def _end(self, ended: Ended) -> bytes:
        told = {"delta": _stop_fields(ended), "usage": _usage_fields(ended.usage)}
        return self._ended_block() + _frame("message_delta", told) + _frame("message_stop")


class AnthropicMessages:
    """Implements `dialect.Dialect`."""

    path = "/v1/messages"
    id_prefix = "msg_"
    call_prefix = "toolu_"

    def parse(self, body: bytes) -> ChatRequest:
        fields = parse_body(MessagesFields, body)
        fields.refuse_prefill()
        return fields.request()

    def reply(self, completion: Completion, request: ChatRequest) -> bytes:
        return dump(
            {
                **_message_fields(completion.envelope),
                "content": [_block_fields(block) for block in completion.blocks],
                **_stop_fields(completion.ended),
                "usage": _usage_fields(completion.ended.usage),
            }
        )

    def stream(self, envelope: Envelope, request: ChatRequest) -> MessageStream:
        return MessageStream(envelope)

    def error(self, error: DaemonError, request_id: str) -> bytes:
        return dump(error_fields(error, request_id))


class AnthropicTokenCount(AnthropicMessages):
    """`POST /v1/messages/count_tokens`: the same bodies, also such as end with an assistant's
    message, since agents have each message counted by itself. Implements
    `token_count.CountingDialect`."""

    path = "/v1/messages/count_tokens"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_body(MessagesFields, body).request()

    def count(self, tokens: int) -> bytes:
        return dump({"input_tokens": tokens})


def error_fields(error: DaemonError, request_id: str) -> dict[str, Any]:
    kind = ERROR_TYPES.get(error.status, "api_error" if error.status >= 500 else None)
    told = {"type": kind or "invalid_request_error", "message": _error_message(error)}
    return {"type": "error", "error": told, "request_id": request_id}


def _error_message(error: DaemonError) -> str:
    """An overflow in the words that make agents compact their conversation and go on."""
    if not isinstance(error, ContextOverflow):
        return error.message
    if error.tokens is None or error.maximum is None:
        return f"prompt is too long: {error.message}"
    tokens = error.tokens + 1 if error.is_at_least else error.tokens
    maximum = min(error.maximum, tokens - 1)  # one token of the context is for the answer
    return f"prompt is too long: {tokens} tokens > {maximum} maximum"


def _message_fields(envelope: Envelope) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "type": "message",
        "role": "assistant",
        "model": envelope.model,
    }


def _stop_fields(ended: Ended) -> dict[str, Any]:
    return {"stop_reason": STOP_REASONS[ended.reason], "stop_sequence": ended.stop}


def _prompt_fields(prompt: int, reused: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt - reused,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reused,
        "output_tokens": 0,
    }


def _usage_fields(usage: Usage) -> dict[str, Any]:
    return {
        **_prompt_fields(usage.prompt, usage.reused),
        "output_tokens": usage.generated,
        "output_tokens_details": {"thinking_tokens": usage.thought},
    }


def _block_fields(block: Block) -> dict[str, Any]:
    match block:
        case TextBlock(text):
            return {**_TEXT, "text": text}
        case ThoughtBlock(text):
            return {**_THOUGHT, "thinking": text, "signature": SIGNATURE}
        case CallBlock(call_id, name, arguments):
            return _call_fields(call_id, name, json.loads(arguments))


def _call_fields(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _frame(event: str, fields: Mapping[str, Any] | None = None) -> bytes:
    """One server-sent event, which agents tell by its name."""
    return f"event: {event}\ndata: ".encode() + dump({"type": event, **(fields or {})}) + b"\n\n"
