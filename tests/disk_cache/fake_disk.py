"""A disk in memory, and both of its threads as steps: one job done is one result heard.

It knows of each file what it is and what it holds, checks what the tier promises after each step,
and can be made to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from daemon.disk_cache.files import BLOCK_TOKENS, Content, FileKind, StoredFile
from daemon.disk_cache.jobs import (
    FREE_UNKNOWN,
    Delete,
    Deleted,
    FoundFile,
    JobQueue,
    Read,
    ReadDone,
    ReaderJob,
    ReadFailed,
    Result,
    Scan,
    Scanned,
    Sweep,
    Swept,
    Touch,
    Write,
    WriteFailed,
    WriterJob,
    Written,
)
from daemon.disk_cache.limits import DiskLimits
from daemon.disk_tier import DiskOptions, DiskTier
from mlx_backend.host_arrays import HostArray
from mlx_backend.messages import CacheKind, token_ids
from tests.disk_cache.files_on_disk import lacking

DISK_BYTES = 10**9
DAY_SECONDS = 86_400.0
NOON = 1_800_000_000.0


@dataclass(slots=True, eq=False)
class OnDisk:
    file: StoredFile
    content: Content
    nbytes: int
    used_at: float


@dataclass
class Disk:
    """`others_bytes` are other programs'. `failure`, if there is one, says why a write fails,
    `shortage` why nothing can be read now. `torn` files are found, and deleted, at the start."""

    total_bytes: int = DISK_BYTES
    others_bytes: int = 0
    written_today: int = 0
    problem: str = ""
    failure: Callable[[StoredFile], str] = lambda file: ""
    shortage: str = ""
    torn: int = 0
    now: float = NOON
    files: dict[tuple[str, str], OnDisk] = field(default_factory=dict)
    done: list[WriterJob | ReaderJob] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.files.values())

    @property
    def free_bytes(self) -> int:
        if not self.total_bytes:
            return FREE_UNKNOWN
        return max(0, self.total_bytes - self.others_bytes - self.nbytes)

    def place(self, identity: str, name: str, nbytes: int, used_at: float) -> None:
        """A file of which nothing is known but its name."""
        file = StoredFile(identity, FileKind.BLOCK, name, "", 0, 0, nbytes=nbytes)
        self.files[identity, name] = OnDisk(file, Content(()), nbytes, used_at)

    def do(self, job: WriterJob | ReaderJob) -> Result | None:
        self.done.append(job)
        self.now += 1
        match job:
            case Sweep():
                return self._sweep()
            case Scan(identity):
                return self._scan(identity)
            case Write():
                return self._write(job)
            case Delete(files):
                for place in files:
                    self.files.pop(place, None)
                return Deleted(self.free_bytes)
            case Touch(files):
                for age, place in enumerate(files):
                    if place in self.files:
                        self.files[place].used_at = self.now - age / 1000
                return None
            case Read():
                return self._read(job)
        raise AssertionError(job)

    def _sweep(self) -> Swept:
        if self.problem:
            return Swept((), 0, 0, 0, problem=self.problem)
        found = [FoundFile(*place, each.nbytes, each.used_at) for place, each in self.files.items()]
        found.sort(key=lambda file: file.used_at)
        return Swept(
            tuple(found),
            self.torn,
            self.free_bytes,
            self.total_bytes,
            self.written_today,
            bad=self.torn,
        )

    def _scan(self, identity: str) -> Scanned:
        found = [each for place, each in self.files.items() if place[0] == identity]
        found.sort(key=lambda each: (each.file.kind is FileKind.CHECKPOINT, each.file.start))
        return Scanned(
            identity,
            tuple((replace(each.file, nbytes=each.nbytes), each.used_at) for each in found),
        )

    def _write(self, job: Write) -> Written | WriteFailed:
        nbytes = job.content.nbytes + job.file.tokens.nbytes + 500
        if why := self.failure(job.file):
            return WriteFailed(job.file, why, is_full=False, free_bytes=self.free_bytes)
        if self.free_bytes - nbytes < job.floor_bytes:
            return WriteFailed(job.file, "full", is_full=True, free_bytes=self.free_bytes)
        place = (job.file.identity, job.file.name)
        self.files[place] = OnDisk(job.file, job.content, nbytes, self.now)
        self.written_today += nbytes
        return Written(job.file, nbytes, self.free_bytes, self.written_today)

    def _read(self, job: Read) -> ReadDone | ReadFailed:
        if why := self.shortage:
            return ReadFailed(job.ticket, job.file, why, job.buffer, is_there=True)
        found = self.files.get((job.file.identity, job.file.name))
        if found is None or (why := self.failure(job.file)):
            self.files.pop((job.file.identity, job.file.name), None)
            why = "it is gone" if found is None else why
            return ReadFailed(job.ticket, job.file, why, job.buffer)
        buffer = job.buffer or bytearray(found.nbytes)
        return ReadDone(job.ticket, job.file, found.content, buffer, found.nbytes, 0.5)


class Run:
    """A run of the daemon as far as its disk tier."""

    def __init__(self, disk: Disk, **limits: int | None) -> None:
        self.disk = disk
        self.seconds = 0.0
        self.limits = DiskLimits(**{"max_bytes": DISK_BYTES, "floor_bytes": 0, **limits})
        self._writer, self._reader = JobQueue(), JobQueue()
        self.tier = DiskTier(
            DiskOptions(Path("/nowhere"), self.limits),
            self._writer,
            self._reader,
            lambda: self.seconds,
            lambda: disk.now,
        )
        self.tier.start()

    def work(self, *, is_once: bool = False) -> None:
        """Do all that the threads were asked to do, or one job of each."""
        while any([self._step(self._writer), self._step(self._reader)]) and not is_once:
            pass

    def _step(self, queue: JobQueue) -> bool:
        job = queue.poll()
        if job is None:
            return False
        result = self.disk.do(job)
        if result is not None:
            self.tier.hear(result)
        if isinstance(job, Write):
            assert self.disk.nbytes <= self.tier.status().max_bytes
            assert len(self.disk.files) <= self.limits.max_files
        return True

    def check_limits(self) -> None:
        """What holds when nothing is on its way."""
        status = self.tier.status()
        assert self.disk.nbytes <= status.max_bytes
        assert self.disk.free_bytes >= status.floor_bytes
        assert len(self.disk.files) <= self.limits.max_files

    def check_index(self, identity: str) -> None:
        """When nothing is on its way, what is known is what is there."""
        index = self.tier.index(identity)
        index.check()
        there = {name for owner, name in self.disk.files if owner == identity}
        assert {file.name for file in index.files()} == there
        assert self.tier.pending_bytes == 0
        status = self.tier.status()
        assert status.bytes == self.disk.nbytes
        assert status.files == len(self.disk.files)

    def use(self, identity: str, ids: Sequence[int]) -> None:
        """Have the blocks of a sequence used just now."""
        found = self.tier.index(identity).find(token_ids(ids), CacheKind.SLICEABLE, len(ids))
        self.tier.touch(identity, found.blocks)

    def save(
        self,
        identity: str,
        ids: Sequence[int],
        block_tokens: int = BLOCK_TOKENS,
        *,
        is_dear: bool = True,
        at_rest: bool = False,
    ) -> list[bool]:
        """Have a sequence saved as far as it is not; what the tier said to each block."""
        index = self.tier.index(identity)
        return [
            self.tier.save(file, content(file), is_dear=is_dear, at_rest=at_rest)
            for file in lacking(index, ids, block_tokens)
        ]


def content(file: StoredFile) -> Content:
    """A thousand bytes per token, all of which say whose they are."""
    numbers = np.repeat(file.tokens, 250).reshape(1, 1, len(file.tokens), 250)
    return Content((HostArray("I32", (numbers,)),))


def ready(disk: Disk, *identities: str, **limits: int | None) -> Run:
    """A run that knows what is there of these models."""
    run = Run(disk, **limits)
    for identity in identities:
        run.tier.index(identity)
    run.work()
    return run
