"""Items of a response's output while they are written, as events from end to end. Pure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from daemon.api.free_text import FreeText
from daemon.api.openai_fields import score_fields
from daemon.api.response_object import (
    Fields,
    call_item,
    message_item,
    reasoning_item,
    text_part,
)
from daemon.chat import CallBegun, CallBlock, Score, ToolSpec

_dumped = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Frames:
    """Writes events as frames, numbered from 0."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        return self.written(kind, _dumped(fields)[1:-1])

    def written(self, kind: str, fields: str) -> bytes:
        """An event whose fields are JSON already, without the braces around them."""
        number, self._number = self._number, self._number + 1
        begun = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{number},'
        return f"{begun}{fields}}}\n\n".encode()


class OpenItem(ABC):
    """An item between its `output_item.added` and its `output_item.done`.

    `where` is what its own events have in common; it is made JSON once, since most are deltas.
    """

    def __init__(self, frames: Frames, place: int, item: Fields, **where: int) -> None:
        self._frames = frames
        self._place = place
        self._begun = item
        self._where = {"item_id": item["id"], "output_index": place, **where}
        self._where_json = _dumped(self._where)[1:-1]
        self._said: list[str] = []

    def open(self) -> bytes:
        return self._frames.event(
            "response.output_item.added", output_index=self._place, item=self._begun
        )

    def close(self, status: str) -> tuple[bytes, Fields]:
        """The frames that end it, and the whole item."""
        frames, item = self._ended("".join(self._said), status)
        done = "response.output_item.done"
        return frames + self._frames.event(done, output_index=self._place, item=item), item

    @abstractmethod
    def _ended(self, said: str, status: str) -> tuple[bytes, Fields]: ...

    def _own(self, kind: str, **fields: Any) -> bytes:
        return self._frames.event(f"response.{kind}", **self._where, **fields)

    def _delta(self, kind: str, text: str, rest: str = "") -> bytes:
        fields = f'{self._where_json},"delta":{_dumped(text)}{rest}'
        return self._frames.written(f"response.{kind}.delta", fields)


class OpenText(OpenItem):
    """A message of one text."""

    def __init__(self, frames: Frames, response_id: str, place: int) -> None:
        item = message_item(response_id, place, [], "in_progress")
        super().__init__(frames, place, item, content_index=0)
        self._response_id = response_id
        self._scores: list[Score] = []

    def open(self) -> bytes:
        return super().open() + self._own("content_part.added", part=text_part(""))

    def say(self, text: str, scores: Iterable[Score]) -> bytes:
        told = list(scores)
        self._said.append(text)
        self._scores += told
        scored = _dumped([score_fields(score) for score in told])
        return self._delta("output_text", text, f',"logprobs":{scored}')

    def _ended(self, said: str, status: str) -> tuple[bytes, Fields]:
        part = text_part(said, self._scores)
        frames = self._own("output_text.done", text=said, logprobs=part["logprobs"])
        frames += self._own("content_part.done", part=part)
        return frames, message_item(self._response_id, self._place, [part], status)


class OpenThought(OpenItem):
    """A reasoning item, told as a summary of one part: those events are known to all clients."""

    def __init__(self, frames: Frames, response_id: str, place: int) -> None:
        item = reasoning_item(response_id, place, "", "in_progress")
        super().__init__(frames, place, item, summary_index=0)
        self._response_id = response_id

    def open(self) -> bytes:
        part = {"type": "summary_text", "text": ""}
        return super().open() + self._own("reasoning_summary_part.added", part=part)

    def say(self, text: str) -> bytes:
        self._said.append(text)
        return self._delta("reasoning_summary_text", text)

    def _ended(self, said: str, status: str) -> tuple[bytes, Fields]:
        item = reasoning_item(self._response_id, self._place, said, status)
        frames = self._own("reasoning_summary_text.done", text=said)
        frames += self._own("reasoning_summary_part.done", part=item["summary"][0])
        return frames, item


class OpenCall(OpenItem):
    """A call; of a tool of free text the client gets the text alone."""

    def __init__(
        self, frames: Frames, response_id: str, place: int, begun: CallBegun, spec: ToolSpec | None
    ) -> None:
        self._response_id, self._call, self._spec = response_id, begun, spec
        self._free_text = FreeText() if spec is not None and spec.is_free_text else None
        super().__init__(frames, place, self._item(place, "", "in_progress"))
        is_free = self._free_text is not None
        self._kind = "custom_tool_call_input" if is_free else "function_call_arguments"
        self._says = "input" if is_free else "arguments"

    def say(self, fragment: str) -> bytes:
        self._said.append(fragment)
        text = fragment if self._free_text is None else self._free_text.push(fragment)
        return self._delta(self._kind, text) if text else b""

    def _ended(self, said: str, status: str) -> tuple[bytes, Fields]:
        item = self._item(self._place, said, status)
        rest = "" if self._free_text is None else self._free_text.finish()
        frames = self._delta(self._kind, rest) if rest else b""
        return frames + self._own(f"{self._kind}.done", **{self._says: item[self._says]}), item

    def _item(self, place: int, arguments: str, status: str) -> Fields:
        call = CallBlock(self._call.id, self._call.name, arguments)
        return call_item(self._response_id, place, call, self._spec, status)
