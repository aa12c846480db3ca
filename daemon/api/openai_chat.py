"""`POST /v1/chat/completions`: OpenAI's chat format to a `ChatRequest`, and answers back. Pure.

The answer is text only: what a model writes to call a tool arrives as it was written.
"""

from __future__ import annotations

import json
from typing import Any

from daemon.api import openai_fields as openai
from daemon.api.json_body import Body, parse_body, refuse
from daemon.api.openai_messages import MessageFields, ToolFields
from daemon.chat import (
    ChatRequest,
    Completion,
    Conversation,
    Ended,
    Envelope,
    Event,
    Opening,
    TextDelta,
)
from daemon.errors import DaemonError

HARMLESS = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "audio": (),
    "tool_choice": ("auto", "none"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "web_search_options": (),
}


class ResponseFormat(Body):
    type: str


class ChatFields(openai.CommonFields):
    messages: list[MessageFields]
    tools: list[ToolFields] | None = None
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    logprobs: Any = None
    top_logprobs: Any = None
    modalities: Any = None
    audio: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None

    def request(self) -> ChatRequest:
        self.refuse_unsupported(HARMLESS)
        if self.response_format is not None and self.response_format.type != "text":
            raise refuse(("response_format", "type"), 'can only be "text".')
        return ChatRequest(
            prompt=self._conversation(),
            model=self.model,
            sampling=self.sampling(),
            stop=self.stop_strings(),
            max_tokens=self._max_tokens(),
            stream=bool(self.stream),
            include_usage=self.wants_usage_chunk(),
            session=self.session_id,
            session_hint=self.session_hint(),
        )

    def _conversation(self) -> Conversation:
        if not self.messages:
            raise refuse(("messages",), "has to hold at least one message.")
        messages = (each.message(("messages", index)) for index, each in enumerate(self.messages))
        tools = (each.spec(("tools", index)) for index, each in enumerate(self.tools or ()))
        return Conversation(
            tuple(messages),
            tuple(tool for tool in tools if tool is not None),
            self.chat_template_kwargs or {},
        )

    def _max_tokens(self) -> int | None:
        """The newer name wins where both are given; both are checked."""
        older = openai.token_limit("max_tokens", self.max_tokens)
        newer = openai.token_limit("max_completion_tokens", self.max_completion_tokens)
        return older if self.max_completion_tokens is None else newer


class ChatStream:
    """A `chat.completion.chunk` stream. The fields that never change are encoded once."""

    def __init__(self, envelope: Envelope, include_usage: bool) -> None:
        self._common = openai.envelope_fields("chat.completion.chunk", envelope)
        self._include_usage = include_usage
        opening = openai.dump(self._common)[:-1].decode()
        self._before_text = f'data: {opening},"choices":[{{"index":0,"delta":{{"content":'
        self._after_text = '},"finish_reason":null}]}\n\n'

    def start(self, opening: Opening) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def silence(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta(text):
                text_json = json.dumps(text, ensure_ascii=False)
                return f"{self._before_text}{text_json}{self._after_text}".encode()
            case Ended():
                return self._end(event)
            case _:
                return b""

    def fail(self, error: DaemonError) -> bytes:
        return openai.frame(openai.error_fields(error))

    def _end(self, ended: Ended) -> bytes:
        frames = self._chunk({}, openai.FINISH_REASONS[ended.reason])
        if self._include_usage:
            usage = openai.usage_fields(ended.usage)
            frames += openai.frame({**self._common, "choices": [], "usage": usage})
        return frames + openai.DONE

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return openai.frame({**self._common, "choices": [choice]})


class OpenAIChat:
    """Implements `dialect.Dialect`."""

    path = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    call_prefix = "call_"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_body(ChatFields, body).request()

    def reply(self, completion: Completion, request: ChatRequest) -> bytes:
        message = {"role": "assistant", "content": completion.text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": openai.FINISH_REASONS[completion.ended.reason],
        }
        return openai.dump(
            {
                **openai.envelope_fields("chat.completion", completion.envelope),
                "choices": [choice],
                "usage": openai.usage_fields(completion.ended.usage),
            }
        )

    def stream(self, envelope: Envelope, request: ChatRequest) -> ChatStream:
        return ChatStream(envelope, request.include_usage)

    def error(self, error: DaemonError, request_id: str) -> bytes:
        return openai.dump(openai.error_fields(error))
