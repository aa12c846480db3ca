"""What a wire format has to provide. Implementations are pure: ids and time are passed in.

The I/O around them (reading the body, encoding the prompt, watching the client, keeping a stream
alive) is written once, in `endpoint` and `sse`.
"""

from __future__ import annotations

from typing import Protocol

from daemon.chat import ChatRequest, Completion, Envelope, Event, Opening
from daemon.errors import DaemonError


class StreamEncoder(Protocol):
    """One answer as server-sent events: each method returns whole frames, b"" for none."""

    def start(self, opening: Opening) -> bytes:
        """What opens the stream, before anything of the answer is known."""

    def encode(self, event: Event) -> bytes:
        """An event of the answer. After `Ended` the stream is complete."""

    def silence(self) -> bytes:
        """A real event that says nothing: some clients' timers do not count comments."""

    def fail(self, error: DaemonError) -> bytes:
        """The last frames of a stream that is cut; nothing in them may look like a normal end."""


class Dialect(Protocol):
    @property
    def path(self) -> str: ...

    @property
    def id_prefix(self) -> str:
        """How the ids of its answers begin."""

    @property
    def call_prefix(self) -> str:
        """How the ids of its tool calls begin."""

    def parse(self, body: bytes) -> ChatRequest:
        """Raises BadRequest, which names the field."""

    def reply(self, completion: Completion, request: ChatRequest) -> bytes: ...

    def stream(self, envelope: Envelope, request: ChatRequest) -> StreamEncoder: ...

    def error(self, error: DaemonError, request_id: str) -> bytes: ...
