"""`POST /v1/chat/completions`: OpenAI's chat format to a `ChatRequest`, and answers back. Pure.

Beside OpenAI's own fields it knows those of other servers that agents send: `reasoning`,
`chat_template_kwargs`. What answers look like is in `openai_chat_answer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from daemon.api import openai_fields as openai
from daemon.api.json_body import Body, parse_body, refuse
from daemon.api.openai_chat_answer import ChatStream, choice_fields
from daemon.api.openai_messages import MessageFields
from daemon.api.openai_tools import (
    FunctionFields,
    ToolFields,
    is_older,
    tool_choice,
    tool_specs,
)
from daemon.api.rules import effort_of
from daemon.chat import (
    ChatRequest,
    Completion,
    Conversation,
    Envelope,
    FieldNames,
    ToolChoice,
    ToolSpec,
)
from daemon.errors import DaemonError
from mlx_backend.messages import Effort

HARMLESS = {"modalities": (["text"],), "audio": (), "web_search_options": ()}
MAX_ALTERNATIVES = 20


class ResponseFormat(Body):
    """Beside its `schema` a `json_schema` changes nothing: every schema is kept to."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None

    def schema_wanted(self) -> Mapping[str, Any] | None:
        """What the answer's JSON has to be; None for text."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            return {}
        if self.json_schema is None:
            raise refuse(("response_format", "json_schema"), "is required.")
        schema = self.json_schema.get("schema") or {}
        if not isinstance(schema, dict):
            raise refuse(("response_format", "json_schema", "schema"), "has to be an object.")
        return schema


class ReasoningFields(Body):
    effort: str | None = None
    enabled: bool | None = None


class ThinkingFields(Body):
    type: str | None = None


class ChatFields(openai.CommonFields):
    messages: list[MessageFields]
    tools: list[ToolFields] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionFields] | None = None
    function_call: Any = None
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningFields | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingFields | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None

    def request(self) -> ChatRequest:
        self.refuse_unsupported(HARMLESS)
        wanted = self.response_format.schema_wanted() if self.response_format else None
        conversation = self._conversation()
        tools = conversation.tools
        return ChatRequest(
            prompt=conversation,
            model=self.model,
            sampling=self.sampling(self._alternatives()),
            stop=openai.stop_strings(self.stop),
            max_tokens=self._max_tokens(),
            stream=bool(self.stream),
            include_usage=self.wants_usage_chunk(),
            session=self.session_id,
            session_hint=self.session_hint(),
            tool_choice=self._choice(tools),
            json_schema=wanted,
            ignored=self.ignored,
            fields=FieldNames(tool_choice="function_call") if is_older(tools) else FieldNames(),
        )

    def _conversation(self) -> Conversation:
        if not self.messages:
            raise refuse(("messages",), "has to hold at least one message.")
        messages = (each.message(("messages", index)) for index, each in enumerate(self.messages))
        tools = tool_specs(self.tools or (), self.functions or ())
        options = self.chat_template_kwargs or {}
        return Conversation(tuple(messages), tools, options, self._effort())

    def _choice(self, tools: Sequence[ToolSpec]) -> ToolChoice:
        if is_older(tools):
            return tool_choice(self.function_call, may_repeat=False, path=("function_call",))
        return tool_choice(self.tool_choice, may_repeat=self.parallel_tool_calls is not False)

    def _effort(self) -> Effort:
        """What the different fields for it say; the first that was sent wins."""
        if self.reasoning_effort is not None:
            return effort_of(("reasoning_effort",), self.reasoning_effort, self.enable_thinking)
        if self.reasoning is not None:
            reasoning = self.reasoning
            return effort_of(("reasoning", "effort"), reasoning.effort, reasoning.enabled)
        if self.enable_thinking is None and self.thinking is not None:
            return Effort(None if self.thinking.type is None else self.thinking.type != "disabled")
        return Effort(self.enable_thinking)

    def _alternatives(self) -> int | None:
        if not self.logprobs:
            if self.top_logprobs:
                raise refuse(("top_logprobs",), "is for requests with `logprobs: true`.")
            return None
        if not 0 <= (self.top_logprobs or 0) <= MAX_ALTERNATIVES:
            raise refuse(("top_logprobs",), f"has to be between 0 and {MAX_ALTERNATIVES}.")
        return self.top_logprobs or 0

    def _max_tokens(self) -> int | None:
        """The newer name wins where both are given; both are checked."""
        older = openai.token_limit("max_tokens", self.max_tokens)
        newer = openai.token_limit("max_completion_tokens", self.max_completion_tokens)
        return older if self.max_completion_tokens is None else newer


class OpenAIChat:
    """Implements `dialect.Dialect`."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    call_prefix = "call_"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_body(ChatFields, body).request()

    def reply(self, completion: Completion, request: ChatRequest) -> bytes:
        return openai.dump(
            {
                **openai.envelope_fields("chat.completion", completion.envelope),
                "choices": [choice_fields(completion, request)],
                "usage": openai.usage_fields(completion.ended.usage),
                **openai.warning_fields(completion.warnings),
            }
        )

    def stream(self, envelope: Envelope, request: ChatRequest) -> ChatStream:
        return ChatStream(envelope, request)

    def error(self, error: DaemonError, request_id: str) -> bytes:
        return openai.dump(openai.error_fields(error))
