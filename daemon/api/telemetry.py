"""Vendors' telemetry in system prompts: a line at the top that changes with every request. Pure.

An agent's attribution line carries a checksum that its vendor's servers take out. Rendered into a
prompt it is different each time, and nothing behind it could ever be reused. It is cut where it
opens a block of the conversation's leading system text, and nowhere else: the same words in a
user's message, or later in a text, are what somebody wrote.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from daemon.chat import Conversation, Message, Part, PromptSource

TELEMETRY_LINE = re.compile(
    r"x-anthropic-billing-header:[ \t]*"
    r"(?:[\w.-]+=[^;\r\n]*(?:;[ \t]*|(?=[\r\n]|\Z)))+"
    r"(?:(?:\r?\n)+|\Z)"
)
"""The whole line: a name and nothing but `key=value;` behind it, with the blank lines after it."""


def without_telemetry(source: PromptSource) -> PromptSource:
    """The prompt without a vendor's lines; the same object if it has none."""
    if not isinstance(source, Conversation):
        return source
    leading = list(takewhile(lambda message: message.role == "system", source.messages))
    cleaned = [_cleaned(message) for message in leading]
    if all(new is old for new, old in zip(cleaned, leading, strict=True)):
        return source
    kept = [message for message in cleaned if message is not None]
    return replace(source, messages=(*kept, *source.messages[len(leading) :]))


def _cleaned(message: Message) -> Message | None:
    """The message itself where nothing is cut, None where nothing else is said."""
    parts = tuple(_without_line(message.parts))
    if parts == message.parts:
        return message
    return replace(message, parts=parts) if parts else None


def _without_line(parts: Sequence[Part]) -> list[Part]:
    kept: list[Part] = []
    for part in parts:
        line = TELEMETRY_LINE.match(part.text)
        if line is None:
            kept.append(part)
        elif rest := part.text[line.end() :]:
            kept.append(replace(part, text=rest))
    return kept
