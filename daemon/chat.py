"""The words every dialect shares: what a client asked for, and what an answer consists of.

A dialect turns a body into a `ChatRequest` and turns `Event`s into its own wire format; nothing
here knows JSON or HTTP. All values are frozen. Counts are tokens, times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from daemon.generation import Usage

PART_SEPARATOR = "\n"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of a message's content."""

    text: str


Part: TypeAlias = TextPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the history. `arguments` as the client sent them: JSON text or an object."""

    id: str
    name: str
    arguments: str | Mapping[str, Any]

    def for_template(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role`: system, user, assistant or tool."""

    role: str
    parts: tuple[Part, ...] = ()
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        return PART_SEPARATOR.join(part.text for part in self.parts)

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it; what it does not have is left out."""
        optional = {
            "name": self.name,
            "reasoning_content": self.reasoning,
            "tool_calls": [call.for_template() for call in self.tool_calls] or None,
            "tool_call_id": self.tool_call_id,
        }
        present = {key: value for key, value in optional.items() if value is not None}
        return {"role": self.role, "content": self.text, **present}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the model may call. `schema` is JSON schema, its key order as sent."""

    name: str
    description: str | None = None
    schema: Mapping[str, Any] | None = None

    def for_template(self) -> dict[str, Any]:
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.schema is not None:
            function["parameters"] = self.schema
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt that the model's chat template renders. `options` are variables of the template."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlainText:
    """A prompt without a template."""

    text: str


@dataclass(frozen=True, slots=True)
class RawTokens:
    """A prompt that the client encoded itself; the ids have yet to be checked."""

    ids: tuple[int, ...]


PromptSource: TypeAlias = Conversation | PlainText | RawTokens


@dataclass(frozen=True, slots=True)
class SamplingWishes:
    """What the client said of sampling, within the ranges of the API; None where it was silent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request in no dialect. `max_tokens` None: up to the context's end.

    `model` is None where the client did not name one. `session` is the name that the body gives
    the conversation, and wins; `session_hint` is what it says for other purposes, and comes last.
    """

    prompt: PromptSource
    model: str | None = None
    sampling: SamplingWishes = SamplingWishes()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    stream: bool = False
    include_usage: bool = False
    session: str | None = None
    session_hint: str | None = None


class EndReason(StrEnum):
    """Why an answer ended well."""

    STOP = "stop"  # the model ended its turn
    STOP_STRING = "stop_string"  # a stop string of the client was reached
    LENGTH = "length"  # max_tokens or the context's end was reached


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event. `stop` is the stop string, where one ended the answer."""

    reason: EndReason
    usage: Usage
    stop: str | None = None


Event: TypeAlias = TextDelta | Ended
"""What an answer consists of. A failure is raised instead, so that `Ended` always means success."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is said of an answer around it. `model` is the id that the client asked for."""

    id: str
    model: str
    created: int


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer: its events, collected."""

    envelope: Envelope
    text: str
    ended: Ended
