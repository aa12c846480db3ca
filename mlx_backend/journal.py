"""What an encoder learned and the next process has to know, as lines of a file beside the state.

A prompt has the ids of its last reading again only if the answers in it are put back as they were
sampled, on the day that its template printed, with the tools as they were first spelled. So what
is on disk of a conversation is found again only with these notes.

A note is a line, with a checksum over it and the model's identity: whatever is torn, damaged or
another model's is passed over, and costs itself only. Lines are appended, by one thread, behind
the back of who adds them; the file is cut back to its newer half when it has grown too large, and
what is used after that is noted again. Without fsync: a crash of the machine costs the last notes.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from zlib import crc32

log = logging.getLogger(__name__)

FILE_NAME = "answers.journal"
KEPT_BYTES = 32 << 20

_TEMPORARY_NAME = f"{FILE_NAME}.tmp"
_REST_BYTES = 1 << 20
_VERSION = 1  # of what a line says; others are passed over
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC

Value: TypeAlias = Mapping[str, Any]
"""What a note says: JSON data."""

WriteBehind: TypeAlias = Callable[[Callable[[int], int]], None]
"""Has something called soon, with the bytes that it may write to the disk, which returns those
that it did; by one thread, in order. Returns at once itself."""


@dataclass(frozen=True, slots=True)
class Note:
    """`name` is a number that tells it from all other notes, in every process."""

    kind: str
    name: int
    value: Value


class Notes(Protocol):
    """What is to outlive the process. Thread-safe."""

    def add(self, kind: str, name: int, value: Callable[[], Value]) -> None:
        """Note something that was learned, or used again; `value` is asked for if it is new.

        Costs next to nothing, and never fails.
        """

    def all(self) -> Iterator[Note]:
        """All notes, the oldest first. Reads a file. Never raises."""


class NoNotes:
    """Nothing is noted."""

    def add(self, kind: str, name: int, value: Callable[[], Value]) -> None:
        pass

    def all(self) -> Iterator[Note]:
        return iter(())


NO_NOTES: Notes = NoNotes()


class Journals:
    """The journals of the models whose state is kept in `folder`: one each, so that a model that
    is loaded again at once finds what is not written yet."""

    def __init__(
        self, folder: Path, write_behind: WriteBehind, kept_bytes: int = KEPT_BYTES
    ) -> None:
        self._folder = folder
        self._write_behind = write_behind
        self._kept_bytes = kept_bytes
        self._journals: dict[str, Journal] = {}

    def of(self, identity: str) -> Journal:
        folder = self._folder / identity
        made = Journal(folder, identity, self._write_behind, self._kept_bytes)
        return self._journals.setdefault(identity, made)

    def write_rest(self) -> None:
        """Write what still waits here and now: in the end, when nobody else writes any more. But
        nothing where nothing could be written, or was to be, the last time."""
        for journal in self._journals.values():
            if not journal.is_failing:
                journal.write(_REST_BYTES)


class Journal:
    """The notes of one model, in `folder`; about the newest `kept_bytes` of them are kept.

    `add` from any thread; `write` by one at a time, usually by way of `write_behind`. `is_failing`:
    the last one wrote nothing of what was there to be written.
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        write_behind: WriteBehind,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._folder = folder
        self._salt = crc32(identity.encode())
        self._write_behind = write_behind
        self._kept_bytes = kept_bytes
        self._waiting: deque[_Waiting] = deque()
        self._noted: set[int] = set()
        self._is_due = False
        self.is_failing = False

    def add(self, kind: str, name: int, value: Callable[[], Value]) -> None:
        if name in self._noted:
            return
        self._noted.add(name)
        self._waiting.append(_Waiting(kind, name, value))
        if not self._is_due:
            self._is_due = True
            self._write_behind(self.write)

    def all(self) -> Iterator[Note]:
        waiting = self._waiting.copy()  # first: what is no longer there is in the file
        for line in self._lines():
            note = self._read(line)
            if note is not None:
                self._noted.add(note.name)
                yield note
        yield from (each.note() for each in waiting)

    def write(self, most_bytes: int) -> int:
        """Write what waits; how many bytes. What cannot be written is noted when it is used."""
        self._is_due = False
        if not self._waiting:
            return 0
        try:
            written = self._append(most_bytes)
        except OSError as error:
            if not self.is_failing:
                log.warning("answers cannot be kept on disk: %s", error)
            self.is_failing = True
            self._waiting.clear()
            self._noted = set()
            return 0
        self.is_failing = False
        return written

    def _append(self, most_bytes: int) -> int:
        waiting = [self._waiting[place] for place in range(len(self._waiting))]
        data = b"".join(self._line(each.note()) for each in waiting)
        _refuse_beyond(most_bytes, len(data))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened(self._folder, FILE_NAME, os.O_RDWR | os.O_APPEND | os.O_CREAT) as (file, size):
            is_to_be_cut = size + len(data) > 2 * self._kept_bytes
            _refuse_beyond(most_bytes, len(data) + self._kept_bytes * is_to_be_cut)
            if size == 0:  # the first ones, or it was taken away
                self._noted = {each.name for each in waiting}
            elif os.pread(file, 1, size - 1) != b"\n":
                data = b"\n" + data  # behind a line that was torn
            _write_all(file, data)
        for _ in waiting:
            self._waiting.popleft()
        return len(data) + (self._cut() if is_to_be_cut else 0)

    def _cut(self) -> int:
        """Keep the newer half."""
        data = self._tail(self._kept_bytes)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with _opened(self._folder, _TEMPORARY_NAME, flags) as (file, _):
            _write_all(file, data)
            os.fsync(file)
        os.replace(self._folder / _TEMPORARY_NAME, self._folder / FILE_NAME)
        self._noted = set()
        return len(data)

    def _lines(self) -> list[bytes]:
        try:
            return self._tail(2 * self._kept_bytes).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("the answers kept on disk cannot be read: %s", error)
            return []

    def _tail(self, most: int) -> bytes:
        """The last whole lines of the file, about `most` bytes."""
        with _opened(self._folder, FILE_NAME, os.O_RDONLY) as (file, size):
            start = max(0, size - most)
            data = _read_all(file, start, size - start)
        return data[data.find(b"\n") + 1 :] if start else data

    def _line(self, note: Note) -> bytes:
        told = {"version": _VERSION, "kind": note.kind, "name": note.name, "value": note.value}
        text = json.dumps(told, separators=(",", ":")).encode()
        return b"%08x %b\n" % (crc32(text, self._salt), text)

    def _read(self, line: bytes) -> Note | None:
        checksum, _, text = line.partition(b" ")
        if checksum != b"%08x" % crc32(text, self._salt):
            return None
        try:
            told = json.loads(text)
            if told["version"] != _VERSION:
                return None
            return Note(str(told["kind"]), int(told["name"]), dict(told["value"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class _Waiting:
    kind: str
    name: int
    value: Callable[[], Value]

    def note(self) -> Note:
        return Note(self.kind, self.name, self.value())


@contextmanager
def _opened(folder: Path, name: str, flags: int) -> Iterator[tuple[int, int]]:
    """A regular file right in `folder`, and its size; neither is reached by a link."""
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _SAFELY)
    try:
        file = os.open(name, flags | os.O_NONBLOCK | _SAFELY, 0o600, dir_fd=place)
    finally:
        os.close(place)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{folder / name} is no file")
        yield file, found.st_size
    finally:
        os.close(file)


def _refuse_beyond(most_bytes: int, needed_bytes: int) -> None:
    if needed_bytes > most_bytes:
        raise OSError(ENOSPC, "no more may be written", FILE_NAME)


def _write_all(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _read_all(file: int, start: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(file, size, start)):
        parts.append(part)
        start, size = start + len(part), size - len(part)
    return b"".join(parts)
