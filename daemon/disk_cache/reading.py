"""What the reader does: files read for a request, looked through for an index, verified for all.

What is wrong is deleted at once: it would only be found wrong again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from daemon.disk_cache import folder as folders
from daemon.disk_cache import storing
from daemon.disk_cache.files import Content, StoredFile
from daemon.disk_cache.folder import in_words, is_shortage, opened, opened_model
from daemon.disk_cache.format import BadFile
from daemon.disk_cache.jobs import (
    Check,
    Checked,
    Read,
    ReadDone,
    ReadFailed,
    Scan,
    Scanned,
)
from daemon.disk_cache.scan import Survey, survey, warn_of
from daemon.disk_cache.verify import Verdict, verified

log = logging.getLogger(__name__)


class Reader:
    """Works in `folder`, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, job: Read) -> ReadDone | ReadFailed:
        began = time.monotonic()
        try:
            with opened(self._folder) as folder, opened_model(folder, job.file.identity) as model:
                content, buffer, nbytes = _verified(model, job)
        except (OSError, BadFile, MemoryError) as error:
            return self._failed(job, error)
        seconds = time.monotonic() - began
        return ReadDone(job.ticket, job.file, content, buffer, nbytes, seconds)

    def _failed(self, job: Read, error: Exception) -> ReadFailed:
        why = in_words(error)
        if is_shortage(error):
            log.warning("%s could not be read: %s", job.file.name, why)
            return ReadFailed(job.ticket, job.file, why, job.buffer, is_there=True)
        if not isinstance(error, FileNotFoundError):
            log.warning("deleted %s from the disk cache: %s", job.file.name, why)
            with (
                suppress(OSError),
                opened(self._folder) as folder,
                opened_model(folder, job.file.identity) as model,
            ):
                folders.remove(model, job.file.name)
        return ReadFailed(job.ticket, job.file, why, job.buffer)

    def scan(self, job: Scan) -> Iterator[Scanned | None]:
        """One model's files, a file at each step; the last step gives the result."""
        found = Survey()
        try:
            with opened(self._folder) as folder, opened_model(folder, job.identity) as model:
                for step in survey(model, job.identity):
                    yield None
                    found = step or found
        except FileNotFoundError:
            pass  # nothing was kept of it yet
        except (OSError, MemoryError) as error:
            log.warning("the disk cache of %s cannot be read: %s", job.identity, in_words(error))
        warn_of(found.bad)
        if found.useless:
            log.info("deleted %d files that stood on nothing any more", len(found.useless))
        yield Scanned(job.identity, tuple(found.good), len(found.bad))

    def check(self, job: Check) -> Iterator[Checked | None]:
        """All files of all models, a file at each step; the last step gives the result."""
        verdict = Verdict()
        for _ in verified(self._folder, verdict):
            yield None
        job.reply.send(verdict.summary)
        yield Checked(tuple(verdict.lost), tuple(verdict.useless))


def _verified(model: int, job: Read) -> tuple[Content, bytearray, int]:
    """A file's content, if it is the very one that was asked for."""
    head, content, buffer = storing.read(model, job.file.name, job.buffer)
    if not _are_same(head.file, job.file):
        raise BadFile("it is of other tokens than it was")
    return content, buffer, head.nbytes


def _are_same(found: StoredFile, meant: StoredFile) -> bool:
    places = ((file.identity, file.parent, file.start, file.end) for file in (found, meant))
    return len(set(places)) == 1 and np.array_equal(found.tokens, meant.tokens)
