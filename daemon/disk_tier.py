"""The disk cache as the engine's thread knows it: what is there, what may be, what is on its way.

One for all models. It decides what is written and what makes room; the work is done by two disk
threads, which take jobs and send results. Nothing here waits for a disk.

Nothing is written of a model before all that is on disk of it is known. What is kept, and what
goes for it, is `disk_cache.room`'s, from what `disk_cache.holdings` knows.

The writer does what it is asked in its order. So what is deleted here while it is still to be
written is written, and deleted then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.holdings import Holdings
from daemon.disk_cache.index import DiskIndex
from daemon.disk_cache.jobs import (
    Checked,
    Deleted,
    JobQueue,
    ReadDone,
    ReadFailed,
    Result,
    Scan,
    Scanned,
    Sweep,
    Swept,
    Touch,
    Write,
    WriteFailed,
    Written,
)
from daemon.disk_cache.limits import DiskLimits
from daemon.disk_cache.overview import models
from daemon.disk_cache.reads import Heard, Reads
from daemon.disk_cache.room import Room, bytes_at_most
from daemon.disk_cache.tally import Tally
from daemon.disk_status import DiskContents, DiskStatus


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """Where what was read is kept, how much of it, and when it is written.

    `idle_seconds`: without a request, until a model's states are written. `save_seconds`: what
    writing may take at the end of the daemon.
    """

    folder: Path
    limits: DiskLimits = field(default_factory=DiskLimits)
    idle_seconds: float = 30.0
    save_seconds: float = 10.0


class DiskTier:
    """See the module. `clock` is monotonic; `wall_clock` tells days, and how old files are."""

    def __init__(
        self,
        options: DiskOptions,
        writer: JobQueue,
        reader: JobQueue,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.options = options
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._wall_clock = wall_clock
        self._holdings = Holdings()
        self._room = Room(
            options.limits,
            self._holdings,
            writer,
            clock,
            lambda: date.fromtimestamp(wall_clock()),
        )
        self._reads = Reads(reader)
        self._used_at: dict[str, float] = {}
        self._is_void = False
        self._tally = Tally()

    def start(self) -> None:
        """Have the folder looked through, once the threads run."""
        self._writer.put(Sweep())

    def index(self, identity: str) -> DiskIndex:
        """One model's files. The first time they are asked for, they are read in. The index stays
        the same for as long as the daemon runs."""
        if identity not in self._holdings.indexes:
            self._holdings.open(identity, self._room.names_going(identity))
            self._reader.put(Scan(identity))
        return self._holdings.indexes[identity]

    def is_ready(self, identity: str) -> bool:
        """Whether all that is on disk of a model is in its index, and more may come to it."""
        return self._room.bounds is not None and self._holdings.is_filled(identity)

    def mark(self) -> int:
        """A number for now, for `save`."""
        return self._holdings.mark()

    def save(
        self,
        file: StoredFile,
        content: Content,
        *,
        is_dear: bool,
        at_rest: bool = False,
        since: int | None = None,
    ) -> bool:
        """Have a file written, as far as the limits allow; False if they do not.

        `is_dear`: it was used again, or is the end of a conversation: under pressure nothing else
        is written. `at_rest`: nothing else goes on, so that any number of files may wait for the
        writer. `since` a mark: what was used from then on does not go for it. What is in its index
        already is not written again (True).
        """
        index = self._holdings.indexes.get(file.identity)
        if index is None or not self.is_ready(file.identity):
            return False
        if file.name in index:
            return True
        nbytes = bytes_at_most(file, content)
        if not self.may_save(nbytes, is_dear=is_dear, at_rest=at_rest):
            return False
        if not self._make_room(index, file, nbytes, since):
            self._tally.skipped_writes += 1
            return False
        if not index.add(file, is_written=False):
            return False
        self._write(file, content, nbytes)
        return True

    def may_save(self, nbytes: int, *, is_dear: bool, at_rest: bool = False) -> bool:
        """Whether `save` would take so many bytes now, more or less: asked before anything is
        exported, which tells how many they are. What is refused counts as skipped."""
        is_allowed = self._room.allows(nbytes, is_dear=is_dear, at_rest=at_rest)
        self._tally.skipped_writes += not is_allowed
        return is_allowed

    def _make_room(
        self, index: DiskIndex, file: StoredFile, nbytes: int, since: int | None
    ) -> bool:
        """Have deleted what the file needs, but nothing that it stands on; whether it fits."""
        below = index.block(file.parent)
        if below is not None:
            index.touch((below,))
        elif file.parent:
            return False  # it went, or was not taken either
        return self._room.keep(nbytes, below, since)

    def _write(self, file: StoredFile, content: Content, nbytes: int) -> None:
        assert self._room.bounds is not None
        self._room.expect(file, content, nbytes)
        self._used_at[file.identity] = self._clock()
        self._writer.put(Write(file, content, self._room.bounds.floor_bytes))

    @property
    def pending_bytes(self) -> int:
        """Handed over and not yet written."""
        return self._room.pending_bytes

    def read(self, file: StoredFile, heard: Heard) -> None:
        """Have a file read; `heard` is called on this thread with what came of it."""
        self.touch(file.identity, (file,))
        self._reads.read(file, heard)

    def give_back(self, buffer: bytearray) -> None:
        """Nobody looks into what was read there any more: the next read may use its memory."""
        self._reads.give_back(buffer)

    @property
    def read_bytes_per_second(self) -> float | None:
        """How quickly files were read lately; None before the first."""
        return self._reads.rate.bytes_per_second

    def note_restored(self, tokens: int, nbytes: int) -> None:
        """A request got so much from disk."""
        self._tally.hits += 1
        self._tally.restored_tokens += tokens
        self._tally.restored_bytes += nbytes

    def touch(self, identity: str, files: tuple[StoredFile, ...]) -> None:
        """Files were used just now. On disk that is noted later: see `note_uses`."""
        self._holdings.indexes[identity].touch(files)
        self._used_at[identity] = self._clock()

    def put_last(self, file: StoredFile) -> None:
        """All others go before a file and what it stands on, of which nothing is noted on disk."""
        self._holdings.indexes[file.identity].touch((file,), is_use=False)

    def note_uses(self) -> None:
        """Have the order of use noted on the files themselves, for the next run: on those that are
        written. When nothing else goes on, and at the end."""
        for identity, index in self._holdings.indexes.items():
            if touched := index.take_touched():
                self._writer.put(Touch(tuple((identity, file.name) for file in touched)))

    def drop(self, identity: str, name: str) -> None:
        """A file is not to be used again, nor what stands on it: out of the index, and deleted."""
        removed = self._holdings.remove(identity, name)
        self._tally.bad_files += bool(removed)
        self._room.delete(removed)

    def forget(self) -> tuple[tuple[str, str], ...]:
        """Delete all files of all models; which ones, by (identity, name)."""
        self._is_void = self._room.bounds is None
        held = self._holdings.clear()
        self._room.delete(held)
        return tuple((file.identity, file.name) for file in held)

    def abandon(self) -> None:
        """The writer has ended: let go of the arrays of what it has not written."""
        self._room.abandon()

    def hear(self, result: Result) -> None:
        """What a disk thread has done. Calls whoever waits for it."""
        match result:
            case Swept():
                self._swept(result)
            case Scanned():
                self._scanned(result)
            case Written():
                self._written(result)
            case WriteFailed():
                self._write_failed(result)
            case ReadDone():
                self._reads.hear(result)
            case ReadFailed():
                self._read_failed(result)
            case Deleted():
                self._room.deleted(result.free_bytes)
            case Checked(lost, useless):
                for identity, name in lost:
                    self.drop(identity, name)
                for identity, name in useless:
                    self._room.delete(self._holdings.remove(identity, name))
        if self._room.bounds is not None:
            self._room.keep()

    def _swept(self, result: Swept) -> None:
        self._holdings.list_files(result.files)
        self._room.allowance.note(0, result.written_today)
        self._tally.bad_files += result.bad
        self._tally.last_failure = result.problem or self._tally.last_failure
        self._room.open(result.free_bytes, result.total_bytes)
        if self._is_void:
            self.forget()

    def _scanned(self, result: Scanned) -> None:
        useless = self._holdings.fill(result.identity, result.files)
        self._tally.bad_files += result.bad
        self._room.delete(useless)

    def _written(self, result: Written) -> None:
        self._room.written(result.file, result.free_bytes)
        self._holdings.indexes[result.file.identity].written(result.file, result.nbytes)
        self._room.allowance.note(result.nbytes, result.written_today)
        self._tally.written_bytes += result.nbytes
        self._tally.written_files += 1

    def _write_failed(self, result: WriteFailed) -> None:
        self._room.failed(result.file, result.free_bytes)
        self._tally.last_failure = result.why
        self._tally.skipped_writes += result.is_full
        self._tally.failed_writes += not result.is_full
        if self._holdings.indexes[result.file.identity].get(result.file.name) is result.file:
            self._room.delete(self._holdings.remove(result.file.identity, result.file.name))

    def _read_failed(self, result: ReadFailed) -> None:
        """Where the file is gone, what stands on it goes."""
        if result.file.name in self._holdings.indexes[result.file.identity]:
            self._tally.last_failure = result.why
        if not result.is_there:
            self.drop(result.file.identity, result.file.name)
        self._reads.hear(result)

    def status(self) -> DiskStatus:
        room, holdings = self._room, self._holdings
        bounds, limits = room.bounds, self.options.limits
        return DiskStatus(
            folder=str(self.options.folder),
            is_on=not room.is_closed,
            is_scanning=bounds is None or holdings.is_reading,
            bytes=holdings.nbytes,
            max_bytes=bounds.max_bytes if bounds else limits.max_bytes or 0,
            files=holdings.file_count,
            usable_bytes=holdings.usable_bytes,
            unusable_bytes=holdings.unusable_bytes,
            free_bytes=room.free_bytes,
            floor_bytes=bounds.floor_bytes if bounds else limits.floor_bytes or 0,
            pending_bytes=room.pending_bytes,
            written_today_bytes=room.allowance.written_today,
            write_bytes_per_day=limits.write_bytes_per_day or 0,
            evicted_files=room.evicted_files,
            read_bytes_per_second=self.read_bytes_per_second or 0.0,
            **asdict(self._tally),
        )

    def contents(self, names: Mapping[str, str] | None = None) -> DiskContents:
        """The disk cache, model by model. `names` of models by their identities."""
        found = models(self._holdings, self._idle_seconds, names or {})
        return DiskContents(self.status(), found)

    def _idle_seconds(self, identity: str, used_at: float) -> float:
        """Since a model's files were used: in this run, or at `used_at` before it."""
        if (in_this_run := self._used_at.get(identity)) is not None:
            return self._clock() - in_this_run
        return max(0.0, self._wall_clock() - used_at)
