"""Every reply and every event, whole and streamed, is of the client libraries' own types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.clients.observed import ObservedDaemon, observed
from tests.clients.script import Call, Step
from tests.clients.tiny_folder import write_folder

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SCRIPTS = {"begin": [Step("I look.", [Call("look", {"path": "a.txt"})], think="Where is it?")]}
ASKED = [{"role": "user", "content": "[script:begin] Look."}]
FUNCTION = {"name": "look", "parameters": SCHEMA}
OUTSIDE_THE_TYPES = ("ping",)

CASES = {
    "/v1/chat/completions": (
        {"messages": ASKED, "tools": [{"type": "function", "function": FUNCTION}]},
        ChatCompletion,
        ChatCompletionChunk,
    ),
    "/v1/completions": ({"prompt": "Once", "logprobs": 2, "max_tokens": 4}, Completion, Completion),
    "/v1/responses": (
        {"input": ASKED, "tools": [{"type": "function", **FUNCTION}]},
        Response,
        ResponseStreamEvent,
    ),
    "/v1/messages": (
        {
            "messages": ASKED,
            "max_tokens": 500,
            "tools": [{"name": "look", "input_schema": SCHEMA}],
        },
        Message,
        RawMessageStreamEvent,
    ),
}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("wire")
    daemon: ObservedDaemon
    with (
        observed(write_folder(folder / "model"), folder / "daemon", SCRIPTS) as daemon,
        httpx2.Client(base_url=daemon.base_url, timeout=60, trust_env=False) as client,
    ):
        yield client


@pytest.mark.parametrize("path", CASES)
def test_a_whole_reply_is_of_the_librarys_type(path: str, http: httpx2.Client) -> None:
    body, reply, _ = CASES[path]
    answered = http.post(path, json={"model": "default", **body})
    parsed: Any = TypeAdapter(reply).validate_json(answered.content)
    assert parsed.usage is not None
    assert path == "/v1/completions" or "look" in answered.text


@pytest.mark.parametrize("path", CASES)
def test_each_event_is_of_the_librarys_type(path: str, http: httpx2.Client) -> None:
    body, _, event = CASES[path]
    answered = http.post(path, json={"model": "default", "stream": True, **body})
    lines = [line for line in answered.text.splitlines() if line.startswith("data: ")]
    told = [line.removeprefix("data: ") for line in lines if line != "data: [DONE]"]
    events = [each for each in map(json.loads, told) if each.get("type") not in OUTSIDE_THE_TYPES]
    assert len(events) > 3
    if path == "/v1/completions":
        # The type has no null reason, which the API itself sends until the end.
        events = [{**each, "choices": _ended(each["choices"])} for each in events]
    typed: TypeAdapter[Any] = TypeAdapter(event)
    for each in events:
        typed.validate_python(each)


def _ended(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in choices]


def test_models_and_counts_are_of_the_libraries_types(http: httpx2.Client) -> None:
    for model in http.get("/v1/models").json()["data"]:
        Model.model_validate(model)
    Model.model_validate(http.get("/v1/models/default").json())
    body, *_ = CASES["/v1/messages"]
    counted = http.post("/v1/messages/count_tokens", json={"model": "default", **body})
    assert MessageTokensCount.model_validate_json(counted.content).input_tokens > 0
