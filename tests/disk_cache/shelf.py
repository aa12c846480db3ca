"""What the tests of the disk's threads share: files to write, and a thread's work done at once."""

from __future__ import annotations

import os
import resource
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from daemon.disk_cache import format as layout
from daemon.disk_cache.files import Content, FileKind, StoredFile, key_of
from daemon.disk_cache.folder import opened, opened_model
from daemon.disk_cache.jobs import (
    JobQueue,
    Read,
    ReadDone,
    ReaderJob,
    ReadFailed,
    Result,
    Scan,
    Scanned,
    Stop,
    Write,
    WriterJob,
    Written,
)
from daemon.disk_cache.labor import work
from mlx_backend.host_arrays import HostArray
from mlx_backend.messages import TokenIds

MODEL = "a" * 64
R = TypeVar("R")


def do(folder: Path, *jobs: WriterJob | ReaderJob) -> list[Result]:
    """What a disk thread answers to `jobs`, once it has done them all."""
    results = list[Result]()
    work(folder, _Ending(jobs), results.append)
    return results


class _Ending(JobQueue):
    """Jobs, and the word to stop once nothing is left to do."""

    def __init__(self, jobs: Sequence[WriterJob | ReaderJob]) -> None:
        super().__init__()
        for job in jobs:
            self.put(job)

    def get(self) -> WriterJob | ReaderJob:
        return self.poll() or Stop()

    def poll(self) -> WriterJob | ReaderJob | None:
        return None if self._jobs.empty() else self._jobs.get()


def done(folder: Path, kind: type[R], job: WriterJob | ReaderJob) -> R:
    """The one answer to `job`, which is of this kind."""
    (result,) = do(folder, job)
    assert isinstance(result, kind), result
    return result


def tokens_of(seed: int, count: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 150_000, count).astype(np.int32)


def block(
    tokens: TokenIds, start: int = 0, parent: StoredFile | None = None, identity: str = MODEL
) -> StoredFile:
    """The block of `tokens` from `start` on, all those before it included in `tokens`."""
    key = key_of(identity, [tokens])
    below = "" if parent is None else parent.key
    return StoredFile(identity, FileKind.BLOCK, key, below, start, len(tokens), tokens[start:])


def checkpoint(tokens: TokenIds, parent: StoredFile, label: str = "turn-end") -> StoredFile:
    """A checkpoint after all of `tokens`, the last of which lies in `parent`."""
    key, end = key_of(parent.identity, [tokens]), len(tokens)
    return StoredFile(parent.identity, FileKind.CHECKPOINT, key, parent.key, end, end, label=label)


def chain_of(tokens: TokenIds, *ends: int, identity: str = MODEL) -> list[StoredFile]:
    """Blocks of `tokens`, one on the other, that end where `ends` says."""
    files, below, start = list[StoredFile](), None, 0
    for end in ends:
        below = block(tokens[:end], start, below, identity)
        files.append(below)
        start = end
    return files


def content_of(file: StoredFile, heads: int = 2, width: int = 8) -> Content:
    """Arrays that tell every token of a file from all others."""
    ids = file.tokens if file.kind is FileKind.BLOCK else np.arange(3, dtype=np.int32)
    shape = (1, heads, len(ids), width)
    keys = np.broadcast_to(ids.astype(np.uint16)[:, None], shape) + np.arange(width, dtype="u2")
    scales = np.broadcast_to(ids.astype(np.uint32)[:, None], (1, 1, len(ids), 1))
    return Content((HostArray("BF16", (keys,)), HostArray("F32", (scales,))), '{"n":1}')


def written(folder: Path, *files: StoredFile) -> list[Path]:
    """Write files with contents of their own; where they are."""
    for result in do(folder, *(Write(file, content_of(file)) for file in files)):
        assert isinstance(result, Written), result
    return [path_of(folder, file) for file in files]


@contextmanager
def model_of(folder: Path, identity: str = MODEL) -> Iterator[int]:
    """A descriptor of a model's folder, which is made first."""
    with (
        opened(folder, is_made=True) as root,
        opened_model(root, identity, is_made=True) as model,
    ):
        yield model


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """The system lets this process write no larger files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def opening_fails(error: Exception) -> Iterator[None]:
    """The system lets nobody open a file of the cache."""
    system_open = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith(".safetensors"):
            raise error
        return system_open(path, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


def path_of(folder: Path, file: StoredFile) -> Path:
    return folder / file.identity / file.name


def scanned(folder: Path, identity: str = MODEL) -> Scanned:
    return done(folder, Scanned, Scan(identity))


def names_of(found: Scanned) -> list[str]:
    return [file.name for file, _ in found.files]


def read(file: StoredFile, ticket: int = 1) -> Read:
    return Read(ticket, file)


def is_refused(folder: Path, file: StoredFile) -> bool:
    """Whether a file is found wrong, and deleted, as it is read."""
    (result,) = do(folder, read(file))
    if isinstance(result, ReadDone):
        return False
    assert isinstance(result, ReadFailed)
    assert not result.is_there
    assert result.why
    assert not os.path.lexists(path_of(folder, file))
    return True


def same_bits(one: Content, other: Content) -> bool:
    return one.described == other.described and all(
        a.dtype == b.dtype and a.shape == b.shape and a.joined().tobytes() == b.joined().tobytes()
        for a, b in zip(one.arrays, other.arrays, strict=True)
    )


def forged(header: bytes, data: bytes) -> bytes:
    """A file of any header, with the checksum that belongs to it."""
    whole = bytearray(len(header).to_bytes(8, "little") + header + data)
    crc = zlib.crc32(whole[layout.CHECKSUM.stop :], zlib.crc32(whole[: layout.CHECKSUM.start]))
    whole[layout.CHECKSUM] = b"%08x" % crc
    return bytes(whole)
