"""Files of models that this run has not loaded: known by name and size, and the first to go."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.disk_cache.jobs import FoundFile


class Strangers:
    """In order of their last use. Pure; belongs to one thread."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], FoundFile] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def add(self, files: Iterable[FoundFile]) -> None:
        """Put files in, the longest unused first."""
        for file in files:
            self.remove(file.identity, file.name)
            self._files[file.identity, file.name] = file
            self.nbytes += file.nbytes

    def remove(self, identity: str, name: str) -> FoundFile | None:
        file = self._files.pop((identity, name), None)
        if file is not None:
            self.nbytes -= file.nbytes
        return file

    def take(self, identity: str) -> tuple[FoundFile, ...]:
        """Take out all files of one model."""
        taken = tuple(file for file in self._files.values() if file.identity == identity)
        for file in taken:
            self.remove(file.identity, file.name)
        return taken

    def all(self) -> tuple[FoundFile, ...]:
        return tuple(self._files.values())

    @property
    def oldest(self) -> FoundFile | None:
        return next(iter(self._files.values()), None)
