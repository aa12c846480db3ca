"""OpenAI's own client library as a judge of responses: its types parse them strictly."""

from __future__ import annotations

import json
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ENDS = ("response.completed", "response.incomplete", "response.failed")


def response(body: bytes | str) -> Response:
    """A whole reply."""
    return Response.model_validate_json(body)


def events(stream: bytes | str) -> list[dict[str, Any]]:
    """A stream's events, each of its own type and named by it, numbered from 0, with one end."""
    text = stream.decode() if isinstance(stream, bytes) else stream
    told = []
    for frame in text.split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        told.append(event)
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    return told


def ended(stream: bytes | str) -> dict[str, Any]:
    """The response that a stream ends with; asserts that its events add up to it."""
    told = events(stream)
    ends = [event for event in told if event["type"] in ENDS]
    assert ends == told[-1:]
    whole: dict[str, Any] = told[-1]["response"]
    assert told[-1]["type"] == f"response.{whole['status']}"
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    for item in done:
        _check_deltas(item, told)
    return whole


def _check_deltas(item: dict[str, Any], told: list[dict[str, Any]]) -> None:
    """An item's own events come between its two ends, and its deltas make up what it says."""
    own = [event for event in told if _item_id(event) == item["id"]]
    kinds = [event["type"].removeprefix("response.") for event in own]
    assert (kinds[0], kinds[-1]) == ("output_item.added", "output_item.done")
    assert len({event["output_index"] for event in own}) == 1
    deltas = "".join(event["delta"] for event in own if "delta" in event)
    match item["type"]:
        case "message":
            assert deltas == item["content"][0]["text"]
            scores = [each for event in own if "delta" in event for each in event["logprobs"]]
            assert scores == item["content"][0]["logprobs"]
            opened, closed = ["content_part.added"], ["output_text.done", "content_part.done"]
        case "reasoning":
            assert deltas == item["summary"][0]["text"]
            opened = ["reasoning_summary_part.added"]
            closed = ["reasoning_summary_text.done", "reasoning_summary_part.done"]
        case "custom_tool_call":
            assert deltas == item["input"]
            opened, closed = [], ["custom_tool_call_input.done"]
        case _:
            assert deltas == item["arguments"]
            opened, closed = [], ["function_call_arguments.done"]
    middle = [kind for kind in kinds[1:-1] if not kind.endswith(".delta")]
    assert middle == [*opened, *closed]


def _item_id(event: dict[str, Any]) -> Any:
    item = event.get("item")
    return item["id"] if isinstance(item, dict) else event.get("item_id")
