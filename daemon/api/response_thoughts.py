"""What a reasoning item says, and the form in which a client carries it back. Pure.

A client that keeps no responses with us returns `encrypted_content` as it got it, so the thought
travels in there, encoded rather than encrypted: it is the client's own machine. What another
server sealed cannot be read, and is passed over.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from daemon.api.json_body import Path, refuse

_PREFIX = "mlxd.1."
"""Names this form; one that is changed gets another number."""


def sealed(thought: str) -> str:
    return _PREFIX + base64.urlsafe_b64encode(thought.encode()).decode()


def unsealed(content: Any) -> str | None:
    """The thought inside; None for what was not sealed here."""
    if not isinstance(content, str) or not content.startswith(_PREFIX):
        return None
    try:
        decoded = base64.b64decode(content.removeprefix(_PREFIX), altchars=b"-_", validate=True)
        return decoded.decode()
    except (binascii.Error, ValueError):
        return None


def thought_of(item: Mapping[str, Any], path: Path) -> str:
    """The whole thought where it is known, else the reasoning's text, else its summary."""
    thought = unsealed(item.get("encrypted_content"))
    if thought is not None:
        return thought
    return _text(item, "content", path) or _text(item, "summary", path)


def _text(item: Mapping[str, Any], name: str, path: Path) -> str:
    parts = item.get(name)
    if parts is None or isinstance(parts, str):
        return parts or ""
    if not isinstance(parts, list):
        raise refuse((*path, name), "has to be a list of parts.")
    texts: list[str] = []
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise refuse((*path, name, index, "text"), "has to be a string.")
        texts.append(text)
    return "\n\n".join(texts)
