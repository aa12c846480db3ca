"""How an agent's conversation begins, which is most of what it sends for a long time."""

from __future__ import annotations

from daemon.bench.texts import Author
from daemon.bench.traffic import Conversation


def opened(
    author: Author, label: str = "agent", system: int = 500, tools: int = 1500
) -> Conversation:
    """A conversation with nothing but its head: system text and six tools."""
    definitions = author.tools(label, 6, tools)
    return Conversation(definitions).system(author.prose(f"{label} instructions", system))
