"""What the engine's thread asks of the two disk threads, and what comes back.

Each thread takes its jobs in order: the writer writes and deletes, the reader reads, so that a
read never waits behind a write. A job's arrays belong to the engine's thread: whoever has worked
on a job lets go of it before its result is posted. Frozen throughout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeAlias

from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.limits import DiskLimits
from daemon.replies import Reply

FREE_UNKNOWN = -1
"""In place of `free_bytes` where the disk cannot say."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file by its folder's listing alone. `used_at` is its time of last use, in seconds of the
    Unix epoch: to be compared with others of its like only."""

    identity: str
    name: str
    nbytes: int
    used_at: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """Writer: remove what nobody can use (temporary files, other versions), list all the rest."""


@dataclass(frozen=True, slots=True)
class Swept:
    """`files` of all models, the longest unused first. So many others were `removed`, `bad` ones
    among them, which were wrong. `written_today` by all runs of this day.

    `problem`: why nothing can be kept in the folder, in words; "" if it can.
    """

    files: tuple[FoundFile, ...]
    removed: int
    free_bytes: int
    total_bytes: int
    written_today: int = 0
    problem: str = ""
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Scan:
    """Reader: read the descriptions of one model's files, without their arrays."""

    identity: str


@dataclass(frozen=True, slots=True)
class Scanned:
    """`files` are good as far as that tells, parents before what stands on them, with `used_at`
    of each; `bad` were wrong, and deleted. What stood on nothing is neither."""

    identity: str
    files: tuple[tuple[StoredFile, float], ...]
    bad: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Writer: write one file, unless that would leave less than `floor_bytes` of the disk free."""

    file: StoredFile
    content: Content
    floor_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """`file` is the job's own. `nbytes` of it are on disk now; what was there is replaced."""

    file: StoredFile
    nbytes: int
    free_bytes: int
    written_today: int


@dataclass(frozen=True, slots=True, eq=False)
class WriteFailed:
    """Nothing is left of it. `is_full`: for want of room on the disk."""

    file: StoredFile
    why: str
    is_full: bool
    free_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Reader: read one file into `buffer`, or a larger one, and verify it."""

    ticket: int
    file: StoredFile
    buffer: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True, eq=False)
class ReadDone:
    """`content` lies in `buffer`, which may be used again once its arrays were imported."""

    ticket: int
    file: StoredFile
    content: Content
    buffer: bytearray
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class ReadFailed:
    """The file is gone, unreadable or wrong; it was deleted. Unless `is_there`: then it could not
    be looked at, for want of memory or of descriptors."""

    ticket: int
    file: StoredFile
    why: str
    buffer: bytearray
    is_there: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Delete:
    """Writer: delete files, by (identity, name)."""

    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Deleted:
    free_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """Writer: note on the files themselves that they were used just now, the first one last. Those
    that are not there come back as `Checked`."""

    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Chore:
    """Writer: call something that writes a little to this disk, with the bytes that it may write;
    it returns those that it did, which count like those of files. There is no result."""

    run: Callable[[int], int]
    limits: DiskLimits = DiskLimits()  # noqa: RUF009  (frozen)


@dataclass(frozen=True, slots=True, eq=False)
class Check:
    """Reader: read and verify every file; what is wrong is deleted. Answers a `DiskCheck` to
    `reply`, and a `Checked` to the engine's thread."""

    reply: Reply


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """Files that are not there any more, by (identity, name): `lost` ones were wrong, `useless`
    ones stood on such, or somebody else has deleted them."""

    lost: tuple[tuple[str, str], ...]
    useless: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Stop:
    """Either thread: end."""


WriterJob: TypeAlias = Sweep | Write | Delete | Touch | Chore | Stop
ReaderJob: TypeAlias = Scan | Read | Check | Stop
Result: TypeAlias = (
    Swept | Scanned | Written | WriteFailed | ReadDone | ReadFailed | Deleted | Checked
)


class JobQueue:
    """Jobs for one thread, in order, from any thread. Once halted it has but one more: to stop."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[WriterJob | ReaderJob] = SimpleQueue()
        self._is_halted = False

    def put(self, job: WriterJob | ReaderJob) -> None:
        self._jobs.put(job)

    def halt(self) -> None:
        """Let the thread end with the job that it is in; what waits is dropped with the queue."""
        self._is_halted = True
        self._jobs.put(Stop())

    def drop(self) -> None:
        """Forget what waits. Once the thread has ended, on the one that the arrays belong to."""
        while not self._jobs.empty():
            self._jobs.get()

    def get(self) -> WriterJob | ReaderJob:
        job = self._jobs.get()
        return Stop() if self._is_halted else job

    def poll(self) -> WriterJob | ReaderJob | None:
        """As `get`, but None if nothing waits."""
        return None if self._jobs.empty() else self.get()
