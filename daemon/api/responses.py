"""JSON answers, and errors in the words of the API that a client speaks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from daemon.api.openai_fields import dump, error_fields
from daemon.errors import DaemonError, ModelUnavailable

DEFAULT_RETRY_SECONDS = 1


def json_response(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(body, status, headers, "application/json")


def error_response(
    error: DaemonError, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """`body` is the error in a dialect's form, OpenAI's where no dialect is known."""
    shown = dump(error_fields(error)) if body is None else body
    return json_response(shown, error.status, {**(headers or {}), **_what_follows(error)})


def _what_follows(error: DaemonError) -> dict[str, str]:
    """Agents never come back after a 429 that does not say when; and what is left of a body that
    came too slowly is not waited for."""
    match error.status:
        case 429 | 503:
            return {"retry-after": str(error.retry_after or DEFAULT_RETRY_SECONDS)}
        case 408:
            return {"connection": "close"}
        case _:
            return {}


def stopping() -> ModelUnavailable:
    """What is said to a client whose request is cut by the daemon's end."""
    return ModelUnavailable("The daemon is stopping.", retry_after=1)


def unavailable_fields(state: str, error: DaemonError) -> dict[str, Any]:
    """`/health` while nothing can be served."""
    return {"status": state, **error_fields(error)}
