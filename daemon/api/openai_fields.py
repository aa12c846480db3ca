"""What both of OpenAI's completion formats share: sampling, limits, errors, usage, frames.

Fields that would change the answer but are not supported are refused by name; fields that change
nothing here (`user`, `store`, `service_tier`, …) are ignored, which a header tells. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from daemon.api.json_body import Body, RequestBody, refuse
from daemon.api.session_key import session_in_metadata
from daemon.chat import EndReason, Envelope, SamplingWishes, Score, ScoredText
from daemon.errors import DaemonError
from daemon.generation import Usage

MAX_STOP_STRINGS = 32
LEAST_LOGPROB = -9999.0
FOREIGN_CONSTRAINTS = (
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "structured_outputs",
)
"""What other servers call their constraints: an answer that does not keep to one is wrong."""

DONE = b"data: [DONE]\n\n"
FINISH_REASONS = {
    EndReason.STOP: "stop",
    EndReason.STOP_STRING: "stop",
    EndReason.LENGTH: "length",
    EndReason.CALLS: "tool_calls",
    EndReason.REPETITION: "length",
}

Share = Annotated[float, Field(ge=0, le=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class StreamOptions(Body):
    include_usage: bool | None = None


class CommonFields(RequestBody):
    """Fields with the same meaning in a chat and in a plain completion."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Share | None = None
    seed: int | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: dict[str, Bias] | None = None
    stop: Any = None
    n: int | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None
    metadata: Any = None

    def sampling(self, alternatives: int | None = None) -> SamplingWishes:
        return SamplingWishes(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple(_bias(key, bias) for key, bias in (self.logit_bias or {}).items()),
            alternatives=alternatives,
        )

    def session_hint(self) -> str | None:
        """What is said for other purposes, but tells conversations apart."""
        return self.prompt_cache_key or session_in_metadata(self.metadata)

    def wants_usage_chunk(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def refuse_unsupported(self, allowed: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse fields that would change the answer, unless they say what is done anyway."""
        for name, harmless in {"n": (1,), **allowed}.items():
            value = getattr(self, name)
            same = [item for item in harmless if type(item) is type(value) and item == value]
            if value is not None and not same:
                only = " or ".join(json.dumps(item) for item in harmless if item != [])
                raise refuse((name,), f"can only be {only}." if only else "is not supported.")
        for name in FOREIGN_CONSTRAINTS:
            if (self.model_extra or {}).get(name):
                raise refuse((name,), "is not supported; chats have `response_format`.")


def stop_strings(stop: Any) -> tuple[str, ...]:
    """A string, a list of them or null; empty strings stop nothing."""
    given = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(given, list):
        raise refuse(("stop",), "has to be a string or a list of strings.")
    for index, item in enumerate(given):
        if not isinstance(item, str):
            raise refuse(("stop", index), "has to be a string.")
    if len(given) > MAX_STOP_STRINGS:
        raise refuse(("stop",), f"may hold {MAX_STOP_STRINGS} strings at most.")
    return tuple(item for item in given if item)


def token_limit(name: str, value: int | None) -> int | None:
    """`max_tokens` and its like: −1 means the same as its absence."""
    if value is None or value == -1:
        return None
    if value < 1:
        raise refuse((name,), "has to be 1 or more; leave it out to go on to the context's end.")
    return value


def _bias(key: str, bias: float) -> tuple[int, float]:
    if not (key.isascii() and key.isdigit() and len(key) <= 9):
        raise refuse(("logit_bias", key), "is not a token id.")
    return int(key), bias


def usage_fields(usage: Usage) -> dict[str, Any]:
    """`cached_tokens` is a part of `prompt_tokens`."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.reused},
        "completion_tokens_details": {"reasoning_tokens": usage.thought},
    }


def score_fields(score: Score) -> dict[str, Any]:
    """A drawn token and the likeliest ones at its place, as chat and responses tell them."""
    alternatives = [_scored_fields(each) for each in score.alternatives]
    return {**_scored_fields(score.drawn), "top_logprobs": alternatives}


def _scored_fields(scored: ScoredText) -> dict[str, Any]:
    """Of a part of a character the bytes alone say what it is."""
    return {
        "token": scored.text.decode(errors="replace"),
        "logprob": finite(scored.logprob),
        "bytes": list(scored.text),
    }


def finite(logprob: float) -> float:
    """JSON has no word for minus infinity; OpenAI's is this."""
    return logprob if logprob > LEAST_LOGPROB else LEAST_LOGPROB


def warning_fields(warnings: Sequence[str]) -> dict[str, Any]:
    """What a client's author should know; nothing at all where there is nothing."""
    return {"warnings": list(warnings)} if warnings else {}


def envelope_fields(kind: str, envelope: Envelope) -> dict[str, Any]:
    return {
        "id": envelope.id,
        "object": kind,
        "created": envelope.created,
        "model": envelope.model,
    }


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def frame(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(value) + b"\n\n"


def error_fields(error: DaemonError) -> dict[str, Any]:
    return {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.field,
            "code": error.code,
        }
    }
