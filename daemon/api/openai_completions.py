"""`POST /v1/completions`: a plain prompt, as text or as token ids, continued; or, with a `suffix`,
what stands between the two. Pure."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from daemon.api import openai_fields as openai
from daemon.api.json_body import parse_body, refuse
from daemon.chat import (
    ChatRequest,
    Completion,
    Ended,
    Envelope,
    Event,
    FieldNames,
    FillIn,
    Opening,
    PlainText,
    PromptSource,
    RawTokens,
    Score,
    Scored,
    ScoredText,
    TextDelta,
    Warned,
)
from daemon.errors import DaemonError

HARMLESS = {"best_of": (1,), "echo": (False,)}
MAX_ALTERNATIVES = 5
MAX_TOKEN_ID = 2**31 - 1
FIELDS = FieldNames(prompt="prompt")


class CompletionFields(openai.CommonFields):
    prompt: Any = None
    best_of: Any = None
    echo: Any = None
    logprobs: Any = None
    suffix: str | None = None

    def request(self) -> ChatRequest:
        self.refuse_unsupported(HARMLESS)
        return ChatRequest(
            prompt=self._source(),
            model=self.model,
            sampling=self.sampling(self._alternatives()),
            stop=openai.stop_strings(self.stop),
            max_tokens=openai.token_limit("max_tokens", self.max_tokens),
            stream=bool(self.stream),
            include_usage=self.wants_usage_chunk(),
            session=self.session_id,
            session_hint=self.session_hint(),
            ignored=self.ignored,
            fields=FIELDS,
        )

    def _source(self) -> PromptSource:
        source = prompt_source(self.prompt)
        if not self.suffix:
            return source
        if not isinstance(source, PlainText):
            raise refuse(("suffix",), "is for a prompt of text, not of token ids.")
        return FillIn(source.text, self.suffix)

    def _alternatives(self) -> int | None:
        """`false` is an old word for null; 0 asks for the drawn tokens' own."""
        if self.logprobs is None or self.logprobs is False:
            return None
        if type(self.logprobs) is not int or not 0 <= self.logprobs <= MAX_ALTERNATIVES:
            raise refuse(("logprobs",), f"has to be between 0 and {MAX_ALTERNATIVES}.")
        return self.logprobs


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


class Scores:
    """Scores in the older shape, as they come: parallel lists, and where each token's text begins
    in the whole text of the answer."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def fields(self, scores: Sequence[Score]) -> dict[str, Any]:
        return {
            "tokens": [_text(score.drawn) for score in scores],
            "token_logprobs": [openai.finite(score.drawn.logprob) for score in scores],
            "top_logprobs": [
                {_text(each): openai.finite(each.logprob) for each in score.alternatives}
                for score in scores
            ],
            "text_offset": [self._pass(score.drawn) for score in scores],
        }

    def _pass(self, drawn: ScoredText) -> int:
        before = self._offset
        self._offset += len(self._decoder.decode(drawn.text))
        return before


def _text(scored: ScoredText) -> str:
    return scored.text.decode(errors="replace")


class CompletionStream:
    """A stream of `text_completion` objects. Scores wait for the next one."""

    def __init__(self, envelope: Envelope, request: ChatRequest) -> None:
        self._common = openai.envelope_fields("text_completion", envelope)
        self._include_usage = request.include_usage
        self._scores = Scores()
        self._pending: list[Score] = []
        self._warnings: list[str] = []

    def start(self, opening: Opening) -> bytes:
        return b""

    def silence(self) -> bytes:
        return self._chunk("")

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta(text):
                return self._chunk(text)
            case Scored(scores):
                self._pending += scores
            case Warned(message):
                self._warnings.append(message)
            case Ended():
                return self._end(event)
        return b""

    def fail(self, error: DaemonError) -> bytes:
        return openai.frame(openai.error_fields(error))

    def _end(self, ended: Ended) -> bytes:
        reason = openai.FINISH_REASONS[ended.reason]
        frames = self._chunk("", reason, **openai.warning_fields(self._warnings))
        if self._include_usage:
            usage = openai.usage_fields(ended.usage)
            frames += openai.frame({**self._common, "choices": [], "usage": usage})
        return frames + openai.DONE

    def _chunk(self, text: str, finish_reason: str | None = None, **beside: Any) -> bytes:
        scores = self._scores.fields(self._pending) if self._pending else None
        self._pending = []
        choice = {"index": 0, "text": text, "logprobs": scores, "finish_reason": finish_reason}
        return openai.frame({**self._common, "choices": [choice], **beside})


class OpenAICompletions:
    """Implements `dialect.Dialect`."""

    path = "/v1/completions"
    id_prefix = "cmpl-"
    call_prefix = "call_"

    def parse(self, body: bytes) -> ChatRequest:
        return parse_body(CompletionFields, body).request()

    def reply(self, completion: Completion, request: ChatRequest) -> bytes:
        has_scores = request.sampling.alternatives is not None
        choice = {
            "index": 0,
            "text": completion.text,
            "logprobs": Scores().fields(completion.scores) if has_scores else None,
            "finish_reason": openai.FINISH_REASONS[completion.ended.reason],
        }
        return openai.dump(
            {
                **openai.envelope_fields("text_completion", completion.envelope),
                "choices": [choice],
                "usage": openai.usage_fields(completion.ended.usage),
                **openai.warning_fields(completion.warnings),
            }
        )

    def stream(self, envelope: Envelope, request: ChatRequest) -> CompletionStream:
        return CompletionStream(envelope, request)

    def error(self, error: DaemonError, request_id: str) -> bytes:
        return openai.dump(openai.error_fields(error))
