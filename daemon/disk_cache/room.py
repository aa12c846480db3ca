"""The room that the disk cache has: what of it is taken, what may be added, what goes for it.

Belongs to the engine's thread; has the writer delete what goes. Once all that the writer was asked
is done, the cache is within its bounds: what a file needs is deleted before it is written, and
counts as free only then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.holdings import Held, Holdings
from daemon.disk_cache.jobs import FREE_UNKNOWN, Delete, JobQueue
from daemon.disk_cache.limits import Allowance, Bounds, DiskLimits, DiskUse

PAUSE_SECONDS = 60.0
"""How long nothing is written after several failures; how often a disk that is too full is asked
whether it still is."""

FAILURES_MOST = 3
HEADER_BYTES_MOST = 2048
ARRAY_HEADER_BYTES_MOST = 160


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """What is being written. Its arrays are kept here until then, to end on the thread that they
    belong to."""

    content: Content
    nbytes: int


class Room:
    """`bounds` are None until the folder has been looked through; nothing is taken before that,
    nor where it `is_closed`: nothing can be kept there."""

    def __init__(
        self,
        limits: DiskLimits,
        holdings: Holdings,
        writer: JobQueue,
        clock: Callable[[], float],
        today: Callable[[], date],
    ) -> None:
        self.bounds: Bounds | None = None
        self.free_bytes = 0
        self.is_closed = False
        self.pending_bytes = 0
        self.evicted_files = 0
        self.allowance = Allowance(limits, today)
        self._limits = limits
        self._holdings = holdings
        self._writer = writer
        self._clock = clock
        self._failures = 0
        self._paused_until = self._look_again_at = clock()
        self._pending: dict[StoredFile, Pending] = {}
        self._deleting: deque[tuple[Held, ...]] = deque()
        self._deleting_bytes = 0

    def open(self, free_bytes: int, total_bytes: int) -> None:
        """The folder has been looked through; the disk is so large (0: the folder cannot be used)
        and so free."""
        self.free_bytes = free_bytes
        self.is_closed = total_bytes == 0
        self.bounds = self._limits.on(free_bytes, total_bytes, self._holdings.nbytes)

    def allows(self, nbytes: int, *, is_dear: bool, at_rest: bool) -> bool:
        """Whether a file of so many bytes may be written now, for all that can be deleted."""
        if self.bounds is None or self.is_closed or self._clock() < self._paused_until:
            return False
        pending = self.pending_bytes
        if not self.allowance.allows(nbytes, pending, is_dear=is_dear, at_rest=at_rest):
            return False
        if self.bounds.could_hold(self.use(), nbytes):
            return True
        self._look_again()
        return False

    def _look_again(self) -> None:
        """Ask how much of the disk is free: it may be more by the time of the next question."""
        if self._clock() >= self._look_again_at:
            self._look_again_at = self._clock() + PAUSE_SECONDS
            self._deleting.append(())
            self._writer.put(Delete(()))

    def keep(
        self, more: int = 0, spared: StoredFile | None = None, since: int | None = None
    ) -> bool:
        """Delete what is used least until a file of `more` bytes fits (0: none), but not `spared`
        nor what was used after it, nor what was used `since` a mark; whether it fits then."""
        assert self.bounds is not None
        if self.is_closed:
            return False
        use, removed = self.use(), list[Held]()
        while not self.bounds.hold(use, more) and (oldest := self._holdings.oldest(since)):
            if spared and (oldest.identity, oldest.name) == (spared.identity, spared.name):
                break
            removed += self._holdings.remove(oldest.identity, oldest.name)
            use = use.without(oldest.nbytes)
        self.evicted_files += len(removed)
        self.delete(removed)
        return self.bounds.hold(use, more)

    def use(self) -> DiskUse:
        """What is taken once all that the writer was asked is done."""
        return DiskUse(
            self._holdings.nbytes + self.pending_bytes,
            self._holdings.file_count,
            self.free_bytes - self.pending_bytes + self._deleting_bytes,
        )

    def expect(self, file: StoredFile, content: Content, nbytes: int) -> None:
        """A file is on its way to the disk."""
        self._pending[file] = Pending(content, nbytes)
        self.pending_bytes += nbytes

    def written(self, file: StoredFile, free_bytes: int) -> None:
        """It is on the disk."""
        self._failures = 0
        self._settle(file, free_bytes)

    def failed(self, file: StoredFile, free_bytes: int) -> None:
        """It is not."""
        self._settle(file, free_bytes)
        self._failures += 1
        if self._failures >= FAILURES_MOST:
            self._paused_until = self._clock() + PAUSE_SECONDS

    def _settle(self, file: StoredFile, free_bytes: int) -> None:
        self.pending_bytes -= self._pending.pop(file).nbytes
        self._note_free(free_bytes)

    def abandon(self) -> None:
        """Nothing of what is pending will be written."""
        self._pending.clear()
        self.pending_bytes = 0

    def delete(self, files: Iterable[Held]) -> None:
        """Have files deleted that are out of the holdings already."""
        if job := tuple(files):
            self._deleting.append(job)
            self._deleting_bytes += sum(file.nbytes for file in job)
            self._writer.put(Delete(tuple((file.identity, file.name) for file in job)))

    def deleted(self, free_bytes: int) -> None:
        """The writer has done what it was asked to delete first."""
        self._deleting_bytes -= sum(file.nbytes for file in self._deleting.popleft())
        self._note_free(free_bytes)

    def _note_free(self, free_bytes: int) -> None:
        if free_bytes != FREE_UNKNOWN:  # which is no reason to delete everything
            self.free_bytes = free_bytes

    def names_going(self, identity: str) -> Iterator[str]:
        """Files of a model that the writer is still to delete."""
        for job in self._deleting:
            yield from (file.name for file in job if file.identity == identity)


def bytes_at_most(file: StoredFile, content: Content) -> int:
    """What a file may take, before anybody has written it."""
    described = HEADER_BYTES_MOST + 2 * len(content.described)
    table = ARRAY_HEADER_BYTES_MOST * len(content.arrays)
    return content.nbytes + file.tokens.nbytes + described + table
