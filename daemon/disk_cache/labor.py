"""The life of a disk thread: jobs in, results out. Threads are made in `engine`.

What takes many files gives way to whatever else waits, file by file, so that a request's read
never waits for a look through the folder. Whatever fails is a result with a word that says why.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from daemon.disk_cache.jobs import (
    FREE_UNKNOWN,
    Check,
    Checked,
    Chore,
    Delete,
    Deleted,
    JobQueue,
    Read,
    ReaderJob,
    ReadFailed,
    Result,
    Scan,
    Scanned,
    Stop,
    Sweep,
    Swept,
    Touch,
    Write,
    WriteFailed,
    WriterJob,
)
from daemon.disk_cache.reading import Reader
from daemon.disk_cache.writing import Writer

log = logging.getLogger(__name__)


def work(folder: Path, jobs: JobQueue, post: Callable[[Result], None]) -> None:
    """Do every job in its order, until told to stop. Whatever fails is a result, never raised."""
    labor = _Labor(folder)
    while True:
        job = jobs.poll() if labor.is_underway else jobs.get()
        if isinstance(job, Stop):
            return
        result = labor.step() if job is None else labor.do(job)
        del job  # its arrays are let go of before the engine's thread hears that it is done
        if result is not None:
            post(result)
            del result


class _Labor:
    def __init__(self, folder: Path) -> None:
        self._reader = Reader(folder)
        self._writer = Writer(folder)
        self._underway: deque[tuple[Scan | Check, Iterator[Result | None]]] = deque()

    @property
    def is_underway(self) -> bool:
        """Whether there is something to go on with when no job waits."""
        return bool(self._underway)

    def do(self, job: WriterJob | ReaderJob) -> Result | None:
        """What became of a job, if that is known at once."""
        try:
            return self._do(job)
        except Exception as error:
            return _failure(job, error)

    def _do(self, job: WriterJob | ReaderJob) -> Result | None:
        match job:
            case Sweep():
                return self._writer.sweep(job)
            case Write():
                return self._writer.write(job)
            case Delete():
                return self._writer.delete(job)
            case Touch():
                return self._writer.touch(job)
            case Chore():
                self._writer.run(job)
            case Read():
                return self._reader.read(job)
            case Scan():
                self._underway.appendleft((job, self._reader.scan(job)))
            case Check():
                self._underway.append((job, self._reader.check(job)))
        return None

    def step(self) -> Result | None:
        """Go on with what takes many files: with a scan, which turns wait for, before a check."""
        job, steps = self._underway[0]
        try:
            result = next(steps)
        except Exception as error:
            result = _failure(job, error)
        if result is not None:
            self._underway.popleft()
        return result


def _failure(job: WriterJob | ReaderJob, error: Exception) -> Result | None:
    """For whoever waits for a job that failed in a way that nobody has thought of."""
    log.exception("the disk cache failed at %s", type(job).__name__)
    why = f"{type(error).__name__}: {error}"
    match job:
        case Sweep():
            return Swept((), 0, 0, 0, problem=why)
        case Write(file=file):
            return WriteFailed(file, why, is_full=False, free_bytes=FREE_UNKNOWN)
        case Delete():
            return Deleted(FREE_UNKNOWN)
        case Read(ticket=ticket, file=file, buffer=buffer):
            return ReadFailed(ticket, file, why, buffer)
        case Scan(identity=identity):
            return Scanned(identity, ())
        case Check(reply=reply):
            reply.fail(error)
            return Checked(())
    return None
