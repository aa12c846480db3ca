"""Every file of the disk cache read and verified, with and without a daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from daemon.disk_cache import folder as folders
from daemon.disk_cache import storing
from daemon.disk_cache.files import FileKind, StoredFile
from daemon.disk_cache.folder import in_words, is_shortage, opened, opened_model
from daemon.disk_cache.format import BadFile
from daemon.disk_cache.scan import Survey, survey
from daemon.disk_status import DiskCheck


@dataclass(slots=True)
class Verdict:
    """`bad`: what was wrong with which. What was deleted, by (identity, name): `lost` files were
    wrong, `useless` ones stood on such, or on nothing."""

    began: float = field(default_factory=time.monotonic)
    files: int = 0
    nbytes: int = 0
    bad: list[str] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)
    useless: list[tuple[str, str]] = field(default_factory=list)

    @property
    def summary(self) -> DiskCheck:
        seconds = time.monotonic() - self.began
        return DiskCheck(self.files, self.nbytes, tuple(self.bad), seconds)


def verified(folder: Path, verdict: Verdict) -> Iterator[None]:
    """Verify all there is, a file at each step, and note in `verdict` what becomes of it.

    What is wrong is deleted, with all that stands on it. A folder that cannot be read is bad.
    """
    try:
        with opened(folder) as root:
            for identity in folders.models(root):
                yield from _verify_model(root, identity, verdict)
    except FileNotFoundError:
        pass  # nothing was kept yet
    except OSError as error:
        verdict.bad.append(in_words(error))


def _verify_model(root: int, identity: str, verdict: Verdict) -> Iterator[None]:
    try:
        with opened_model(root, identity) as model:
            found = Survey()
            for step in survey(model, identity):
                yield
                found = step or found
            for name, why in found.bad.items():
                _note(verdict, identity, name, why)
            verdict.useless += ((identity, name) for name in found.useless)
            yield from _verify_files(model, [file for file, _ in found.good], verdict)
    except (OSError, MemoryError) as error:
        verdict.bad.append(f"{identity}: {in_words(error)}")


def _verify_files(model: int, files: list[StoredFile], verdict: Verdict) -> Iterator[None]:
    """Files of one model, parents before what stands on them."""
    buffer, lost = bytearray(), set[str]()
    for file in files:
        if file.parent in lost:
            verdict.useless.append((file.identity, file.name))
            folders.kept_anyway(model, file.name)
            is_lost = True
        else:
            before = len(verdict.lost)
            buffer = _verify_file(model, file, buffer, verdict)
            is_lost = len(verdict.lost) > before
        if is_lost and file.kind is FileKind.BLOCK:
            lost.add(file.key)
        yield


def _verify_file(model: int, file: StoredFile, buffer: bytearray, verdict: Verdict) -> bytearray:
    """The buffer that it was read into, for the next one."""
    try:
        _, _, buffer = storing.read(model, file.name, buffer)
    except FileNotFoundError:
        return buffer  # deleted meanwhile, by who may
    except (OSError, BadFile, MemoryError) as error:
        if is_shortage(error):
            raise
        why = in_words(error) + folders.kept_anyway(model, file.name)
        _note(verdict, file.identity, file.name, why)
    verdict.files += 1
    verdict.nbytes += file.nbytes
    return buffer


def _note(verdict: Verdict, identity: str, name: str, why: str) -> None:
    verdict.bad.append(f"{identity}/{name}: {why}")
    verdict.lost.append((identity, name))
