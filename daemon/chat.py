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
from mlx_backend.messages import NO_EFFORT, CallableTool, Effort

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
    """A function that the model may call. `schema` is JSON schema, its key order as sent.

    `namespace`: the group that a client put it in, to be told with each call. `is_free_text`: its
    client takes one text instead of arguments; the model sees a function of one string, `input`.
    `is_deferred`: it can be called, but is shown only where the conversation refers to it.
    """

    name: str
    description: str | None = None
    schema: Mapping[str, Any] | None = None
    namespace: str | None = None
    is_free_text: bool = False
    is_deferred: bool = False

    @property
    def callable(self) -> CallableTool:
        return CallableTool(self.name, self.schema)

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
    effort: Effort = NO_EFFORT

    @property
    def shown_tools(self) -> tuple[ToolSpec, ...]:
        """Those that the template writes; a deferred one stands where the history refers to it."""
        return tuple(tool for tool in self.tools if not tool.is_deferred)


@dataclass(frozen=True, slots=True)
class PlainText:
    """A prompt without a template."""

    text: str


@dataclass(frozen=True, slots=True)
class RawTokens:
    """A prompt that the client encoded itself; the ids have yet to be checked."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FillIn:
    """A prompt for what stands between two texts."""

    before: str
    after: str


PromptSource: TypeAlias = Conversation | PlainText | RawTokens | FillIn


class CallRule(StrEnum):
    """Whether the answer calls tools."""

    AUTO = "auto"  # the model decides
    NONE = "none"  # it may not, though the tools are shown
    REQUIRED = "required"  # it has to call one of `ToolChoice.names`, of all if there are none


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`may_repeat`: several calls in one answer are welcome."""

    rule: CallRule = CallRule.AUTO
    names: tuple[str, ...] = ()
    may_repeat: bool = True


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
    alternatives: int | None = None  # likeliest tokens to tell beside each log-probability


@dataclass(frozen=True, slots=True)
class FieldNames:
    """What the client's dialect calls what may have to be refused only after parsing."""

    prompt: str = "messages"
    json_schema: str = "response_format"
    tool_choice: str = "tool_choice"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request in no dialect. `max_tokens` None: up to the context's end.

    `model` is None where the client did not name one. `session` is the name that the body gives
    the conversation, and wins; `session_hint` is what it says for other purposes, and comes last.
    `json_schema`: what the answer's text has to be, {} for any JSON object. `previous` is the
    answer that the conversation goes on from, `is_kept` whether a later one may go on from this.
    `ignored` are fields that change nothing here, for a header that helps in debugging.
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
    tool_choice: ToolChoice = ToolChoice()
    json_schema: Mapping[str, Any] | None = None
    previous: str | None = None
    is_kept: bool = False
    ignored: tuple[str, ...] = ()
    fields: FieldNames = FieldNames()

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What may be called, deferred tools included."""
        return self.prompt.tools if isinstance(self.prompt, Conversation) else ()

    def tool(self, name: str) -> ToolSpec | None:
        return next((tool for tool in self.tools if tool.name == name), None)


class EndReason(StrEnum):
    """Why an answer ended well."""

    STOP = "stop"  # the model ended its turn
    STOP_STRING = "stop_string"  # a stop string of the client was reached
    LENGTH = "length"  # max_tokens or the context's end was reached
    CALLS = "calls"  # the model ended its turn with at least one whole call
    REPETITION = "repetition"  # the model had begun to say the same for ever


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More text of the answer, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """More of the model's reasoning, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of a known tool begins. `index` counts calls from 0; `id` is the client's to echo."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the call's arguments: JSON text, all of which is one object."""

    index: int
    json: str


@dataclass(frozen=True, slots=True)
class CallDone:
    """The call is whole. One that never gets here was cut short, and is no call."""

    index: int


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A token's text, as bytes (a part of a character, perhaps), and natural log-probability."""

    text: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Score:
    """The log-probability of a drawn token, with the likeliest ones at its place, best first."""

    drawn: ScoredText
    alternatives: tuple[ScoredText, ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of tokens that came since the last ones, before the text that they make."""

    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class Warned:
    """Something a client's author should know, as a call that could not be read. Not text."""

    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The last event. `stop` is the stop string, where one ended the answer."""

    reason: EndReason
    usage: Usage
    stop: str | None = None


Event: TypeAlias = (
    TextDelta | ThoughtDelta | CallBegun | CallDelta | CallDone | Scored | Warned | Ended
)
"""What an answer consists of. A failure is raised instead, so that `Ended` always means success."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is said of an answer around it. `model` is the id that the client asked for."""

    id: str
    model: str
    created: int


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known of a request as its answer begins: its prompt's tokens, and how many of them
    are reused (0 while it waits for its turn; `Ended` tells)."""

    prompt: int
    reused: int = 0


@dataclass(frozen=True, slots=True)
class TextBlock:
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtBlock:
    text: str


@dataclass(frozen=True, slots=True)
class CallBlock:
    """A whole call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


Block: TypeAlias = TextBlock | ThoughtBlock | CallBlock


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer: its events, collected, in their order.

    `has_open_call`: it was cut in the middle of a call, which is not among the blocks.
    """

    envelope: Envelope
    blocks: tuple[Block, ...]
    ended: Ended
    scores: tuple[Score, ...] = ()
    warnings: tuple[str, ...] = ()
    has_open_call: bool = False

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, TextBlock))

    @property
    def thought(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, ThoughtBlock))

    @property
    def calls(self) -> tuple[CallBlock, ...]:
        return tuple(block for block in self.blocks if isinstance(block, CallBlock))
