"""`POST /v1/responses`: OpenAI's Responses format to a `ChatRequest`, and answers back. Pure.

What is kept of earlier responses is looked up while parsing, so a conversation that goes on from
one is the same request as one that sends all of its items. Instructions are not carried over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from daemon.api import openai_fields as openai
from daemon.api.json_body import Body, RequestBody, parse_body, refuse
from daemon.api.openai_parts import parts_of
from daemon.api.response_items import ItemReader, input_items
from daemon.api.response_object import (
    ID_PREFIX,
    Fields,
    ResponsesRequest,
    ended_fields,
    output_items,
)
from daemon.api.response_store import ResponseStore
from daemon.api.response_stream import ResponseStream
from daemon.api.response_tools import Tools, tool_choice_of, tools_of
from daemon.api.rules import effort_of
from daemon.api.session_key import session_in_metadata
from daemon.chat import (
    ChatRequest,
    Completion,
    Conversation,
    Envelope,
    FieldNames,
    Message,
    SamplingWishes,
)
from daemon.errors import DaemonError
from mlx_backend.messages import NO_EFFORT, Effort

FIELD_NAMES = FieldNames(prompt="input", json_schema="text.format")
MAX_ALTERNATIVES = 20
LOGPROBS = "message.output_text.logprobs"

NO_USER = Message("user")
"""What a model is asked by a request that asks nothing, as one that only warms it up."""


class ReasoningFields(Body):
    effort: str | None = None
    summary: Any = None


class TextFields(Body):
    format: dict[str, Any] | None = None
    verbosity: Any = None

    def json_schema(self) -> Mapping[str, Any] | None:
        """{} is any object, None no JSON at all."""
        path = ("text", "format")
        kind = "text" if self.format is None else self.format.get("type")
        if self.format is None or kind == "text":
            return None
        if kind == "json_object":
            return {}
        if kind != "json_schema":
            raise refuse((*path, "type"), "has to be text, json_object or json_schema.")
        schema = self.format.get("schema")
        if not isinstance(schema, dict):
            raise refuse((*path, "schema"), "has to be a JSON schema.")
        return schema


class ResponsesFields(RequestBody):
    input: Any = None
    model: str | None = None
    instructions: Any = None
    previous_response_id: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: openai.Share | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: openai.Share | None = None
    seed: int | None = None
    presence_penalty: openai.Penalty | None = None
    frequency_penalty: openai.Penalty | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    include: list[str] | None = None
    stop: Any = None
    reasoning: ReasoningFields | None = None
    text: TextFields | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    conversation: Any = None
    prompt: Any = None
    metadata: Any = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def request(self, kept: ResponseStore) -> ResponsesRequest:
        self._refuse_unsupported()
        items = self._items(kept)
        reader = ItemReader(tools_of(self.tools or ()))
        for path, item in items:
            reader.read(item, path)
        tools = reader.tools
        messages = self._instructions() + (reader.messages() or (NO_USER,))
        return ResponsesRequest(
            prompt=Conversation(
                messages, tools.specs, self.chat_template_kwargs or {}, self._effort()
            ),
            model=self.model,
            sampling=self._sampling(),
            stop=openai.stop_strings(self.stop),
            max_tokens=openai.token_limit("max_output_tokens", self.max_output_tokens),
            stream=bool(self.stream),
            session=self.session_id,
            session_hint=self.prompt_cache_key or session_in_metadata(self.metadata),
            tool_choice=tool_choice_of(self.tool_choice, self.parallel_tool_calls, tools),
            json_schema=None if self.text is None else self.text.json_schema(),
            previous=self.previous_response_id,
            is_kept=self.store is not False,
            ignored=(*self.ignored, *tools.ignored, *reader.ignored),
            fields=FIELD_NAMES,
            items=tuple(item for _, item in items),
            told=self._told(tools),
        )

    def _refuse_unsupported(self) -> None:
        if self.background:
            raise refuse(("background",), "can only be false.")
        for name in ("conversation", "prompt"):
            if getattr(self, name) is not None:
                raise refuse((name,), "is not supported; send the conversation in `input`.")

    def _items(self, kept: ResponseStore) -> list[tuple[tuple[str | int, ...], Fields]]:
        """The whole conversation's, those of the previous response in front."""
        previous: list[Fields] = []
        if self.previous_response_id is not None:
            previous = kept.get(self.previous_response_id, "previous_response_id").conversation()
        elif self.input is None:
            raise refuse(("input",), "is required.")
        given = [] if self.input is None else self.input
        new = input_items(given, lambda item_id: kept.item(item_id, "input"))
        return [*((("previous_response_id",), item) for item in previous), *new]

    def _instructions(self) -> tuple[Message, ...]:
        """A text, or items of which each message holds one."""
        given = self.instructions
        if given is None or isinstance(given, str):
            return (Message("system", parts_of(given, ("instructions",))),) if given else ()
        reader = ItemReader(Tools())
        if not isinstance(given, list):
            raise refuse(("instructions",), "has to be a string.")
        for index, item in enumerate(given):
            if not isinstance(item, dict):
                raise refuse(("instructions", index), "has to be an object.")
            reader.read(item, ("instructions", index))
        return reader.messages()

    def _effort(self) -> Effort:
        if self.reasoning is None or self.reasoning.effort is None:
            return NO_EFFORT
        return effort_of(("reasoning", "effort"), self.reasoning.effort)

    def _sampling(self) -> SamplingWishes:
        wants_scores = LOGPROBS in (self.include or ()) or bool(self.top_logprobs)
        return SamplingWishes(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            alternatives=(self.top_logprobs or 0) if wants_scores else None,
        )

    def _told(self, tools: Tools) -> Fields:
        """What the response repeats, with the API's defaults where the request is silent."""
        text, reasoning = self.text or TextFields(), self.reasoning or ReasoningFields()
        told: Fields = {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata if isinstance(self.metadata, dict) else {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "service_tier": "default",
            "store": self.store is not False,
            "temperature": self.temperature,
            "text": {"format": text.format or {"type": "text"}, "verbosity": text.verbosity},
            "tool_choice": "auto" if self.tool_choice is None else self.tool_choice,
            "tools": tools.told,
            "top_logprobs": self.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": "disabled",
        }
        for name, value in told.items():
            _check_numbers(name, value)
        return told


def _check_numbers(name: str, value: Any) -> None:
    """What is repeated has to be JSON, which has no words for some numbers that JSON spells."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise refuse((name,), "holds a number that is not finite.") from None


class OpenAIResponses:
    """Implements `dialect.Dialect`. What it answers it keeps in `kept`, unless asked not to."""

    path = "/v1/responses"
    id_prefix = ID_PREFIX
    call_prefix = "call_"

    def __init__(self, kept: ResponseStore) -> None:
        self._kept = kept

    def parse(self, body: bytes) -> ResponsesRequest:
        return parse_body(ResponsesFields, body).request(self._kept)

    def reply(self, completion: Completion, request: ChatRequest) -> bytes:
        assert isinstance(request, ResponsesRequest)
        envelope, ended = completion.envelope, completion.ended
        items = output_items(completion, request)
        response = ended_fields(
            envelope, request, items, ended.reason, ended.usage, completion.warnings
        )
        return self._keep(request, response)

    def stream(self, envelope: Envelope, request: ChatRequest) -> ResponseStream:
        assert isinstance(request, ResponsesRequest)
        return ResponseStream(envelope, request, lambda response: self._keep(request, response))

    def error(self, error: DaemonError, request_id: str) -> bytes:
        return openai.dump(openai.error_fields(error))

    def _keep(self, request: ResponsesRequest, response: Fields) -> bytes:
        body = openai.dump(response)
        if request.is_kept:
            self._kept.keep(body, request.items, response)
        return body
