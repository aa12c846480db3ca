"""The live rows of one model, within the memory that they share with the prefix cache.

Invariant, after each call: rows' bytes + cache bytes ≤ budget. A row is accounted with what it
will take before it asks again: its room, its share of a batch's padding, its full rings. To make
room the cache gives back entries, least recently used first; never those in use, and nothing at
all where even all of them would not be enough. That a turn has to wait or to be parked is said
here; it is done in `inference`. Runs on the engine's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from daemon.budget import Budget
from daemon.prefix_cache.cache import Match, PrefixCache
from daemon.prefix_cache.nodes import NODE_BYTES, TOKEN_BYTES
from daemon.turns import Turn
from mlx_backend.errors import RestoreFailed
from mlx_backend.interface import Backend, Row, Sampled
from mlx_backend.messages import TokenIds

log = logging.getLogger(__name__)


class Rows:
    """Opens, grows and closes the rows of `turns`, the engine's own list, seen as it changes."""

    def __init__(
        self,
        turns: Sequence[Turn],
        backend: Backend,
        cache: PrefixCache,
        budget: Budget,
        on_misfit: Callable[[TokenIds], None] = lambda tokens: None,
    ) -> None:
        """`on_misfit` hears of which tokens a state could not be restored."""
        self._on_misfit = on_misfit
        self.budget = budget
        self._turns = turns
        self._backend = backend
        self._cache = cache
        self._batch_copies = 0

    @property
    def open_turns(self) -> list[Turn]:
        return [turn for turn in self._turns if turn.row is not None]

    @property
    def reserved_bytes(self) -> int:
        """What the rows may grow to before they ask again, and what is being read in for turns."""
        return sum(turn.row_bytes for turn in self._turns)

    def open(self, turn: Turn) -> Match | None:
        """Look the turn's tokens up and restore what is there; None if it has to wait.

        The match is what the tree said; it stays pinned in `turn.match` if it could be restored.
        """
        if self.is_refused(turn):
            return None
        turn.row_bytes = 0  # what was set aside for it
        reserved, was_set_aside = self.reserved_bytes, _is_set_aside(turn)
        match = self._found(turn)
        self.close(turn)
        if match is None and was_set_aside:
            match = self._found(turn)  # not all that was kept for it can stay beside its row
        if match is None:
            turn.refused_at = reserved
            return None
        turn.refused_at = None
        turn.match = match
        turn.row = self._restored(turn, match)
        self._weigh([turn])
        return match

    def is_refused(self, turn: Turn) -> bool:
        """Whether there was no room for its row, and nobody has left since."""
        return turn.refused_at is not None and turn.refused_at == self.reserved_bytes

    def reserve(self, turn: Turn, tokens: int) -> bool:
        """Make room for the state of so many tokens that is read in for a turn without a row, and
        for the row, unless it has all to itself; False if there is none.

        Then it gets a row when somebody has left, not before: it would be read for want of memory.
        """
        self.close(turn)
        nbytes = tokens * self.budget.token_bytes + self.budget.whole_bytes
        with_row = nbytes + self._row_bytes(turn)
        is_alone = not self.reserved_bytes
        if not self._make_room(with_row) and not (is_alone and self._make_room(nbytes)):
            turn.refused_at = None if is_alone else self.reserved_bytes
            return False
        turn.row_bytes = with_row
        return True

    def set_aside(self, turn: Turn, tokens: TokenIds) -> None:
        """Keep what the tree has of `tokens`, and memory for the row, until that is opened: it
        would be read in for nothing if others took either meanwhile."""
        turn.match, turn.refused_at = self._cache.pin(tokens), None
        turn.row_bytes = self._row_bytes(turn)

    def first_set_aside(self) -> Turn | None:
        """Who has been waiting longest of those for whom that was done, and waits no longer."""
        set_aside = filter(_is_set_aside, self._turns)
        return next((turn for turn in set_aside if not turn.awaits_disk), None)

    def take_back(self) -> bool:
        """Let go of what was set aside last; False if nothing is."""
        turn = next(filter(_is_set_aside, reversed(self._turns)), None)
        if turn is not None:
            self.close(turn)
        return turn is not None

    def storable_tokens(self, turn: Turn) -> int:
        """How many of a turn's tokens the cache can hold beside its row, at most."""
        budget, limit = self.budget, self._cache.status().max_bytes
        if budget.max_bytes is not None:
            limit = min(limit, budget.max_bytes - self._row_bytes(turn))
        limit -= budget.whole_bytes + 2 * NODE_BYTES
        return max(0, limit // (budget.token_bytes + TOKEN_BYTES))

    def close(self, turn: Turn) -> None:
        """Release the row and the match, if there are any. Idempotent."""
        if turn.row is not None:
            self._backend.release(turn.row)
            turn.row = None
            self._weigh(self.open_turns)  # what it leaves in a batch is theirs
        turn.row_bytes = 0
        if turn.match is not None:
            self._cache.release(turn.match)
            turn.match = None

    def stop_decoding(self, turn: Turn) -> Sampled:
        """Close a decoding turn's row; the token that was drawn next comes back."""
        assert turn.row is not None
        sampled = self._backend.stop_decoding(turn.row)
        self.close(turn)
        return sampled

    def full(self, turns: Iterable[Turn]) -> list[Turn]:
        """Those that have no room for their next token, the oldest first."""
        full = [t for t in turns if t.row is not None and t.row.length >= t.row.room]
        return sorted(full, key=lambda turn: turn.arrival)

    def grow(self, turn: Turn) -> bool:
        """Give the row room for one more step; False if that does not fit. Raises StepFailed."""
        row = turn.row
        assert row is not None
        self._compact()
        room = self.budget.row_room(row.length, turn.to_come)
        if not self._make_room(self._backend.growth_bytes(row, room)):
            return False
        self._backend.grow_row(row, room)
        self._weigh(self.open_turns)
        return True

    def step(self) -> list[Sampled]:
        """One token of every decoding row; rows share a batch where there is room for it."""
        left = self._left(0)
        sampled = self._backend.step(None if left is None else max(0, left))
        copies = self._backend.counters.batch_copies
        if copies != self._batch_copies:
            self._batch_copies = copies
            self._weigh(self.open_turns)
        return sampled

    def settle(self, turn: Turn | None = None) -> None:
        """Hold the invariant after something was stored, or `turn` has read."""
        if turn is not None and turn.row is not None:
            self._weigh([turn])
        left = self._left_compact(0)
        if left is not None and left < 0:
            self._cache.give_back(-left)

    def _found(self, turn: Turn) -> Match | None:
        """What the tree holds of a turn for whose row there is room now."""
        need = self._row_bytes(turn)
        limit = self.budget.max_bytes
        if limit is not None and self.reserved_bytes + need > limit:
            return None
        if self._can_make_room(need, keeping=turn.tokens):
            match = self._cache.match(turn.tokens, turn.session.id)
            if self._make_room(need):
                return match
            self._cache.release(match)
        if self.open_turns or self.reserved_bytes or not self._make_room(need):
            return None
        return self._cache.match(turn.tokens, turn.session.id)  # what was left of its own prefix

    def _row_bytes(self, turn: Turn) -> int:
        """What a turn's row will be accounted with when it is opened."""
        return self.budget.row_bytes(self.budget.row_room(len(turn.tokens), turn.to_come))

    def _make_room(self, need: int) -> bool:
        """Free what `need` bytes lack; False, and nothing freed, where that cannot be done."""
        if not self._can_make_room(need):
            return False
        left = self._left(need)
        if left is None or left >= 0:
            return True
        self._cache.give_back(-left)
        left = self._left(need)
        return left is None or left >= 0

    def _can_make_room(self, need: int, keeping: TokenIds | None = None) -> bool:
        """Whether `need` bytes are free, or would be without all that the cache need not keep."""
        left = self._left_compact(need)
        return left is None or left >= 0 or self._cache.freeable_bytes(keeping) >= -left

    def _left_compact(self, need: int) -> int | None:
        """What is left beside `need`; before that is too little, batches that rows have left are
        made smaller, instead of with the next step."""
        left = self._left(need)
        if left is None or left >= 0:
            return left
        self._compact()
        return self._left(need)

    def _compact(self) -> None:
        self._backend.compact()
        self._weigh(self.open_turns)

    def _left(self, need: int) -> int | None:
        return self.budget.left(self.reserved_bytes + need, self._cache.status().bytes)

    def _restored(self, turn: Turn, match: Match) -> Row:
        room = self.budget.row_room(len(turn.tokens), turn.to_come)
        try:
            row = self._backend.open_row(match.snapshot, room)
            if row.length == match.length:
                return row
            self._backend.release(row)
            raise RestoreFailed(f"{row.length} tokens came back, not {match.length}")
        except RestoreFailed as error:
            log.warning("request %s: restore failed, reading it all: %s", turn.request.id, error)
            self._cache.reject(match)
            self._on_misfit(turn.tokens[: match.length])
            turn.match = None
        return self._backend.open_row(None, room)

    def _weigh(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            if turn.row is not None:
                expected = self.budget.row_bytes(turn.row.room)
                turn.row_bytes = max(turn.row.nbytes, expected)


def _is_set_aside(turn: Turn) -> bool:
    return turn.row is None and turn.match is not None
