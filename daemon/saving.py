"""A model's tree on its way to disk, while nobody uses it: state by state, the last used first.

Never more is handed over than the disk tier lets wait for the writer, though the arrays are in
memory in any case: whoever comes meanwhile and needs the memory of what goes for it should not
find it held by a queue. So this goes on whenever the writer has written something. It is given up
when the tree may change. Runs on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from daemon.archive import Archive
from daemon.disk_tier import DiskTier
from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.kept import Kept

log = logging.getLogger(__name__)


class Saving:
    """`is_over`: nothing is left to be done. `is_whole`: all of the tree is on disk then."""

    def __init__(self, cache: PrefixCache, archive: Archive, tier: DiskTier) -> None:
        self.is_over = False
        self.is_whole = False
        self._cache = cache
        self._archive = archive
        self._tier = tier
        self._states: Iterator[Kept] = cache.states()
        self._state = next(self._states, None)
        self._offered: set[str] = set()

    def go_on(self) -> None:
        """Hand over as much as may wait for the writer now. Never raises."""
        try:
            if not self.is_over and self._archive.is_ready:
                self._go_on()
        except Exception:
            log.exception("what was read could not be handed to the disk")
            self.is_over = True

    def _go_on(self) -> None:
        while self._state is not None and self._is_room():
            if self._hand_over(self._state):
                self._state = next(self._states, None)
        if self._state is None and not self._tier.pending_bytes:
            self.is_whole = all(self._archive.holds(kept) for kept in self._cache.states())
            self.is_over = True

    def _hand_over(self, state: Kept) -> bool:
        """Whether nothing more of a state is to be handed over; else there is no room for now."""
        for file, is_taken in self._archive.hand_over(state, at_rest=True):
            if not is_taken:
                return True
            if file.name in self._offered:  # it could not be written, or went again at once
                self._states = iter(())
                return True
            self._offered.add(file.name)
            if not self._is_room():
                return False
        return True

    def _is_room(self) -> bool:
        return self._tier.pending_bytes < max(1, self._tier.options.limits.pending_bytes // 2)
