"""The disk cache as the engine's thread knows it: what is there, what may be, what is on its way.

One for all models. It decides what is written and what makes room; the work is done by two disk
threads, which take jobs and send results. Nothing here waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.index import DiskIndex
from daemon.disk_cache.jobs import JobQueue, ReadDone, ReadFailed, Result
from daemon.disk_cache.limits import DiskLimits
from daemon.status import DiskStatus


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
    def __init__(
        self,
        options: DiskOptions,
        writer: JobQueue,
        reader: JobQueue,
        clock: Callable[[], float],
    ) -> None:
        self.options = options

    def start(self) -> None:
        """Have the folder looked through, once the threads run."""

    def index(self, identity: str) -> DiskIndex:
        """One model's files. The first time they are asked for, they are read in."""

    def is_ready(self, identity: str) -> bool:
        """Whether all that is on disk of a model is in its index."""

    def save(self, file: StoredFile, content: Content, *, is_dear: bool) -> bool:
        """Have a file written, as far as the limits allow; False if they do not.

        `is_dear`: it was used again, or is the end of a conversation: under pressure nothing else
        is written. What is in its index already is not written again (True).
        """

    def may_save(self, nbytes: int, *, is_dear: bool) -> bool:
        """Whether `save` would take so many bytes now: asked before anything is exported."""

    def read(self, file: StoredFile, heard: Callable[[ReadDone | ReadFailed], None]) -> None:
        """Have a file read; `heard` is called on this thread with what came of it."""

    def touch(self, identity: str, files: tuple[StoredFile, ...]) -> None:
        """Files were used just now, here and on disk."""

    def drop(self, identity: str, name: str) -> None:
        """A file is not to be used again, nor what stands on it: out of the index, and deleted."""

    def hear(self, result: Result) -> None:
        """What a disk thread has done. Calls whoever waits for it."""

    def forget(self) -> None:
        """Delete everything, of all models."""

    @property
    def pending_bytes(self) -> int:
        """Handed over and not yet written."""
        return 0

    @property
    def read_bytes_per_second(self) -> float | None:
        """How quickly files were read lately; None before the first."""
        return None

    def note_restored(self, tokens: int, nbytes: int) -> None:
        """A request got so much from disk."""

    def status(self) -> DiskStatus: ...
