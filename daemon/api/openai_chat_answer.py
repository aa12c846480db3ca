"""Answers in OpenAI's chat format: a message, or the chunks that add up to it. Pure.

Reasoning is told in `reasoning_content`, as most local servers do. A call of a tool of free text
has its `input` in place of arguments; one of an older function stands in `function_call`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from daemon.api import openai_fields as openai
from daemon.api.free_text import FreeText, input_of
from daemon.api.openai_tools import is_older
from daemon.chat import (
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
    Score,
    Scored,
    TextDelta,
    ThoughtDelta,
    Warned,
)
from daemon.errors import DaemonError

_SAYS = {"function": "arguments", "custom": "input"}
"""What each kind of call says."""


def choice_fields(completion: Completion, request: ChatRequest) -> dict[str, Any]:
    """The only choice of a whole answer."""
    calls = completion.calls
    message: dict[str, Any] = {
        "role": "assistant",
        "content": completion.text or (None if calls else ""),
        "refusal": None,
    }
    if completion.thought:
        message["reasoning_content"] = completion.thought
    if calls:
        message.update(_calls_fields(calls, request))
    has_scores = request.sampling.alternatives is not None
    return {
        "index": 0,
        "message": message,
        "logprobs": scores_fields(completion.scores) if has_scores else None,
        "finish_reason": finish_reason(completion.ended, request, bool(calls)),
    }


def _calls_fields(calls: Iterable[CallBlock], request: ChatRequest) -> dict[str, Any]:
    if is_older(request.tools):
        [called] = calls
        return {"function_call": {"name": called.name, "arguments": called.arguments}}
    return {"tool_calls": [_call_fields(call, request) for call in calls]}


def _call_fields(call: CallBlock, request: ChatRequest) -> dict[str, Any]:
    kind = _kind(call.name, request)
    said = input_of(call.arguments) if kind == "custom" else call.arguments
    return {"id": call.id, "type": kind, kind: {"name": call.name, _SAYS[kind]: said}}


def _kind(name: str, request: ChatRequest) -> str:
    tool = request.tool(name)
    return "custom" if tool is not None and tool.is_free_text else "function"


def finish_reason(ended: Ended, request: ChatRequest, has_calls: bool) -> str:
    """A stop string behind a whole call does not take the call back."""
    if has_calls and ended.reason in (EndReason.CALLS, EndReason.STOP_STRING):
        return "function_call" if is_older(request.tools) else "tool_calls"
    return openai.FINISH_REASONS[ended.reason]


def scores_fields(scores: Iterable[Score]) -> dict[str, Any]:
    return {"content": [openai.score_fields(score) for score in scores], "refusal": None}


class ChatStream:
    """A `chat.completion.chunk` stream. The fields that never change are encoded once.

    Scores wait for the next chunk; there is one at the end in any case.
    """

    def __init__(self, envelope: Envelope, request: ChatRequest) -> None:
        self._request = request
        self._common = openai.envelope_fields("chat.completion.chunk", envelope)
        opening = openai.dump(self._common)[:-1].decode()
        self._before = f'data: {opening},"choices":[{{"index":0,"delta":{{"'
        self._after = '},"finish_reason":null}]}\n\n'
        self._is_older = is_older(request.tools)
        self._has_scores = request.sampling.alternatives is not None
        self._scores: list[Score] = []
        self._warnings: list[str] = []
        self._kinds: dict[int, str] = {}
        self._inputs: dict[int, FreeText] = {}
        self._has_calls = False

    def start(self, opening: Opening) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def silence(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta(text):
                return self._text("content", text)
            case ThoughtDelta(text):
                return self._text("reasoning_content", text)
            case CallBegun():
                return self._call_begun(event)
            case CallDelta(index, fragment):
                return self._call_delta(index, fragment)
            case CallDone(index):
                return self._call_done(index)
            case Scored(scores):
                self._scores += scores
            case Warned(message):
                self._warnings.append(message)
            case Ended():
                return self._end(event)
        return b""

    def fail(self, error: DaemonError) -> bytes:
        return openai.frame(openai.error_fields(error))

    def _text(self, name: str, text: str) -> bytes:
        """The usual chunk, encoded without a detour: there is one for each token."""
        if self._has_scores:
            return self._chunk({name: text})
        said = json.dumps(text, ensure_ascii=False)
        return f'{self._before}{name}":{said}{self._after}'.encode()

    def _call_begun(self, call: CallBegun) -> bytes:
        if self._is_older:
            return self._chunk({"function_call": {"name": call.name, "arguments": ""}})
        kind = self._kinds[call.index] = _kind(call.name, self._request)
        if kind == "custom":
            self._inputs[call.index] = FreeText()
        begun = {"id": call.id, "type": kind, kind: {"name": call.name, _SAYS[kind]: ""}}
        return self._chunk({"tool_calls": [{"index": call.index, **begun}]})

    def _call_delta(self, index: int, fragment: str) -> bytes:
        if self._is_older:
            return self._chunk({"function_call": {"arguments": fragment}})
        text = self._inputs.get(index)
        return self._call_said(index, fragment if text is None else text.push(fragment))

    def _call_done(self, index: int) -> bytes:
        self._has_calls = True
        text = self._inputs.pop(index, None)
        return b"" if text is None else self._call_said(index, text.finish())

    def _call_said(self, index: int, said: str) -> bytes:
        if not said:
            return b""
        kind = self._kinds[index]
        return self._chunk({"tool_calls": [{"index": index, kind: {_SAYS[kind]: said}}]})

    def _end(self, ended: Ended) -> bytes:
        reason = finish_reason(ended, self._request, self._has_calls)
        frames = self._chunk({}, reason, **openai.warning_fields(self._warnings))
        if self._request.include_usage:
            usage = openai.usage_fields(ended.usage)
            frames += openai.frame({**self._common, "choices": [], "usage": usage})
        return frames + openai.DONE

    def _chunk(
        self, delta: dict[str, Any], finish_reason: str | None = None, **beside: Any
    ) -> bytes:
        choice: dict[str, Any] = {"index": 0, "delta": delta}
        if self._scores:
            choice["logprobs"] = scores_fields(self._scores)
            self._scores = []
        choice["finish_reason"] = finish_reason
        return openai.frame({**self._common, "choices": [choice], **beside})
