"""What the writer does: one file after another, and what makes room for them."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from daemon.disk_cache import folder as folders
from daemon.disk_cache import ledger, storing
from daemon.disk_cache.files import FORMAT_VERSION
from daemon.disk_cache.folder import in_words, is_shortage, opened, opened_model
from daemon.disk_cache.format import BadFile
from daemon.disk_cache.jobs import (
    FREE_UNKNOWN,
    Checked,
    Chore,
    Delete,
    Deleted,
    FoundFile,
    Sweep,
    Swept,
    Touch,
    Write,
    WriteFailed,
    Written,
)
from daemon.disk_cache.limits import DiskLimits
from daemon.disk_cache.scan import warn_of

log = logging.getLogger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Writer:
    """Works in `folder`, and makes it when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sweep(self, job: Sweep) -> Swept:
        try:
            with opened(self._folder, is_made=True) as folder:
                found = _look_through(folder)
                warn_of(found.bad)
                return Swept(
                    files=tuple(sorted(found.files, key=lambda file: file.used_at)),
                    removed=found.removed,
                    free_bytes=folders.free_bytes(folder),
                    total_bytes=folders.total_bytes(folder),
                    written_today=ledger.written_on(folder, date.today()),
                    bad=len(found.bad),
                )
        except OSError as error:
            why = in_words(error)
            log.warning("nothing is kept on disk: %s", why)
            return Swept((), 0, 0, 0, problem=why)

    def write(self, job: Write) -> Written | WriteFailed:
        try:
            with opened(self._folder, is_made=True) as folder:
                _keep_floor(folder, job)
                with opened_model(folder, job.file.identity, is_made=True) as model:
                    nbytes = storing.write(model, job.file, job.content)
                today = ledger.add(folder, date.today(), nbytes)
                free = folders.free_bytes(folder)
        except (OSError, BadFile, MemoryError) as error:
            is_full = isinstance(error, OSError) and error.errno in _FULL
            if not is_full:
                log.warning("%s could not be written: %s", job.file.name, in_words(error))
            return WriteFailed(job.file, in_words(error), is_full, self._free_bytes())
        return Written(job.file, nbytes, free, today)

    def delete(self, job: Delete) -> Deleted:
        with suppress(OSError), opened(self._folder) as folder:
            delete(folder, job.files)
        return Deleted(self._free_bytes())

    def touch(self, job: Touch) -> Checked | None:
        """What is not there any more; somebody else has deleted it."""
        with suppress(OSError), opened(self._folder) as folder:
            if missing := folders.touch(folder, job.files):
                return Checked((), tuple(missing))
        return None  # also where the folder is away, which may come back

    def run(self, job: Chore) -> None:
        allowed = 0
        with suppress(OSError), opened(self._folder, is_made=True) as folder:
            allowed = _writable_bytes(folder, job.limits)
        if nbytes := job.run(allowed):
            with suppress(OSError), opened(self._folder) as folder:
                ledger.add(folder, date.today(), nbytes)

    def _free_bytes(self) -> int:
        with suppress(OSError), opened(self._folder) as folder:
            return folders.free_bytes(folder)
        return FREE_UNKNOWN


def delete(folder: int, files: Iterable[tuple[str, str]]) -> list[str]:
    """Delete files by (identity, name), and folders that are empty then. Returns why those are
    still there that could not be deleted."""
    identities, failures = set(), list[str]()
    for identity, name in files:
        identities.add(identity)
        try:
            with opened_model(folder, identity) as model:
                folders.remove(model, name)
        except FileNotFoundError:
            pass
        except OSError as error:
            failures.append(in_words(error))
    for identity in identities:
        with suppress(OSError):
            os.rmdir(identity, dir_fd=folder)
    return failures


def delete_rest(folder: Path, files: Iterable[tuple[str, str]]) -> str:
    """Delete files that may still be there, and what is beside those of all models; why something
    of it stays, or "". Never raises."""
    try:
        with opened(folder) as root:
            failures = delete(root, [*files, *folders.journals(root)])
    except FileNotFoundError:
        return ""
    except OSError as error:
        return in_words(error)
    return failures[0] if failures else ""


def _keep_floor(folder: int, job: Write) -> None:
    """Raise what a full disk would, if writing would leave less free than asked for."""
    needed = storing.nbytes_of(job.file, job.content)
    if folders.free_bytes(folder) - needed < job.floor_bytes:
        raise OSError(errno.ENOSPC, "too little of the disk would stay free")


def _writable_bytes(folder: int, limits: DiskLimits) -> int:
    """What may be written now, whatever the cache holds."""
    free, per_day = folders.free_bytes(folder), limits.write_bytes_per_day
    room = free - limits.on(free, folders.total_bytes(folder), held_bytes=0).floor_bytes
    if per_day is not None:
        room = min(room, per_day - ledger.written_on(folder, date.today()))
    return max(0, room)


@dataclass(slots=True)
class _Found:
    """`files` that some model may have a use for. So many others were `removed`, among them the
    `bad` ones, by name, with what is wrong."""

    files: list[FoundFile] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)
    removed: int = 0


def _look_through(folder: int) -> _Found:
    found = _Found()
    for identity in folders.models(folder):
        with suppress(OSError), opened_model(folder, identity) as model:
            before = len(found.files)
            _look_through_model(model, identity, found)
            found.removed += folders.remove_temporaries(model)
            if len(found.files) == before:
                folders.remove_old_journal(model)
                os.rmdir(identity, dir_fd=folder)  # unless something is in it
    return found


def _look_through_model(model: int, identity: str, found: _Found) -> None:
    for listed in folders.listed(model):
        flaw = _flaw(model, listed.name)
        if flaw is None:
            file = FoundFile(identity, listed.name, listed.nbytes, listed.used_at)
            found.files.append(file)
        elif _is_removed(model, listed.name):
            found.removed += 1
            found.bad |= {listed.name: flaw} if flaw else {}


def _flaw(model: int, name: str) -> str | None:
    """What is wrong with a file, as far as its first bytes tell: None if nothing is, "" if it only
    is of another version."""
    try:
        version = storing.read_version(model, name)
    except (OSError, BadFile, MemoryError) as error:
        return None if is_shortage(error) else in_words(error)
    return None if version == str(FORMAT_VERSION) else ""


def _is_removed(model: int, name: str) -> bool:
    """Whether a file was there, and is not any more."""
    with suppress(OSError):
        return folders.remove(model, name)
    return False
