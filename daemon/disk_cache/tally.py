"""What the disk cache has done in this run, in numbers for status."""

from __future__ import annotations

from dataclasses import dataclass

FADING = 0.8
"""What of the reads before one still counts in the rate at which the disk reads."""


@dataclass(slots=True)
class Tally:
    written_bytes: int = 0
    written_files: int = 0
    skipped_writes: int = 0
    failed_writes: int = 0
    bad_files: int = 0
    hits: int = 0
    restored_tokens: int = 0
    restored_bytes: int = 0
    last_failure: str = ""


class ReadRate:
    """How quickly files were read lately. The rate of many bytes counts for more than of few."""

    def __init__(self) -> None:
        self._bytes = 0.0
        self._seconds = 0.0

    def note(self, nbytes: int, seconds: float) -> None:
        self._bytes = FADING * self._bytes + nbytes
        self._seconds = FADING * self._seconds + seconds

    @property
    def bytes_per_second(self) -> float | None:
        """None before the first read."""
        return self._bytes / self._seconds if self._seconds > 0 else None
