"""What is on disk of all models: what this run has loaded by its index, the rest by name and size.

Pure; belongs to one thread. A model's files become known in three steps: they are listed with all
others (`list_files`), the model is loaded (`open`), and they have been read in (`fill`). In between
they count, and are not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from typing import NamedTuple

from daemon.disk_cache.files import StoredFile
from daemon.disk_cache.index import DiskIndex
from daemon.disk_cache.jobs import FoundFile
from daemon.disk_cache.strangers import Strangers


class Held(NamedTuple):
    """A file that is there. `nbytes` is 0 while it is still to be written."""

    identity: str
    name: str
    nbytes: int


@dataclass(slots=True)
class _Unread:
    """A model's files while they are read in. Those in `gone` were deleted meanwhile, all of them
    if `is_void`."""

    gone: set[str]
    listed: dict[str, FoundFile] = field(default_factory=dict)
    is_void: bool = False

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.listed.values())


class Holdings:
    def __init__(self) -> None:
        self._uses = count(1)
        self._strangers = Strangers()
        self._unread: dict[str, _Unread] = {}
        self.indexes: dict[str, DiskIndex] = {}

    @property
    def nbytes(self) -> int:
        """Of all files but those that are still to be written."""
        return self.usable_bytes + self.unusable_bytes

    @property
    def usable_bytes(self) -> int:
        return sum(index.nbytes for index in self.indexes.values())

    @property
    def unusable_bytes(self) -> int:
        return self._strangers.nbytes + sum(each.nbytes for each in self._unread.values())

    @property
    def file_count(self) -> int:
        """Of all files, those that are still to be written, too."""
        unread = sum(len(each.listed) for each in self._unread.values())
        indexed = sum(index.file_count for index in self.indexes.values())
        return len(self._strangers) + unread + indexed

    @property
    def is_reading(self) -> bool:
        return bool(self._unread)

    def is_filled(self, identity: str) -> bool:
        """Whether all that is on disk of a model is in its index."""
        return identity in self.indexes and identity not in self._unread

    def list_files(self, files: Iterable[FoundFile]) -> None:
        """What is there of all models, the longest unused first. Those that are read in already
        are known better."""
        for file in files:
            if file.identity not in self.indexes:
                self._strangers.add([file])
            elif (unread := self._unread.get(file.identity)) is not None:
                unread.listed[file.name] = file

    def open(self, identity: str, gone: Iterable[str] = ()) -> DiskIndex:
        """A model's index, still empty, whose files are to be read in. Those in `gone` are on
        their way out."""
        index = self.indexes[identity] = DiskIndex(identity, self._uses)
        listed = {file.name: file for file in self._strangers.take(identity)}
        self._unread[identity] = _Unread(set(gone), listed)
        return index

    def fill(self, identity: str, files: Iterable[tuple[StoredFile, float]]) -> list[Held]:
        """All files of a model, parents first, with their times of last use. Returns those that
        have no place in the index: they are of no use to anybody."""
        unread, index = self._unread.pop(identity), self.indexes[identity]
        useless = []
        for file, used_at in files:
            if file.name in unread.gone:
                continue
            is_void = unread.is_void
            if is_void or not index.add(file, is_written=True, used_at=used_at):
                useless.append(Held(identity, file.name, file.nbytes))
        return useless

    def remove(self, identity: str, name: str) -> list[Held]:
        """Take a file out, with all that is known to stand on it; the deepest first."""
        if (stranger := self._strangers.remove(identity, name)) is not None:
            return [Held(identity, name, stranger.nbytes)]
        if (unread := self._unread.get(identity)) is not None:
            unread.gone.add(name)
            listed = unread.listed.pop(name, None)
            return [] if listed is None else [Held(identity, name, listed.nbytes)]
        index = self.indexes.get(identity)
        return [] if index is None else list(map(_held, index.remove(name)))

    def clear(self) -> list[Held]:
        """Take everything out, what is being read in, too."""
        strangers = self._strangers.all()
        unread = chain.from_iterable(each.listed.values() for each in self._unread.values())
        held = [Held(file.identity, file.name, file.nbytes) for file in (*strangers, *unread)]
        self._strangers = Strangers()
        for each in self._unread.values():
            each.is_void = True
            each.listed.clear()
        for index in self.indexes.values():
            held += map(_held, index.clear())
        return held

    def mark(self) -> int:
        """A number for now: whatever is used from now on is used `since` then."""
        return next(self._uses)

    def oldest(self, since: int | None = None) -> Held | None:
        """What goes first: a file of a model that this run has not loaded, or else the least
        recently used one that nothing stands on, unless it was used `since` a mark."""
        if (stranger := self._strangers.oldest) is not None:
            return Held(stranger.identity, stranger.name, stranger.nbytes)
        leaves = (leaf for index in self.indexes.values() if (leaf := index.oldest()) is not None)
        oldest = min(leaves, key=lambda leaf: leaf[0], default=None)
        if oldest is None or (since is not None and oldest[0].serial >= since):
            return None
        return _held(oldest[1])

    def listed(self) -> Iterator[FoundFile]:
        """Files that are known by name and size only."""
        yield from self._strangers.all()
        for unread in self._unread.values():
            yield from unread.listed.values()


def _held(file: StoredFile) -> Held:
    return Held(file.identity, file.name, file.nbytes)
