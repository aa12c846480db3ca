"""A model's tree, or what of it nobody uses, on its way to disk: the last used state first.

Never more is handed over than the disk tier lets wait for the writer, though the arrays are in
memory in any case: whoever comes meanwhile and needs the memory of what goes for it should not
find it held by a queue. And only a little is done at a time, so that nobody who comes waits for
long. It is given up when the tree may change.

Where the disk is full, no state gives way to one that was used before it: what does not fit stays
out, and nothing is written each time in the place of the last. Runs on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from daemon.archive import Archive
from daemon.disk_cache.files import StoredFile
from daemon.disk_tier import DiskTier
from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.kept import Kept

log = logging.getLogger(__name__)

STATES_AT_ONCE = 4
"""Looked up, and handed over, before anybody else has a turn: a few milliseconds."""


class Saving:
    """`is_over`: nothing is left to be done. `is_whole`: then all of the tree has been written."""

    def __init__(
        self, cache: PrefixCache, archive: Archive, tier: DiskTier, idle_seconds: float = 0.0
    ) -> None:
        """`idle_seconds`: only what was not used for so long."""
        self.is_over = False
        self.is_whole = False
        self._since = tier.mark()
        self._ends: list[StoredFile] = []
        self._archive = archive
        self._tier = tier
        self._cache = cache
        self._states: Iterator[Kept] = cache.states(idle_seconds)
        first = next(self._states, None)
        self._next_tokens = None if first is None else first.tokens
        self._are_left = first is not None
        self._offered: set[str] = set()
        self._is_complete = True

    @property
    def can_go_on(self) -> bool:
        """Whether there is something to hand over, and room for it."""
        return self._are_left and not self.is_over and self._archive.is_ready and self._is_room()

    def go_on(self) -> None:
        """Hand over some of what may wait for the writer now. Never raises."""
        for _ in range(STATES_AT_ONCE):
            if self.can_go_on:
                self._hand_over_next()
        if not (self._are_left or self.is_over or self._tier.pending_bytes):
            self.is_over = True
            are_written = all(self._archive.is_written(name) for name in self._offered)
            self.is_whole = self._is_complete and are_written
            self._put_in_order()

    def _put_in_order(self) -> None:
        """What was used last is what goes last, in this run and in the next."""
        while self._ends:
            self._tier.put_last(self._ends.pop())
        self._tier.note_uses()

    def _hand_over_next(self) -> None:
        try:
            state = self._next_state()
            self._are_left = state is not None
            if state is not None and not self._hand_over(state):
                self._next_tokens = state.tokens
        except Exception:
            log.exception("a state could not be handed to the disk")
            self._is_complete = False

    def _next_state(self) -> Kept | None:
        """The first one, and one that there was no room for all of, are looked up anew: they may
        have left memory, which was not to be kept for them."""
        tokens, self._next_tokens = self._next_tokens, None
        state = None if tokens is None else self._cache.state(tokens)
        return state or next(self._states, None)

    def give_up(self) -> None:
        """Hand over nothing more."""
        self.is_over, self._states, self._next_tokens = True, iter(()), None

    def _hand_over(self, state: Kept) -> bool:
        """Whether nothing more of a state is to be handed over; else there is no room for now."""
        for file in self._archive.ends(state.tokens):
            self._tier.put_last(file)
        is_done = self._hand_over_files(state)
        if is_done:
            self._ends += reversed(self._archive.ends(state.tokens))
        return is_done

    def _hand_over_files(self, state: Kept) -> bool:
        files = self._archive.hand_over(state, at_rest=True, since=self._since)
        for file, is_taken in files:
            if not is_taken:
                self._is_complete = False
                return True
            if file.name in self._offered:  # it could not be written, or went again at once
                self._is_complete, self._states = False, iter(())
                return True
            self._offered.add(file.name)
            if not self._is_room():
                return False
        return True

    def _is_room(self) -> bool:
        return self._tier.pending_bytes < max(1, self._tier.options.limits.pending_bytes // 2)
