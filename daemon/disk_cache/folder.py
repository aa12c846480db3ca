"""The folder of the disk cache: `<folder>/<identity>/<key>.<kind>.safetensors`.

0700, and 0600 what is in it. Everything is reached through descriptors of folders, and no link
below the folder is followed, so that nothing outside can be read, changed or deleted. What has not
a name of ours is a stranger's, and stays as it is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from daemon.disk_cache.files import FileKind

FOLDER_MODE, FILE_MODE = 0o700, 0o600
JOURNAL, JOURNAL_TEMPORARY = "answers.journal", "answers.journal.tmp"
"""What a model's prompts are encoded with, beside its state. Written elsewhere; deleted here."""

JOURNAL_SECONDS_MOST = 30 * 86_400.0
"""Without use, where a model has no other files: then its journal is only in the way."""

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_IDENTITY = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
_NAME = re.compile(r"[0-9a-f]{40}\.[a-z]{1,16}\.safetensors")
_TEMPORARY = re.compile(rf"{_NAME.pattern}\.[0-9a-f]{{16}}\.tmp")
_JOURNAL = re.compile(rf"{re.escape(JOURNAL)}(\.tmp)?")
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class FolderUnusable(OSError):
    """Nothing can be kept in the folder; the text says why."""


def in_words(error: Exception) -> str:
    """What went wrong, and with which file or folder."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def is_shortage(error: Exception) -> bool:
    """Whether there was too little of something to look at a file, of descriptors or of memory:
    that says nothing about the file."""
    is_known = isinstance(error, OSError) and error.errno in _SHORTAGES
    return is_known or isinstance(error, MemoryError)


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of ours in a model's folder. `used_at`: see `touch`."""

    name: str
    nbytes: int
    used_at: float

    @property
    def is_block(self) -> bool:
        return f".{FileKind.BLOCK}." in self.name


@contextmanager
def opened(folder: Path, *, is_made: bool = False) -> Iterator[int]:
    """A descriptor of the cache's folder; made first, with its rights, if `is_made`."""
    if is_made:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    # The folder itself may be a link, to another disk perhaps: that is its owner's choice.
    descriptor = os.open(folder, _OPEN_FOLDER & ~os.O_NOFOLLOW)
    try:
        _keep_private(descriptor, str(folder))
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_model(folder: int, identity: str, *, is_made: bool = False) -> Iterator[int]:
    """A descriptor of one model's folder in the cache's."""
    if not _IDENTITY.fullmatch(identity):
        raise FolderUnusable(errno.EINVAL, "this cannot be a model's folder", identity)
    if is_made:
        _make(folder, identity)
    descriptor = os.open(identity, _OPEN_FOLDER, dir_fd=folder)
    try:
        _keep_private(descriptor, identity)
        yield descriptor
    finally:
        os.close(descriptor)


def _make(folder: int, identity: str) -> None:
    with suppress(FileExistsError):
        os.mkdir(identity, FOLDER_MODE, dir_fd=folder)
        os.fsync(folder)


def _keep_private(descriptor: int, name: str) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid():
        raise FolderUnusable(errno.EACCES, "the folder belongs to another account", name)
    if found.st_mode & 0o777 != FOLDER_MODE:
        os.fchmod(descriptor, FOLDER_MODE)


def models(folder: int) -> list[str]:
    """Identities of the models that something is there of."""
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if _IDENTITY.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return sorted(name for name in names if _has_any_of_ours(folder, name))


def _has_any_of_ours(folder: int, name: str) -> bool:
    """Whether it is a model's folder, or a stranger's with a name that could be one's. What cannot
    be looked into may be a model's."""
    try:
        descriptor = os.open(name, _OPEN_FOLDER, dir_fd=folder)
    except OSError as error:
        return isinstance(error, PermissionError) or is_shortage(error)
    try:
        with os.scandir(descriptor) as entries:
            return any(_is_name_of_ours(entry.name) for entry in entries)
    finally:
        os.close(descriptor)


def journals(folder: int) -> list[tuple[str, str]]:
    """What may be there beside the models' files, by (identity, name)."""
    names = (JOURNAL, JOURNAL_TEMPORARY)
    return [(identity, name) for identity in models(folder) for name in names]


def listed(model: int) -> list[Listed]:
    """A model's files by their names and sizes, in no order; strangers and temporary files not."""
    with os.scandir(model) as entries:
        return [file for entry in entries if _is_ours(entry) for file in _seen(entry)]


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return bool(_NAME.fullmatch(entry.name)) and not entry.is_dir(follow_symlinks=False)


def _seen(entry: os.DirEntry[str]) -> Iterator[Listed]:
    with suppress(FileNotFoundError):  # gone since the folder was read
        found = entry.stat(follow_symlinks=False)
        yield Listed(entry.name, found.st_size, found.st_mtime)


def remove(model: int, name: str) -> bool:
    """Delete one file of ours, or a link in its place; False if it is not there. Raises OSError."""
    if not _is_name_of_ours(name):
        raise OSError(errno.EINVAL, "this cannot be a file of the cache", name)
    try:
        os.unlink(name, dir_fd=model)
    except FileNotFoundError:
        return False
    return True


def kept_anyway(model: int, name: str) -> str:
    """Delete a file of ours; "", or how to go on with a sentence that it could not be deleted."""
    try:
        remove(model, name)
    except OSError as error:
        return f"; it stays: {in_words(error)}"
    return ""


def _is_name_of_ours(name: str) -> bool:
    return any(known.fullmatch(name) for known in (_NAME, _TEMPORARY, _JOURNAL))


def remove_temporaries(model: int) -> int:
    """Delete what somebody began to write and will not end; how many files that were."""
    with os.scandir(model) as entries:
        names = [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    return sum(remove(model, name) for name in names if not _is_being_written(model, name))


def _is_being_written(model: int, name: str) -> bool:
    """Whether another daemon, which shares the folder, has it locked."""
    try:
        with opened_file(model, name) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def remove_old_journal(model: int) -> None:
    """Delete the journal of a model that nobody seems to use any more."""
    with suppress(OSError):
        found = os.stat(JOURNAL, dir_fd=model, follow_symlinks=False)
        now = time.time()  # a date, as the file's own
        if now - found.st_mtime > JOURNAL_SECONDS_MOST:
            remove(model, JOURNAL)


@contextmanager
def written(model: int, name: str) -> Iterator[int]:
    """A descriptor of a new file that has its name once the block ends, whole and on the disk, or
    is gone if the block raises. What had the name before is replaced."""
    temporary = f"{name}.{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, FILE_MODE, dir_fd=model)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
        # What the drive itself still holds back as the power fails, the checksum tells.
        os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=model, dst_dir_fd=model)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=model)
        raise
    finally:
        os.close(descriptor)  # and with it the lock
    os.fsync(model)


@contextmanager
def opened_file(model: int, name: str) -> Iterator[int]:
    """A descriptor to read a file of ours by; OSError if it is none, or a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, dir_fd=model)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", name)
        yield descriptor
    finally:
        os.close(descriptor)


def touch(folder: int, files: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Note, as the files' times, that they were used just now, the first one last. Returns those
    that are not there."""
    now, missing = time.time_ns(), list[tuple[str, str]]()
    for age, (identity, name) in enumerate(files):
        at = now - age * 1000  # what a `float` of seconds tells apart
        try:
            with opened_model(folder, identity) as model, opened_file(model, name) as descriptor:
                os.utime(descriptor, ns=(at, at))
        except FileNotFoundError:
            missing.append((identity, name))
        except OSError:
            pass
    return missing


def free_bytes(folder: int) -> int:
    """What this account may still write to the disk."""
    found = os.fstatvfs(folder)
    return found.f_bavail * found.f_frsize


def total_bytes(folder: int) -> int:
    found = os.fstatvfs(folder)
    return found.f_blocks * found.f_frsize
