"""The content of OpenAI's messages and items: text as it is, other kinds by a placeholder. Pure.

Chat and Responses call the same parts by different names; either takes both.
"""

from __future__ import annotations

from typing import Any

from daemon.api.json_body import Path, refuse
from daemon.api.rules import not_shown
from daemon.chat import Part, TextPart

_TEXT_FIELDS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
_NOT_SHOWN = {
    "image_url": "image",
    "image": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "file": "document",
    "input_file": "document",
}
"""Parts that a model of text cannot read, and the words for them."""


def parts_of(content: Any, path: Path) -> tuple[Part, ...]:
    """A string, a list of parts, or nothing. An empty string is no part."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),) if content else ()
    if not isinstance(content, list):
        raise refuse(path, "has to be a string or a list of parts.")
    return tuple(_part(part, (*path, index)) for index, part in enumerate(content))


def _part(part: Any, path: Path) -> Part:
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, dict):
        raise refuse(path, "has to be an object or a string.")
    kind = part.get("type")
    if not isinstance(kind, str):
        raise refuse(path, "is a part without a type.", "unsupported_content")
    if kind in _NOT_SHOWN:
        return TextPart(not_shown(_NOT_SHOWN[kind]))
    if kind not in _TEXT_FIELDS:
        reason = f"is a part of type {kind[:40]!r}, which is not supported."
        raise refuse(path, reason, "unsupported_content")
    name = _TEXT_FIELDS[kind]
    text = part.get(name)
    if not isinstance(text, str):
        raise refuse((*path, name), "has to be a string.")
    return TextPart(text)
