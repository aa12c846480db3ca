"""Reads that are on their way: who waits for which, and the memory that they are read into."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TypeAlias

from daemon.disk_cache.files import StoredFile
from daemon.disk_cache.jobs import JobQueue, Read, ReadDone, ReadFailed
from daemon.disk_cache.tally import ReadRate

Heard: TypeAlias = Callable[[ReadDone | ReadFailed], None]


class Reads:
    """Belongs to the engine's thread. Memory that was read into once is kept while there are reads:
    fresh pages cost more than the reading."""

    def __init__(self, reader: JobQueue) -> None:
        self.rate = ReadRate()
        self._reader = reader
        self._tickets = count(1)
        self._waiting: dict[int, Heard] = {}
        self._spare: list[bytearray] = []

    def read(self, file: StoredFile, heard: Heard) -> None:
        ticket = next(self._tickets)
        self._waiting[ticket] = heard
        self._reader.put(Read(ticket, file, self._spare.pop() if self._spare else bytearray()))

    def hear(self, result: ReadDone | ReadFailed) -> None:
        """Tell whoever asked for it."""
        heard = self._waiting.pop(result.ticket)
        if isinstance(result, ReadDone):
            self.rate.note(result.nbytes, result.seconds)
        else:
            self.give_back(result.buffer)
        heard(result)
        if not self._waiting:
            self._spare.clear()

    def give_back(self, buffer: bytearray) -> None:
        """Nobody looks into what was read there any more."""
        if self._waiting:
            self._spare.append(buffer)
