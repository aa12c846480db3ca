"""The name of the conversation that a request belongs to, as coding agents tell it.

A label and a hint for retention only: token ids alone decide what is reused, so a wrong, missing
or shared name costs nothing but a line in status. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from daemon.chat import ChatRequest

MAX_LENGTH = 200
HEADERS = ("thread-id", "x-session-id", "x-affinity", "x-agent-id", "session_id")


def session_key(request: ChatRequest, headers: Mapping[str, str]) -> str | None:
    """What the body says wins, then the headers, then hints that sub-agents share."""
    named = (
        request.session,
        _claude_code(headers),
        *map(headers.get, HEADERS),
        request.session_hint,
    )
    return next((name[:MAX_LENGTH] for name in named if name), None)


def _claude_code(headers: Mapping[str, str]) -> str | None:
    """A sub-agent has the session's id and one of its own."""
    session = headers.get("x-claude-code-session-id")
    agent = headers.get("x-claude-code-agent-id")
    return f"{session}/{agent}" if session and agent else session
