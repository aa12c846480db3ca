"""A response and the items in its output, as JSON is made of them. Pure.

Ids of items are made of the response's own and of their place, so that a stream and a whole
reply of the same answer are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from daemon.api.free_text import input_of
from daemon.api.openai_fields import score_fields
from daemon.api.response_scores import Scores
from daemon.api.response_thoughts import sealed
from daemon.api.response_tools import own_name
from daemon.chat import (
    CallBlock,
    ChatRequest,
    Completion,
    EndReason,
    Envelope,
    Score,
    TextBlock,
    ThoughtBlock,
    ToolSpec,
)
from daemon.errors import DaemonError
from daemon.generation import Usage

Fields: TypeAlias = dict[str, Any]

ID_PREFIX = "resp_"
CUT_REASONS = {
    EndReason.LENGTH: "max_output_tokens",
    EndReason.REPETITION: "max_output_tokens",
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest(ChatRequest):
    """`items` are those of the whole conversation, the kept ones included; `told` is what the
    reply repeats of the request."""

    items: Sequence[Mapping[str, Any]] = ()
    told: Mapping[str, Any] = field(default_factory=dict)


def response_fields(
    envelope: Envelope,
    request: ResponsesRequest,
    status: str = "in_progress",
    output: Sequence[Fields] = (),
    **ends: Any,
) -> Fields:
    """The response as it is by now; `ends` replace what is null until it has ended."""
    return {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": envelope.model,
        "output": output,
        "usage": None,
        **request.told,
        **ends,
    }


def ended_fields(
    envelope: Envelope,
    request: ResponsesRequest,
    output: Sequence[Fields],
    reason: EndReason,
    usage: Usage,
    warnings: Sequence[str] = (),
) -> Fields:
    """The response at its end; `warnings` only where there are any."""
    cut = CUT_REASONS.get(reason)
    ends: Fields = {"usage": usage_fields(usage)}
    if cut is not None:
        ends["incomplete_details"] = {"reason": cut}
    if warnings:
        ends["warnings"] = list(warnings)
    status = "completed" if cut is None else "incomplete"
    return response_fields(envelope, request, status, output, **ends)


def failure_fields(error: DaemonError) -> Fields:
    """`code` is the daemon's own where clients know it, else the API's word for all the rest."""
    known = ("context_length_exceeded", "rate_limit_exceeded")
    code = error.code if error.code in known else "server_error"
    return {"code": code, "message": error.message}


def usage_fields(usage: Usage) -> Fields:
    """Cached tokens are a part of the input, thoughts a part of the output."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.reused, "cache_write_tokens": 0},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": usage.thought},
        "total_tokens": usage.prompt + usage.generated,
    }


def item_id(kind: str, response_id: str, place: int) -> str:
    """`kind`: msg, rs, fc or ctc."""
    return f"{kind}_{response_id.removeprefix(ID_PREFIX)}_{place}"


def response_of(item_id: str) -> str:
    """The id of the response that an item is of."""
    return ID_PREFIX + item_id.partition("_")[2].rpartition("_")[0]


def message_item(
    response_id: str,
    place: int,
    content: Sequence[Fields],
    status: str = "completed",
) -> Fields:
    return {
        "id": item_id("msg", response_id, place),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def text_part(text: str, scores: Iterable[Score] = ()) -> Fields:
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": [score_fields(score) for score in scores],
    }


def reasoning_item(response_id: str, place: int, thought: str, status: str = "completed") -> Fields:
    """The thought stands in the summary, where every client looks for it."""
    return {
        "id": item_id("rs", response_id, place),
        "type": "reasoning",
        "status": status,
        "summary": [{"type": "summary_text", "text": thought}] if thought else [],
        "encrypted_content": sealed(thought) if thought else None,
    }


def call_item(
    response_id: str, place: int, call: CallBlock, spec: ToolSpec | None, status: str = "completed"
) -> Fields:
    """`call.arguments` are "" as long as nothing is known of them."""
    is_free = spec is not None and spec.is_free_text
    item: Fields = {
        "id": item_id("ctc" if is_free else "fc", response_id, place),
        "type": "custom_tool_call" if is_free else "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name if spec is None else own_name(spec),
    }
    if spec is not None and spec.namespace is not None:
        item["namespace"] = spec.namespace
    if is_free:
        item["input"] = input_of(call.arguments)
    else:
        item["arguments"] = call.arguments
    return item


def output_items(completion: Completion, request: ChatRequest) -> list[Fields]:
    """The items of a whole answer. Of one that was cut in a text, that is not complete."""
    response_id = completion.envelope.id
    is_cut_in_text = completion.ended.reason in CUT_REASONS and not completion.has_open_call
    items: list[Fields] = []
    scores = Scores(completion.scores)
    for place, block in enumerate(completion.blocks):
        match block:
            case TextBlock(text):
                part = text_part(text, scores.of_next(text))
                items.append(message_item(response_id, place, [part]))
            case ThoughtBlock(text):
                scores.of_next(text)
                items.append(reasoning_item(response_id, place, text))
            case CallBlock(name=name):
                items.append(call_item(response_id, place, block, request.tool(name)))
    if items and is_cut_in_text and items[-1]["type"] in ("message", "reasoning"):
        items[-1]["status"] = "incomplete"
    return items
