"""The name of the conversation that a request belongs to, as coding agents tell it.

A label and a hint for retention only: token ids alone decide what is reused, so a wrong, missing
or shared name costs nothing but a line in status. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from daemon.chat import ChatRequest

MAX_LENGTH = 200
HEADERS = ("thread-id", "x-session-id", "x-affinity", "x-agent-id", "session_id")
FAMILY_HEADERS = (
    "session-id",
    "x-parent-session-id",
    "x-codex-parent-thread-id",
    "x-claude-code-session-id",
)


def session_key(request: ChatRequest, headers: Mapping[str, str]) -> str | None:
    """What the body says wins, then the headers, then hints that sub-agents share."""
    named = (
        request.session,
        _claude_code(headers),
        *map(headers.get, HEADERS),
        request.session_hint,
    )
    return next((name[:MAX_LENGTH] for name in named if name), None)


def family_key(headers: Mapping[str, str]) -> str | None:
    """What sub-agents have in common with the session that started them."""
    return next((name[:MAX_LENGTH] for name in map(headers.get, FAMILY_HEADERS) if name), None)


def session_in_metadata(metadata: Any) -> str | None:
    """The session that `metadata.user_id` names: in JSON, or at its end after `_session_`.

    A mere user is no session: all that one person does would be one conversation.
    """
    user_id = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user_id, str):
        return None
    try:
        fields = json.loads(user_id)
    except (ValueError, RecursionError):
        return user_id.rpartition("_session_")[2] if "_session_" in user_id else None
    session = fields.get("session_id") if isinstance(fields, dict) else None
    return session if isinstance(session, str) else None


def _claude_code(headers: Mapping[str, str]) -> str | None:
    """A sub-agent has the session's id and one of its own."""
    session = headers.get("x-claude-code-session-id")
    agent = headers.get("x-claude-code-agent-id")
    return f"{session}/{agent}" if session and agent else session
