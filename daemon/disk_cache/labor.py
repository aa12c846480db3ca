"""The life of a disk thread: jobs in, results out. Threads are made in `engine`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daemon.disk_cache.jobs import JobQueue, Result


def work(folder: Path, jobs: JobQueue, post: Callable[[Result], None]) -> None:
    """Do every job in its order, until told to stop. Whatever fails is a result, never raised."""
