"""What the demo measured. Every count comes from the daemon's replies; seconds are the client's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from daemon.errors import CommandFailed

SMALLEST_TIMED_READ = 100  # tokens; below it a rate says more about the decode than the read


class DemoFailed(CommandFailed):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. Tokens are those of its usage; of a cancelled one, those of the status page.

    `is_alone`: nothing else was running, so its time to first token tells how fast it was read.
    """

    name: str
    prompt: int
    reused: int
    read: int
    generated: int
    first_token_seconds: float | None
    seconds: float
    answer: str = ""
    is_cancelled: bool = False
    is_alone: bool = True

    @property
    def reading_rate(self) -> float | None:
        """Prompt tokens read per second, where this turn can tell."""
        if not self.is_alone or not self.first_token_seconds or self.read < SMALLEST_TIMED_READ:
            return None
        return self.read / self.first_token_seconds


@dataclass(frozen=True, slots=True)
class DemoReport:
    """A whole day. Without reuse each request would have read what it reused as well."""

    model: str
    turns: tuple[Turn, ...]
    seconds: float

    @property
    def reused(self) -> int:
        return sum(turn.reused for turn in self.turns)

    @property
    def read(self) -> int:
        return sum(turn.read for turn in self.turns)

    @property
    def everything(self) -> int:
        """Tokens that a server without a cache would have read up to the same points."""
        return self.reused + self.read

    @property
    def reading_rate(self) -> float | None:
        """The best rate that a turn reached; the estimates below are the lower for it."""
        rates = [rate for turn in self.turns if (rate := turn.reading_rate)]
        return max(rates, default=None)

    def seconds_to_read(self, tokens: int) -> float | None:
        """What reading `tokens` costs at the measured rate; None if none could be measured."""
        return tokens / self.reading_rate if self.reading_rate else None

    def as_json(self) -> dict[str, Any]:
        """The turns and the totals, as `--json` prints them."""
        totals = {
            "reused": self.reused,
            "read": self.read,
            "everything": self.everything,
            "tokens_read_per_second": self.reading_rate,
        }
        return asdict(self) | totals
