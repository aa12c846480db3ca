"""Turns that wait for what is read in for others, is still being written, or not known of yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from daemon.turns import Turn

SCAN = ""
"""Stands among the names of awaited files for knowing which there are."""


@dataclass(slots=True)
class _Wait:
    names: set[str]
    since: float


class Waits:
    """Who waits for which files, by name. Keeps `Turn.awaits_disk` of those that it lets go."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waits: dict[Turn, _Wait] = {}

    @property
    def since(self) -> dict[Turn, float]:
        """Since when each waits."""
        return {turn: wait.since for turn, wait in self._waits.items()}

    def add(self, turn: Turn, names: Iterable[str]) -> None:
        self._waits[turn] = _Wait(set(names), self._clock())

    def for_file(self, name: str) -> list[Turn]:
        return [turn for turn, wait in self._waits.items() if name in wait.names]

    def done_with(self, names: Iterable[str]) -> None:
        """Let those look again who wait for nothing else."""
        done = frozenset(names)
        for turn, wait in list(self._waits.items()):
            wait.names -= done
            if not wait.names:
                self.drop(turn)

    def drop(self, turn: Turn) -> None:
        """It waits no longer. Idempotent."""
        self._waits.pop(turn, None)
        turn.awaits_disk = False

    def clear(self) -> None:
        for turn in list(self._waits):
            self.drop(turn)
