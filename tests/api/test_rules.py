"""Limits and sampling: what becomes of a request once the model is known."""

import json
from dataclasses import replace
from typing import Any

import pytest

from daemon.api.dialect import Dialect
from daemon.api.openai_chat import OpenAIChat
from daemon.api.openai_completions import OpenAICompletions
from daemon.api.rules import DEFAULT_SAMPLING, answer_limit, sampling_for
from daemon.api.session_key import family_key, session_key
from daemon.chat import ChatRequest, PlainText, SamplingWishes
from daemon.errors import BadRequest, ContextOverflow
from mlx_backend.messages import CacheKind, ModelInfo, Sampling

INFO = ModelInfo(
    name="tiny-1B",
    path="/models/tiny-folder",
    identity="x",
    cache_kind=CacheKind.SLICEABLE,
    cache_classes=("KVCache",),
    vocabulary_size=100,
    context_size=1000,
    stop_ids=frozenset({1}),
    weight_bytes=1,
    span_token_bytes=1,
)


@pytest.mark.parametrize(
    ("asked", "prompt", "limit"), [(None, 990, 10), (800, 600, 400), (5, 600, 5), (1, 999, 1)]
)
def test_an_answer_is_as_long_as_asked_and_fits(asked: int | None, prompt: int, limit: int) -> None:
    assert answer_limit(asked, prompt, 1000, "messages") == limit


@pytest.mark.parametrize("prompt", [1000, 1001])
def test_a_prompt_that_leaves_no_room_overflows_in_the_words_agents_know(prompt: int) -> None:
    with pytest.raises(ContextOverflow) as caught:
        answer_limit(5, prompt, 1000, "messages")
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.message.startswith(
        "This model's maximum context length is 1000 tokens. "
        f"However, your messages resulted in {prompt} tokens"
    )


def test_a_silent_request_gets_the_defaults_and_a_fresh_seed() -> None:
    assert sampling_for(SamplingWishes(), INFO, 42) == replace(DEFAULT_SAMPLING, seed=42)


RECOMMENDED = replace(
    INFO,
    default_sampling=Sampling(
        temperature=0.6, top_p=0.95, top_k=20, min_p=0.05, repetition_penalty=1.05
    ),
)


def test_a_silent_request_gets_what_the_models_makers_recommend() -> None:
    assert RECOMMENDED.default_sampling is not None
    expected = replace(RECOMMENDED.default_sampling, seed=42)
    assert sampling_for(SamplingWishes(), RECOMMENDED, 42) == expected


def test_what_a_request_says_replaces_that_part_of_the_recommendation_only() -> None:
    sampling = sampling_for(SamplingWishes(temperature=0.0, min_p=0.0), RECOMMENDED, 42)
    assert (sampling.temperature, sampling.min_p) == (0.0, 0.0)
    assert (sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (0.95, 20, 1.05)
    assert sampling_for(SamplingWishes(top_k=-1), RECOMMENDED, 42).top_k == 0


def test_wishes_win_over_the_defaults() -> None:
    wishes = SamplingWishes(
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.1,
        seed=3,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.1,
        logit_bias=((99, 5.0),),
    )
    sampling = sampling_for(wishes, INFO, 42)
    for name in SamplingWishes.__slots__:
        assert getattr(sampling, name) == getattr(wishes, name), name


def test_extremes_mean_what_they_say() -> None:
    sampling = sampling_for(SamplingWishes(top_p=0.0, top_k=-1, seed=-1), INFO, 42)
    assert 0 < sampling.top_p < 1e-3  # the likeliest token alone is left
    assert sampling.top_k == 0
    assert 0 <= sampling.seed < 2**63
    assert sampling_for(SamplingWishes(top_k=100), INFO, 42).top_k == 0
    assert sampling_for(SamplingWishes(temperature=1e-279), INFO, 42).temperature == 0
    tiny = sampling_for(SamplingWishes(repetition_penalty=1e-300), INFO, 42)
    assert 0 < tiny.repetition_penalty < 0.1  # what logits can be divided by


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        sampling_for(SamplingWishes(logit_bias=((100, 1.0),)), INFO, 42)
    assert caught.value.field == "logit_bias.100"


@pytest.mark.parametrize(
    ("named", "hint", "headers", "key"),
    [
        (None, None, {}, None),
        ("own", "hint", {"thread-id": "t"}, "own"),
        (None, "hint", {}, "hint"),
        (None, "hint", {"x-agent-id": "a", "x-session-id": "s"}, "s"),
        (None, None, {"x-claude-code-session-id": "s", "thread-id": "t"}, "s"),
        (
            None,
            None,
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
            "s/a",
        ),
        (None, None, {"session_id": "x" * 1000}, "x" * 200),
        (None, None, dict.fromkeys(["x-session-id", "x-affinity", "thread-id"], "v"), "v"),
        (None, None, {"thread-id": "t", "x-session-id": "s"}, "t"),
        (None, None, {"x-affinity": "f", "x-session-id": "s"}, "s"),
        (None, None, {"x-affinity": "f", "x-agent-id": "a"}, "f"),
        (None, None, {"x-agent-id": "a", "session_id": "h"}, "a"),
        (None, "hint", {"session_id": "h"}, "h"),
        ("", "", {"session_id": ""}, None),
    ],
)
def test_the_most_exact_name_of_a_session_wins(
    named: str | None, hint: str | None, headers: dict[str, str], key: str | None
) -> None:
    request = ChatRequest(PlainText("p"), session=named, session_hint=hint)
    assert session_key(request, headers) == key


@pytest.mark.parametrize(
    ("headers", "family"),
    [
        ({}, None),
        ({"session-id": "f", "x-parent-session-id": "p"}, "f"),
        ({"x-parent-session-id": "p", "x-codex-parent-thread-id": "c"}, "p"),
        ({"x-codex-parent-thread-id": "c" * 300}, "c" * 200),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, "s"),
        ({"thread-id": "t"}, None),
    ],
)
def test_sub_agents_have_the_family_that_their_client_names(
    headers: dict[str, str], family: str | None
) -> None:
    assert family_key(headers) == family


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"prompt_cache_key": "key", "metadata": {"user_id": "user_1_session_s"}}, "key"),
        ({"metadata": {"user_id": "user_1_account__session_0f-9"}}, "0f-9"),
        ({"metadata": {"user_id": '{"device_id": "d", "session_id": "0f-9"}'}}, "0f-9"),
        ({"metadata": {"user_id": "somebody"}}, None),
        ({"metadata": {"user_id": '{"session_id": 7}'}}, None),
        ({"metadata": {"user_id": "[" * 100_000}}, None),
        ({"metadata": {"user_id": "7"}}, None),
        ({"metadata": {"user_id": 7}}, None),
        ({"metadata": "anything"}, None),
        ({"metadata": None, "user": "somebody"}, None),
    ],
)
@pytest.mark.parametrize(
    ("dialect", "prompt"),
    [
        (OpenAIChat(), {"messages": [{"role": "user", "content": "hi"}]}),
        (OpenAICompletions(), {"prompt": "hi"}),
    ],
)
def test_a_session_is_found_in_what_is_sent_for_other_purposes(
    dialect: Dialect, prompt: dict[str, Any], fields: dict[str, Any], hint: str | None
) -> None:
    request = dialect.parse(json.dumps({**prompt, **fields}).encode())
    assert session_key(request, {}) == hint
    named = dialect.parse(json.dumps({**prompt, **fields, "session_id": "own"}).encode())
    assert session_key(named, {"thread-id": "t"}) == "own"
