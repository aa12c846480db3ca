"""Routes beside the dialects': who is at home, what the model is called, and what there is not."""

from typing import Any

import pytest
from anthropic.types import ModelInfo
from openai.types import Model

from tests.api.admin_desk import desk
from tests.api.test_door import ask
from tests.engine.harness import run


@pytest.mark.parametrize("path", ["/", "/api/hello"])
@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_agents_find_that_somebody_is_at_home(method: str, path: str) -> None:
    assert ask(method, path).status_code == 200


@pytest.mark.parametrize("path", ["/?beta=true", "/health?x", "/v1/models?limit=1000"])
def test_queries_that_nobody_asked_for_change_nothing(path: str) -> None:
    assert ask("GET", path).status_code == ask("GET", path.partition("?")[0]).status_code


@pytest.mark.parametrize(
    "path",
    [
        "/v1/nothing",
        "/api/v1/models",
        "/api/tags",
        "/api/show",
        "/props",
        "/v1/chat/completions/",
        "/v1/embeddings",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_is_not_here_is_told_in_openai_s_form(method: str, path: str) -> None:
    answer = ask(method, path)
    assert answer.status_code == 404
    assert path in answer.json()["error"]["message"]
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/messages/batches", 404),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/v1/messages", 405),
    ],
)
def test_below_anthropic_s_paths_it_is_told_in_anthropic_s_form(
    method: str, path: str, status: int
) -> None:
    answer = ask(method, path)
    assert (answer.status_code, answer.json()["type"]) == (status, "error")
    assert set(answer.json()["error"]) == {"type", "message"}
    assert answer.json()["request_id"] == answer.headers["x-request-id"]


def listed(path: str) -> Any:
    async def scenario() -> Any:
        async with desk() as at:
            return await at.ask("GET", path)

    found: list[Any] = []

    async def keep() -> None:
        found.append(await scenario())

    run(keep())
    return found[0]


def test_the_model_is_listed_in_both_vendors_forms() -> None:
    answer = listed("/v1/models").json()
    [model] = answer["data"]
    assert Model.model_validate(model).id == ModelInfo.model_validate(model).id == "scripted"
    assert model["context_length"] == 200_000
    assert (answer["object"], answer["has_more"]) == ("list", False)
    assert (answer["first_id"], answer["last_id"]) == ("scripted", "scripted")


@pytest.mark.parametrize("name", ["scripted", "claude-haiku-9", "gpt-9-mini", "owner/scripted"])
def test_a_model_is_found_by_every_name_that_it_answers_to(name: str) -> None:
    answer = listed(f"/v1/models/{name}")
    assert (answer.status_code, answer.json()["id"]) == (200, name)


def test_a_model_that_is_not_here_is_not_found_and_the_known_one_is_named() -> None:
    answer = listed("/v1/models/nonsense")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "scripted" in answer.json()["error"]["message"]


def test_status_tells_how_a_silent_request_is_sampled() -> None:
    sampling = listed("/mlxd/status").json()["engine"]["model"]["sampling"]
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (1.0, 1.0, 0)
    assert sampling["is_recommended"] is False
