"""The body of Anthropic's messages API to a `ChatRequest`. Pure.

What would change the answer and cannot be done is refused by name; what changes nothing here is
listed in `ChatRequest.ignored`, as are tools that only the vendor's own servers can run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from daemon.api.anthropic_content import MessageFields, conversation_messages, system_message
from daemon.api.json_body import Body, Path, RequestBody, refuse
from daemon.api.openai_fields import MAX_STOP_STRINGS, Share, token_limit
from daemon.api.rules import EFFORT_LEVELS
from daemon.api.session_key import session_in_metadata
from daemon.chat import (
    CallRule,
    ChatRequest,
    Conversation,
    FieldNames,
    SamplingWishes,
    ToolChoice,
    ToolSpec,
)
from mlx_backend.messages import Effort

FIELD_NAMES = FieldNames(prompt="messages", json_schema="output_config.format")
UNSUPPORTED = ("thread", "compaction", "mcp_servers")
"""Fields that, unless empty, ask for another conversation than the one that is sent."""

BUDGET_LEVELS = ((1_024, "minimal"), (4_096, "low"), (10_240, "medium"))
"""What agents mean by a budget of so many tokens at most; more is high."""

RULES = {
    "auto": CallRule.AUTO,
    "any": CallRule.REQUIRED,
    "tool": CallRule.REQUIRED,
    "none": CallRule.NONE,
}
THINKING = {"enabled": True, "adaptive": True, "disabled": False}


class ToolFields(Body):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None

    @property
    def runs_elsewhere(self) -> bool:
        """Known by a vendor's type only; with a schema it is a function like any other."""
        return self.type not in (None, "custom") and self.input_schema is None

    @property
    def is_search(self) -> bool:
        """A vendor's search among the deferred tools, the only way by which they are found."""
        return self.runs_elsewhere and (self.type or "").startswith("tool_search_tool")

    def spec(self, path: Path, *, may_defer: bool) -> ToolSpec:
        if self.name is None:
            raise refuse((*path, "name"), "is required.")
        is_deferred = may_defer and bool(self.defer_loading)
        return ToolSpec(self.name, self.description, self.input_schema, is_deferred=is_deferred)


class ToolChoiceFields(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def choice(self) -> ToolChoice:
        if self.type == "tool" and not self.name:
            raise refuse(("tool_choice", "name"), "is required.")
        names = (self.name,) if self.type == "tool" and self.name else ()
        return ToolChoice(RULES[self.type], names, not self.disable_parallel_tool_use)


class ThinkingFields(Body):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Any = None


class FormatFields(Body):
    type: Literal["json_schema"]
    json_schema: Annotated[dict[str, Any], Field(alias="schema")]


class OutputFields(Body):
    effort: Any = None
    format: FormatFields | None = None

    @property
    def level(self) -> str | None:
        """The effort, if it is one that is known."""
        return next((level for level in EFFORT_LEVELS if level == self.effort), None)


class MessagesFields(RequestBody):
    """`seed`, `session_id` and `chat_template_kwargs` are this daemon's own."""

    messages: list[MessageFields]
    model: str | None = None
    system: Any = None
    tools: list[ToolFields] | None = None
    tool_choice: ToolChoiceFields | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOP_STRINGS)] | None = None
    temperature: Share | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    thinking: ThinkingFields | None = None
    output_config: OutputFields | None = None
    output_format: FormatFields | None = None
    metadata: Any = None
    thread: Any = None
    compaction: Any = None
    mcp_servers: Any = None
    seed: int | None = None
    session_id: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def request(self) -> ChatRequest:
        self._refuse_unsupported()
        return ChatRequest(
            prompt=self._conversation(),
            model=self.model,
            sampling=SamplingWishes(self.temperature, self.top_p, self.top_k, seed=self.seed),
            stop=tuple(stop for stop in self.stop_sequences or () if stop),
            max_tokens=token_limit("max_tokens", self.max_tokens),
            stream=bool(self.stream),
            session=self.session_id,
            session_hint=session_in_metadata(self.metadata),
            tool_choice=ToolChoice() if self.tool_choice is None else self.tool_choice.choice(),
            json_schema=self._json_schema(),
            ignored=(*self.ignored, *self._ignored_within()),
            fields=FIELD_NAMES,
        )

    def refuse_prefill(self) -> None:
        """No template goes on with a message that it has ended; the API's own newer models take
        no such prefill either."""
        if self.messages and self.messages[-1].role == "assistant":
            place = ("messages", len(self.messages) - 1)
            raise refuse(place, "is the assistant's: the conversation has to end with a user's.")

    def _refuse_unsupported(self) -> None:
        for name in UNSUPPORTED:
            if getattr(self, name):
                raise refuse((name,), "is not supported.")

    def _conversation(self) -> Conversation:
        if not self.messages:
            raise refuse(("messages",), "has to hold at least one message.")
        tools = self._tools()
        by_name = {tool.name: tool for tool in tools}
        opening = system_message(self.system)
        messages = [] if opening is None else [opening]
        for index, message in enumerate(self.messages):
            messages += conversation_messages(message, ("messages", index), by_name)
        options = self.chat_template_kwargs or {}
        return Conversation(tuple(messages), tools, options, self._effort())

    def _tools(self) -> tuple[ToolSpec, ...]:
        """Those that can be called; none is deferred to a search that nobody here can do."""
        may_defer = not any(tool.is_search for tool in self.tools or ())
        return tuple(
            tool.spec(("tools", index), may_defer=may_defer)
            for index, tool in enumerate(self.tools or ())
            if not tool.runs_elsewhere
        )

    def _effort(self) -> Effort:
        wanted = None if self.thinking is None else THINKING[self.thinking.type]
        level = self.output_config.level if self.output_config else None
        if level is not None:
            return Effort(wanted, level)
        budget = self.thinking.budget_tokens if self.thinking and wanted else None
        return Effort(wanted, None if budget is None else _budget_level(budget))

    def _json_schema(self) -> dict[str, Any] | None:
        asked = (self.output_config and self.output_config.format) or self.output_format
        return asked.json_schema if asked else None

    def _ignored_within(self) -> Iterator[str]:
        """Those inside of fields that are read."""
        if self.thinking is not None and self.thinking.display is not None:
            yield "thinking.display"
        output = self.output_config
        if output is not None and output.effort is not None and output.level is None:
            yield "output_config.effort"
        for index, tool in enumerate(self.tools or ()):
            if tool.runs_elsewhere:
                yield f"tools[{index}]"


def _budget_level(budget: int) -> str:
    return next((level for most, level in BUDGET_LEVELS if budget <= most), "high")
