"""A request body to a pydantic model, or a BadRequest that names the field.

Pydantic's own parser bounds nesting and rejects what is not Unicode, so that no body can crash
the process or smuggle a lone surrogate into a prompt. Messages speak of JSON, never of Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from daemon.errors import BadRequest

Model = TypeVar("Model", bound=BaseModel)
Path = tuple[str | int, ...]


class Body(BaseModel):
    """Base of what is read from JSON: exact types, finite numbers, unknown fields ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore", frozen=True)


class RequestBody(Body):
    """Base of a whole request: it knows which of its fields nobody reads."""

    model_config = ConfigDict(extra="allow")

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of fields that were sent and that no model here has."""
        return tuple(self.model_extra or ())


def parse_body(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[0]
        raise _refusal(details, body) from None


def field_name(path: Iterable[str | int]) -> str:
    """`("messages", 2, "content")` as `messages[2].content`."""
    name = ""
    for step in path:
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            name += f".{step}" if name else step
    return name


def refuse(path: Iterable[str | int], reason: str, code: str | None = None) -> BadRequest:
    """`reason` continues a sentence that begins with the field: "has to be …"."""
    name = field_name(path)
    return BadRequest(f"`{name or 'body'}` {reason}", field=name or None, code=code)


def text_field(fields: Mapping[str, Any], name: str, path: Path, default: str | None = None) -> str:
    """A field of an object at `path` that is a string; null is its absence."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise refuse((*path, name), "has to be a string." if name in fields else "is required.")
    return value


def _refusal(details: Mapping[str, Any], body: bytes) -> BadRequest:
    if details["type"] == "json_invalid":
        return _malformed(details, body)
    reason = details["msg"].replace("Input should be", "has to be").replace("Field required", "")
    path = details["loc"]
    if not path:
        return BadRequest("The body has to be a JSON object.", code="invalid_json")
    if details["type"] == "missing":
        return refuse(path, "is required.")
    return refuse(path, f"{reason}.")


def _malformed(details: Mapping[str, Any], body: bytes) -> BadRequest:
    path = _lone_surrogate(body)
    if path is not None:
        return refuse(path, "holds half of a surrogate pair, which is not text.", "invalid_unicode")
    reason = details.get("ctx", {}).get("error", "it cannot be parsed")
    return BadRequest(f"The body is not valid JSON: {reason}.", code="invalid_json")


def _lone_surrogate(body: bytes) -> Path | None:
    r"""Where a body that was refused holds a `\ud83d` without its other half."""
    if b"\\u" not in body:
        return None
    try:
        pending: list[tuple[Path, Any]] = [((), json.loads(body))]
    except (ValueError, RecursionError):
        return None
    while pending:
        path, value = pending.pop()
        if isinstance(value, str):
            if not _is_unicode(value):
                return path
        elif isinstance(value, list):
            pending += [((*path, index), item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            bad_key = next((key for key in value if not _is_unicode(key)), None)
            if bad_key is not None:
                return path
            pending += [((*path, key), item) for key, item in value.items()]
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
