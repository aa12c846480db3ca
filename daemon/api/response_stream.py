"""A response as server-sent events. Pure.

Items open and close one after another. A call that is cut short never closes and is not in the
output: a client must not run half a call. A text that is cut closes as incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from daemon.api.free_text import FreeText
from daemon.api.response_object import (
    CUT_REASONS,
    Fields,
    ResponsesRequest,
    call_item,
    ended_fields,
    failure_fields,
    message_item,
    reasoning_item,
    response_fields,
    score_fields,
    text_part,
)
from daemon.api.response_scores import Scores
from daemon.chat import (
    CallBegun,
    CallBlock,
    CallDelta,
    CallDone,
    Ended,
    Envelope,
    Event,
    Opening,
    Score,
    Scored,
    TextDelta,
    ThoughtDelta,
    ToolSpec,
    Warned,
)
from daemon.errors import DaemonError

Emit = Callable[..., bytes]
"""One event from its type and its fields, numbered."""

Keep = Callable[[Fields], object]
"""Told of the whole response, once it has ended."""


class _OpenItem(Protocol):
    def open(self) -> bytes: ...

    def close(self, status: str) -> tuple[bytes, Fields]: ...


class _OpenText:
    """A message of one text."""

    def __init__(self, emit: Emit, response_id: str, place: int) -> None:
        self._emit, self._response_id, self._place = emit, response_id, place
        self._texts: list[str] = []
        self._scores: list[Score] = []
        item_id = message_item(response_id, place, [])["id"]
        self._where = {"item_id": item_id, "output_index": place, "content_index": 0}

    def open(self) -> bytes:
        item = message_item(self._response_id, self._place, [], "in_progress")
        added = self._emit("response.output_item.added", output_index=self._place, item=item)
        return added + self._emit("response.content_part.added", **self._where, part=text_part(""))

    def say(self, text: str, scores: list[Score]) -> bytes:
        self._texts.append(text)
        self._scores += scores
        told = score_fields(scores)
        return self._emit("response.output_text.delta", **self._where, delta=text, logprobs=told)

    def close(self, status: str) -> tuple[bytes, Fields]:
        text = "".join(self._texts)
        part = text_part(text, self._scores)
        item = message_item(self._response_id, self._place, [part], status)
        frames = self._emit(
            "response.output_text.done", **self._where, text=text, logprobs=part["logprobs"]
        )
        frames += self._emit("response.content_part.done", **self._where, part=part)
        done = self._emit("response.output_item.done", output_index=self._place, item=item)
        return frames + done, item


class _OpenThought:
    """A reasoning item, told as a summary of one part: those events are known to all clients."""

    def __init__(self, emit: Emit, response_id: str, place: int) -> None:
        self._emit, self._response_id, self._place = emit, response_id, place
        self._texts: list[str] = []
        item_id = reasoning_item(response_id, place, "")["id"]
        self._where = {"item_id": item_id, "output_index": place, "summary_index": 0}

    def open(self) -> bytes:
        item = reasoning_item(self._response_id, self._place, "", "in_progress")
        part = {"type": "summary_text", "text": ""}
        added = self._emit("response.output_item.added", output_index=self._place, item=item)
        return added + self._emit("response.reasoning_summary_part.added", **self._where, part=part)

    def say(self, text: str) -> bytes:
        self._texts.append(text)
        return self._emit("response.reasoning_summary_text.delta", **self._where, delta=text)

    def close(self, status: str) -> tuple[bytes, Fields]:
        text = "".join(self._texts)
        item = reasoning_item(self._response_id, self._place, text, status)
        frames = self._emit("response.reasoning_summary_text.done", **self._where, text=text)
        part = {"type": "summary_text", "text": text}
        frames += self._emit("response.reasoning_summary_part.done", **self._where, part=part)
        done = self._emit("response.output_item.done", output_index=self._place, item=item)
        return frames + done, item


class _OpenCall:
    """A call; of a tool of free text the client gets the text alone."""

    def __init__(
        self, emit: Emit, response_id: str, place: int, begun: CallBegun, spec: ToolSpec | None
    ) -> None:
        self._emit, self._response_id, self._place = emit, response_id, place
        self._begun, self._spec = begun, spec
        self._fragments: list[str] = []
        self._free_text = FreeText() if spec is not None and spec.is_free_text else None
        kind, self._name = "function_call_arguments", "arguments"
        if self._free_text is not None:
            kind, self._name = "custom_tool_call_input", "input"
        self._delta, self._done = f"response.{kind}.delta", f"response.{kind}.done"
        self._where = {"item_id": self._item("")["id"], "output_index": place}

    def _item(self, arguments: str, status: str = "in_progress") -> Fields:
        call = CallBlock(self._begun.id, self._begun.name, arguments)
        return call_item(self._response_id, self._place, call, self._spec, status)

    def open(self) -> bytes:
        item = self._item("")
        return self._emit("response.output_item.added", output_index=self._place, item=item)

    def say(self, fragment: str) -> bytes:
        self._fragments.append(fragment)
        said = fragment if self._free_text is None else self._free_text.push(fragment)
        return self._emit(self._delta, **self._where, delta=said) if said else b""

    def close(self, status: str) -> tuple[bytes, Fields]:
        item = self._item("".join(self._fragments), status)
        rest = "" if self._free_text is None else self._free_text.finish()
        frames = self._emit(self._delta, **self._where, delta=rest) if rest else b""
        frames += self._emit(self._done, **self._where, **{self._name: item[self._name]})
        done = self._emit("response.output_item.done", output_index=self._place, item=item)
        return frames + done, item


class ResponseStream:
    """Implements `dialect.StreamEncoder`."""

    def __init__(self, envelope: Envelope, request: ResponsesRequest, keep: Keep) -> None:
        self._envelope, self._request, self._keep = envelope, request, keep
        self._number = 0
        self._place = 0
        self._open: _OpenItem | None = None
        self._output: list[Fields] = []
        self._scores = Scores()
        self._warnings: list[str] = []

    def start(self, opening: Opening) -> bytes:
        response = response_fields(self._envelope, self._request)
        return self._emit("response.created", response=response) + self.silence()

    def silence(self) -> bytes:
        response = response_fields(self._envelope, self._request, output=self._output)
        return self._emit("response.in_progress", response=response)

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta(text):
                return self._say(text)
            case ThoughtDelta(text):
                return self._think(text)
            case CallBegun():
                return self._begin_call(event)
            case CallDelta(_, fragment):
                return self._open.say(fragment) if isinstance(self._open, _OpenCall) else b""
            case CallDone():
                return self._finish(self._open, "completed")
            case Scored(scores):
                self._scores.add(scores)
            case Warned(message):
                self._warnings.append(message)
            case Ended():
                return self._end(event)
        return b""

    def fail(self, error: DaemonError) -> bytes:
        ends = {"error": failure_fields(error)}
        response = response_fields(self._envelope, self._request, "failed", self._output, **ends)
        return self._emit("response.failed", response=response)

    def _say(self, text: str) -> bytes:
        frames = b""
        if not isinstance(self._open, _OpenText):
            frames = self._close()
            frames += self._begin(_OpenText(self._emit, self._envelope.id, self._place))
        assert isinstance(self._open, _OpenText)
        return frames + self._open.say(text, self._scores.of(text))

    def _think(self, text: str) -> bytes:
        frames = b""
        if not isinstance(self._open, _OpenThought):
            frames = self._close()
            frames += self._begin(_OpenThought(self._emit, self._envelope.id, self._place))
        assert isinstance(self._open, _OpenThought)
        self._scores.of(text)
        return frames + self._open.say(text)

    def _begin_call(self, begun: CallBegun) -> bytes:
        frames = self._close()
        spec = self._request.tool(begun.name)
        call = _OpenCall(self._emit, self._envelope.id, self._place, begun, spec)
        return frames + self._begin(call)

    def _begin(self, item: _OpenItem) -> bytes:
        self._open = item
        self._place += 1
        return item.open()

    def _close(self, status: str = "completed") -> bytes:
        """What is open is over. A call that was not said to be done never is."""
        item = None if isinstance(self._open, _OpenCall) else self._open
        self._open = None
        return self._finish(item, status)

    def _finish(self, open_item: _OpenItem | None, status: str) -> bytes:
        if open_item is None:
            return b""
        frames, item = open_item.close(status)
        self._output.append(item)
        self._open = None
        return frames

    def _end(self, ended: Ended) -> bytes:
        is_cut = ended.reason in CUT_REASONS
        frames = self._close("incomplete" if is_cut else "completed")
        response = ended_fields(
            self._envelope,
            self._request,
            self._output,
            ended.reason,
            ended.usage,
            self._warnings,
        )
        self._keep(response)
        return frames + self._emit(f"response.{response['status']}", response=response)

    def _emit(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        data = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        return f"event: {kind}\ndata: {data}\n\n".encode()
