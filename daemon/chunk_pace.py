"""How many tokens are read in one go, so that no chunk holds the device for too long.

Everybody who decodes waits for a chunk, and a system ends work that keeps its GPU for too long. How
long a chunk takes depends on the model, the machine, its heat, and how much was read before; so
what the last chunk took decides about the next one: halved when it took too long, doubled again,
up to what the settings allow, when it was quick.
"""

from __future__ import annotations

MAX_CHUNK_SECONDS = 4.0
MIN_CHUNK_TOKENS = 32
QUICK_SHARE = 0.25
"""A chunk of twice the tokens takes more than twice as long, but not four times."""

REMEMBERED_SHARE = 0.9
"""What earlier chunks still count in the rate when another one was read."""


class ChunkPace:
    """`tokens` is what the next chunk may have, whatever else makes it smaller."""

    def __init__(self, max_tokens: int, max_seconds: float = MAX_CHUNK_SECONDS) -> None:
        self.tokens = max_tokens
        self._max_tokens = max_tokens
        self._max_seconds = max_seconds
        self._read_tokens = 0.0
        self._read_seconds = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """How quickly prompts were read lately; None before the first chunk."""
        return self._read_tokens / self._read_seconds if self._read_seconds > 0 else None

    def took(self, tokens: int, seconds: float) -> None:
        """A chunk of so many tokens took so long."""
        self._read_tokens = self._read_tokens * REMEMBERED_SHARE + tokens
        self._read_seconds = self._read_seconds * REMEMBERED_SHARE + seconds
        if seconds > self._max_seconds:
            least = min(MIN_CHUNK_TOKENS, self._max_tokens)
            self.tokens = max(least, min(tokens, self.tokens) // 2)
        elif tokens >= self.tokens and seconds <= QUICK_SHARE * self._max_seconds:
            self.tokens = min(self._max_tokens, self.tokens * 2)
