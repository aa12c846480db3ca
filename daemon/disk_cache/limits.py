"""What the disk cache may take of the disk, and what of it a day's writing.

Plain numbers: who keeps them is `daemon.disk_tier`, and once more before each write the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date

MAX_SHARE_OF_FREE = 5
"""Without a limit that was set, the cache takes a fifth of what it finds free, what it holds
counting as free."""

FLOOR_SHARE_OF_DISK = 10
MOST_FLOOR_BYTES = 20 * 10**9
"""Without a floor that was set, a tenth of the disk stays free, and no more than this."""


PENDING_SHARE_OF_MEMORY = 16
"""What waits for the writer is held in memory, beside all that has a limit there: it takes this
part at most."""


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """`max_bytes` and `floor_bytes` (of the disk that stay free): None for a share of the disk.

    `write_bytes_per_day`: None for no limit. `pending_bytes`: handed over and not yet written, at
    most, while the model works; one file is taken in any case.
    """

    max_bytes: int | None = None
    floor_bytes: int | None = None
    write_bytes_per_day: int | None = None
    max_files: int = 65_536
    pending_bytes: int = 1 << 30

    def within(self, memory_bytes: int | None) -> DiskLimits:
        """The same on a machine that has so much memory for models; None if nobody knows."""
        if memory_bytes is None:
            return self
        most = min(self.pending_bytes, memory_bytes // PENDING_SHARE_OF_MEMORY)
        return replace(self, pending_bytes=most)

    def on(self, free_bytes: int, total_bytes: int, held_bytes: int) -> Bounds:
        """What they come to on a disk of which the cache holds `held_bytes`."""
        share = (free_bytes + held_bytes) // MAX_SHARE_OF_FREE
        floor = min(total_bytes // FLOOR_SHARE_OF_DISK, MOST_FLOOR_BYTES)
        return Bounds(
            share if self.max_bytes is None else self.max_bytes,
            floor if self.floor_bytes is None else self.floor_bytes,
            self.max_files,
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits as numbers: of the cache's size, of the disk that stays free, of the files."""

    max_bytes: int
    floor_bytes: int
    max_files: int

    def hold(self, use: DiskUse, more: int = 0) -> bool:
        """Whether one file of `more` bytes (0: none) may be added to what is used."""
        return (
            use.nbytes + more <= self.max_bytes
            and use.free_bytes - more >= self.floor_bytes
            and use.files + (more > 0) <= self.max_files
        )

    def could_hold(self, use: DiskUse, more: int) -> bool:
        """Whether it may be added if all that the cache holds goes."""
        return self.hold(DiskUse(0, 0, use.free_bytes + use.nbytes), more)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What the cache takes, and what of the disk is free, once all that is asked of the writer is
    done."""

    nbytes: int
    files: int
    free_bytes: int

    def without(self, nbytes: int) -> DiskUse:
        """When one file of so many bytes is gone."""
        return DiskUse(self.nbytes - nbytes, self.files - 1, self.free_bytes + nbytes)


class Allowance:
    """What may be handed over to be written: of a day's bytes, and of those that are pending.

    The second half of either is for what is dear.
    """

    def __init__(self, limits: DiskLimits, today: Callable[[], date]) -> None:
        self._limits = limits
        self._today = today
        self._written = 0
        self._day = today()

    @property
    def written_today(self) -> int:
        """By all runs of this day."""
        return self._written if self._day == self._today() else 0

    def note(self, nbytes: int, written_today: int) -> None:
        """A file of `nbytes` was written, and so much by all runs of the day when it was: that may
        be over by now."""
        is_same_day = self._day == self._today()
        self._written = written_today if is_same_day else nbytes
        self._day = self._today()

    def allows(self, nbytes: int, pending: int, *, is_dear: bool, at_rest: bool) -> bool:
        """Whether so many bytes more may be written, with `pending` on their way.

        `at_rest`: the arrays would stay where they are in any case, so that as many may wait for
        the writer as there are.
        """
        share = 1 if is_dear else 2
        per_day, most = self._limits.write_bytes_per_day, self._limits.pending_bytes // share
        if per_day is not None and self.written_today + pending + nbytes > per_day // share:
            return False
        return at_rest or not pending or pending + nbytes <= most
