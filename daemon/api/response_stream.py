"""A response as server-sent events. Pure.

Items open and close one after another. A call that is cut short never closes and is not in the
output: a client must not run half a call. A text that is cut closes as incomplete.
"""

from __future__ import annotations

from collections.abc import Callable

from daemon.api.response_object import (
    CUT_REASONS,
    Fields,
    ResponsesRequest,
    ended_fields,
    failure_fields,
    response_fields,
)
from daemon.api.response_open_items import Frames, OpenCall, OpenItem, OpenText, OpenThought
from daemon.api.response_scores import Scores
from daemon.chat import (
    CallBegun,
    CallDelta,
    CallDone,
    Ended,
    Envelope,
    Event,
    Opening,
    Scored,
    TextDelta,
    ThoughtDelta,
    Warned,
)
from daemon.errors import DaemonError

Keep = Callable[[Fields], object]
"""Told of the whole response, once it has ended."""


class ResponseStream:
    """Implements `dialect.StreamEncoder`."""

    def __init__(self, envelope: Envelope, request: ResponsesRequest, keep: Keep) -> None:
        self._envelope, self._request, self._keep = envelope, request, keep
        self._frames = Frames()
        self._place = 0
        self._open: OpenItem | None = None
        self._output: list[Fields] = []
        self._scores = Scores()
        self._warnings: list[str] = []

    def start(self, opening: Opening) -> bytes:
        response = response_fields(self._envelope, self._request)
        return self._frames.event("response.created", response=response) + self.silence()

    def silence(self) -> bytes:
        response = response_fields(self._envelope, self._request, output=self._output)
        return self._frames.event("response.in_progress", response=response)

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta(text):
                return self._say(text)
            case ThoughtDelta(text):
                return self._think(text)
            case CallBegun():
                return self._begin_call(event)
            case CallDelta(_, fragment):
                return self._open.say(fragment) if isinstance(self._open, OpenCall) else b""
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
        return self._frames.event("response.failed", response=response)

    def _say(self, text: str) -> bytes:
        frames = b""
        if not isinstance(self._open, OpenText):
            frames = self._close()
            frames += self._begin(OpenText(self._frames, self._envelope.id, self._place))
        assert isinstance(self._open, OpenText)
        return frames + self._open.say(text, self._scores.of(text))

    def _think(self, text: str) -> bytes:
        frames = b""
        if not isinstance(self._open, OpenThought):
            frames = self._close()
            frames += self._begin(OpenThought(self._frames, self._envelope.id, self._place))
        assert isinstance(self._open, OpenThought)
        return frames + self._open.say(text)

    def _begin_call(self, begun: CallBegun) -> bytes:
        frames = self._close()
        spec = self._request.tool(begun.name)
        call = OpenCall(self._frames, self._envelope.id, self._place, begun, spec)
        return frames + self._begin(call)

    def _begin(self, item: OpenItem) -> bytes:
        self._open = item
        self._place += 1
        return item.open()

    def _close(self, status: str = "completed") -> bytes:
        """What is open is over. A call that was not said to be done never is."""
        item = None if isinstance(self._open, OpenCall) else self._open
        self._open = None
        return self._finish(item, status)

    def _finish(self, open_item: OpenItem | None, status: str) -> bytes:
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
        return frames + self._frames.event(f"response.{response['status']}", response=response)
