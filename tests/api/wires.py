"""One conversation in every dialect: how it is asked, and what its answer says in no dialect.

So that what all of them share is tested once, for all of them, whole and streamed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@dataclass
class Said:
    """`calls` are (id, name, arguments); `end` is stop, stop_string, length or calls."""

    text: str = ""
    thought: str = ""
    calls: list[tuple[str, str, Any]] = field(default_factory=list)
    end: str = ""
    prompt: int = 0
    cached: int = 0
    generated: int = 0


class Wire:
    """A dialect from its client's side."""

    name: str
    path: str
    has_tools = True
    json_field: str
    prompt_field: str
    terminal: str  # what ends a stream that ended well, once
    more: Mapping[str, Any] = {}

    def body(self, content: Any = "hi", **fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": content}], **self.more, **fields}

    def tools(self, *names: str) -> dict[str, Any]:
        raise NotImplementedError

    def choice(self, choice: str, *, parallel: bool = True) -> dict[str, Any]:
        """`choice`: auto, none, required, or a tool's name."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        raise NotImplementedError

    def limit(self, tokens: int) -> dict[str, Any]:
        return {"max_tokens": tokens}

    def stop(self, *stops: str) -> dict[str, Any]:
        return {"stop": list(stops)}

    def said(self, answer: httpx2.Response, *, stream: bool) -> Said:
        assert answer.status_code == 200, answer.text
        if not stream:
            return self.whole(answer.json())
        events = streamed(answer.text)
        assert answer.text.count(self.terminal) == 1
        assert answer.text.rstrip().endswith("[DONE]") or self.terminal in answer.text
        return self.added_up(events)

    def whole(self, reply: dict[str, Any]) -> Said:
        raise NotImplementedError

    def added_up(self, events: Sequence[dict[str, Any]]) -> Said:
        raise NotImplementedError


def streamed(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


ENDS = {"tool_calls": "calls", "stop": "stop", "length": "length"}


def _usage(said: Said, usage: Mapping[str, Any]) -> None:
    said.prompt, said.generated = usage["prompt_tokens"], usage["completion_tokens"]
    said.cached = usage["prompt_tokens_details"]["cached_tokens"]


class Chat(Wire):
    name, path = "chat", "/v1/chat/completions"
    json_field, prompt_field, terminal = "response_format", "messages", "data: [DONE]"
    more: Mapping[str, Any] = {"stream_options": {"include_usage": True}}

    def tools(self, *names: str) -> dict[str, Any]:
        return {"tools": [{"type": "function", "function": {"name": each}} for each in names]}

    def choice(self, choice: str, *, parallel: bool = True) -> dict[str, Any]:
        named = {"type": "function", "function": {"name": choice}}
        words = ("auto", "none", "required")
        chosen = choice if choice in words else named
        return {"tool_choice": chosen, "parallel_tool_calls": parallel}

    def schema(self) -> dict[str, Any]:
        format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
        return {"response_format": format_}

    def whole(self, reply: dict[str, Any]) -> Said:
        [choice] = reply["choices"]
        message = choice["message"]
        said = Said(message["content"] or "", message.get("reasoning_content", ""))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            said.calls.append((call["id"], function["name"], json.loads(function["arguments"])))
        said.end = ENDS[choice["finish_reason"]]
        _usage(said, reply["usage"])
        return said

    def added_up(self, events: Sequence[dict[str, Any]]) -> Said:
        said, calls = Said(), list[list[str]]()
        for choice in (choice for event in events for choice in event["choices"]):
            delta = choice["delta"]
            said.text += delta.get("content") or ""
            said.thought += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append([call["id"], call["function"]["name"], ""])
                calls[call["index"]][2] += call["function"].get("arguments", "")
        last = [choice for event in events for choice in event["choices"]][-1]
        said.end = ENDS[last["finish_reason"]]
        if said.end == "calls":  # of one that was cut, fragments were told
            said.calls = [(name, tool, json.loads(json_)) for name, tool, json_ in calls]
        _usage(said, events[-1]["usage"])
        return said


class Completions(Wire):
    name, path = "completions", "/v1/completions"
    has_tools = False
    json_field, prompt_field, terminal = "", "prompt", "data: [DONE]"
    more: Mapping[str, Any] = {"stream_options": {"include_usage": True}}

    def body(self, content: Any = "hi", **fields: Any) -> dict[str, Any]:
        return {"prompt": content, **self.more, **fields}

    def whole(self, reply: dict[str, Any]) -> Said:
        [choice] = reply["choices"]
        said = Said(choice["text"], end=ENDS[choice["finish_reason"]])
        _usage(said, reply["usage"])
        return said

    def added_up(self, events: Sequence[dict[str, Any]]) -> Said:
        choices = [choice for event in events for choice in event["choices"]]
        said = Said("".join(choice["text"] for choice in choices))
        said.end = ENDS[choices[-1]["finish_reason"]]
        _usage(said, events[-1]["usage"])
        return said


class Messages(Wire):
    name, path = "messages", "/v1/messages"
    json_field, prompt_field, terminal = "output_config.format", "messages", "event: message_stop"
    more: Mapping[str, Any] = {"max_tokens": 4_000}
    ends: Mapping[str, str] = {
        "end_turn": "stop",
        "stop_sequence": "stop_string",
        "max_tokens": "length",
        "tool_use": "calls",
    }

    def tools(self, *names: str) -> dict[str, Any]:
        return {"tools": [{"name": each, "input_schema": {"type": "object"}} for each in names]}

    def choice(self, choice: str, *, parallel: bool = True) -> dict[str, Any]:
        words = {"auto": "auto", "none": "none", "required": "any"}
        chosen = {"type": words[choice]} if choice in words else {"type": "tool", "name": choice}
        if choice != "none":
            chosen["disable_parallel_tool_use"] = not parallel
        return {"tool_choice": chosen}

    def schema(self) -> dict[str, Any]:
        return {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}

    def stop(self, *stops: str) -> dict[str, Any]:
        return {"stop_sequences": list(stops)}

    def whole(self, reply: dict[str, Any]) -> Said:
        said = Said()
        for block in reply["content"]:
            match block["type"]:
                case "text":
                    said.text += block["text"]
                case "thinking":
                    said.thought += block["thinking"]
                case "tool_use":
                    said.calls.append((block["id"], block["name"], block["input"]))
        said.end = self.ends[reply["stop_reason"]]
        self._usage(said, reply["usage"])
        return said

    def added_up(self, events: Sequence[dict[str, Any]]) -> Said:
        said, inputs = Said(), dict[int, str]()
        for event in events:
            block, delta = event.get("content_block", {}), event.get("delta", {})
            if block.get("type") == "tool_use":
                said.calls.append((block["id"], block["name"], event["index"]))
                inputs[event["index"]] = ""
            said.text += delta.get("text", "")
            said.thought += delta.get("thinking", "")
            if "partial_json" in delta:
                inputs[event["index"]] += delta["partial_json"]
            if "stop_reason" in delta:
                said.end = self.ends[delta["stop_reason"]]
                self._usage(said, event["usage"])
        if said.end == "calls":
            said.calls = [(i, n, json.loads(inputs[at] or "{}")) for i, n, at in said.calls]
        else:
            said.calls = []
        return said

    @staticmethod
    def _usage(said: Said, usage: Mapping[str, Any]) -> None:
        said.cached, said.generated = usage["cache_read_input_tokens"], usage["output_tokens"]
        said.prompt = usage["input_tokens"] + said.cached + usage["cache_creation_input_tokens"]


class Responses(Wire):
    name, path = "responses", "/v1/responses"
    json_field, prompt_field = "text.format", "input"
    terminal = "event: response.completed"

    def body(self, content: Any = "hi", **fields: Any) -> dict[str, Any]:
        return {"input": [{"role": "user", "content": content}], **fields}

    def tools(self, *names: str) -> dict[str, Any]:
        return {"tools": [{"type": "function", "name": each} for each in names]}

    def choice(self, choice: str, *, parallel: bool = True) -> dict[str, Any]:
        named = {"type": "function", "name": choice}
        words = ("auto", "none", "required")
        chosen = choice if choice in words else named
        return {"tool_choice": chosen, "parallel_tool_calls": parallel}

    def schema(self) -> dict[str, Any]:
        return {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}

    def limit(self, tokens: int) -> dict[str, Any]:
        return {"max_output_tokens": tokens}

    def said(self, answer: httpx2.Response, *, stream: bool) -> Said:
        assert answer.status_code == 200, answer.text
        if not stream:
            return self.whole(answer.json())
        events = streamed(answer.text)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] in ("response.completed", "response.incomplete")
        whole = self.whole(events[-1]["response"])
        assert whole.text == "".join(
            event["delta"] for event in events if event["type"] == "response.output_text.delta"
        )
        return whole

    def whole(self, reply: dict[str, Any]) -> Said:
        said = Said()
        for item in reply["output"]:
            match item["type"]:
                case "message":
                    said.text += "".join(part["text"] for part in item["content"])
                case "reasoning":
                    parts = item.get("content") or item["summary"]
                    said.thought += "".join(part["text"] for part in parts)
                case "function_call":
                    arguments = json.loads(item["arguments"])
                    said.calls.append((item["call_id"], item["name"], arguments))
        if reply["status"] == "incomplete":
            said.end = "length"
        else:
            assert reply["status"] == "completed"
            said.end = "calls" if said.calls else "stop"
        usage = reply["usage"]
        said.prompt, said.generated = usage["input_tokens"], usage["output_tokens"]
        said.cached = usage["input_tokens_details"]["cached_tokens"]
        return said


CHAT, COMPLETIONS, MESSAGES, RESPONSES = Chat(), Completions(), Messages(), Responses()
WIRES: tuple[Wire, ...] = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
CHATS = tuple(wire for wire in WIRES if wire.has_tools)

every_wire = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
every_chat = pytest.mark.parametrize("wire", CHATS, ids=lambda wire: wire.name)
whole_and_streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
