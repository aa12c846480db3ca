"""`POST /v1/completions`: a plain prompt, as text or as token ids, continued. Pure."""

from __future__ import annotations

from typing import Any

from daemon.api import openai_fields as openai
from daemon.api.json_body import parse_body, refuse
from daemon.chat import (
    ChatRequest,
    Completion,
    Ended,
    Envelope,
    Event,
    Opening,
    PlainText,
    PromptSource,
    RawTokens,
    TextDelta,
)
from daemon.errors import DaemonError

HARMLESS = {"best_of": (1,), "echo": (False,), "logprobs": (False,), "suffix": ("",)}
MAX_TOKEN_ID = 2**31 - 1


class CompletionFields(openai.CommonFields):
    prompt: Any = None
    best_of: Any = None
    echo: Any = None
    logprobs: Any = None
    suffix: Any = None

    def request(self) -> ChatRequest:
        self.refuse_unsupported(HARMLESS)
        return ChatRequest(
            prompt=prompt_source(self.prompt),
            model=self.model,
            sampling=self.sampling(),
            stop=self.stop_strings(),
            max_tokens=openai.token_limit("max_tokens", self.max_tokens),
            stream=bool(self.stream),
            include_usage=self.wants_usage_chunk(),
            session=self.session_id,
            session_hint=self.session_hint(),
        )


def prompt_source(prompt: Any) -> PromptSource:
    """A text, a list of one text, token ids, or a list of one list of token ids."""
    if isinstance(prompt, str):
        return PlainText(prompt)
    if not isinstance(prompt, list) or not prompt:
        raise refuse(("prompt",), "has to be a text or a list of token ids, not empty.")
    if isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise refuse(("prompt",), "may hold one prompt only: send a request for each.")
        return PlainText(prompt[0]) if isinstance(prompt[0], str) else _tokens(prompt[0], (0,))
    return _tokens(prompt, ())


def _tokens(ids: list[Any], outer: tuple[int, ...]) -> RawTokens:
    if not ids:
        raise refuse(("prompt", *outer), "holds no token.")
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
            raise refuse(("prompt", *outer, index), "is not a token id.")
    return RawTokens(tuple(ids))


class CompletionStream:
    """A stream of `text_completion` objects."""

    def __init__(self, envelope: Envelope, include_usage: bool) -> None:
        self._common = openai.envelope_fields("text_completion", envelope)
        self._include_usage = include_usage

    def start(self, opening: Opening) -> bytes:
        return b""

    def silence(self) -> bytes:
        return self._chunk("")

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta(text):
                return self._chunk(text)
            case Ended():
                return self._end(event)
            case _:
                return b""

    def fail(self, error: DaemonError) -> bytes:
        return openai.frame(openai.error_fields(error))

    def _end(self, ended: Ended) -> bytes:
        frames = self._chunk("", openai.FINISH_REASONS[ended.reason])
        if self._include_usage:
            usage = openai.usage_fields(ended.usage)
            frames += openai.frame({**self._common, "choices": [], "usage": usage})
        return frames + openai.DONE

    def _chunk(self, text: str, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
        return openai.frame({**self._common, "choices": [choice]})


class OpenAICompletions:
    """Implements `dialect.Dialect`."""

    path = "/v1/completions"
    id_prefix = "cmpl-"
    call_prefix = "call_"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_body(CompletionFields, body).request()

    def reply(self, completion: Completion, request: ChatRequest) -> bytes:
        choice = {
            "index": 0,
            "text": completion.text,
            "logprobs": None,
            "finish_reason": openai.FINISH_REASONS[completion.ended.reason],
        }
        return openai.dump(
            {
                **openai.envelope_fields("text_completion", completion.envelope),
                "choices": [choice],
                "usage": openai.usage_fields(completion.ended.usage),
            }
        )

    def stream(self, envelope: Envelope, request: ChatRequest) -> CompletionStream:
        return CompletionStream(envelope, request.include_usage)

    def error(self, error: DaemonError, request_id: str) -> bytes:
        return openai.dump(openai.error_fields(error))
