"""The disk cache without a daemon: listed, verified, cleared, on the calling thread.

A folder that is not there is an empty one, and is not made. Raises OSError if it cannot be used.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from daemon.disk_cache import folder as folders
from daemon.disk_cache.folder import Listed, opened, opened_model
from daemon.disk_cache.verify import Verdict, verified
from daemon.disk_cache.writing import delete
from daemon.disk_status import DiskCheck, DiskContents, DiskModelStatus, DiskStatus


def inventory(folder: Path) -> DiskContents:
    """What is there, by the files' names alone."""
    with suppress(FileNotFoundError), opened(folder) as root:
        now = time.time()  # a date, as those of the files
        models = [_model_status(each, files, now) for each, files in _listed(root) if files]
        disk = DiskStatus(
            folder=str(folder),
            bytes=sum(model.bytes for model in models),
            files=sum(model.files for model in models),
            unusable_bytes=sum(model.bytes for model in models),
            free_bytes=folders.free_bytes(root),
        )
        return DiskContents(disk, tuple(sorted(models, key=lambda model: model.idle_seconds)))
    return DiskContents(DiskStatus(folder=str(folder)))


def check(folder: Path) -> DiskCheck:
    """Read and verify all there is. What is wrong is deleted, with what stands on it."""
    verdict = Verdict()
    for _ in verified(folder, verdict):
        pass
    return verdict.summary


def clear(folder: Path) -> None:
    """Delete everything of ours, of all models; OSError tells what is still there."""
    with suppress(FileNotFoundError), opened(folder) as root:
        journals = folders.journals(root)
        files = [(identity, file.name) for identity, files in _listed(root) for file in files]
        for identity in folders.models(root):
            with opened_model(root, identity) as model:
                folders.remove_temporaries(model)
        if failures := delete(root, [*files, *journals]):
            raise OSError(f"not all could be deleted: {failures[0]}")


def _listed(root: int) -> list[tuple[str, list[Listed]]]:
    found = []
    for identity in folders.models(root):
        with suppress(FileNotFoundError), opened_model(root, identity) as model:
            found.append((identity, folders.listed(model)))
    return found


def _model_status(identity: str, files: Sequence[Listed], now: float) -> DiskModelStatus:
    last_used = max(file.used_at for file in files)
    return DiskModelStatus(
        identity=identity,
        files=len(files),
        bytes=sum(file.nbytes for file in files),
        blocks=sum(file.is_block for file in files),
        checkpoints=sum(not file.is_block for file in files),
        idle_seconds=max(0.0, now - last_used),
    )
