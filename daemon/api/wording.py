"""Errors in the words of the API that a path belongs to. Pure.

For what goes wrong where no dialect is asked, as on a route that does not exist: clients show what
they understand, and take the rest for a broken server.
"""

from __future__ import annotations

from daemon.api import anthropic_messages, openai_fields
from daemon.errors import DaemonError

ANTHROPIC_PATH = "/v1/messages"


def error_body(error: DaemonError, path: str, request_id: str) -> bytes:
    """In Anthropic's form below its paths, in OpenAI's everywhere else."""
    if path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/"):
        return openai_fields.dump(anthropic_messages.error_fields(error, request_id))
    return openai_fields.dump(openai_fields.error_fields(error))
