"""From a live row into the prefix tree: copies of what was read and generated.

What is captured while a prompt is read becomes an entry, for all; what a row holds in its end
becomes its session's live leaf, and an entry where the policy says so. State that the tree has
already is marked as such and not copied again.

Best effort: whatever goes wrong here costs reuse later, never an answer. A key says exactly what
the state holds; where the two disagree nothing is stored. Where to capture is decided elsewhere
(`policies`), what to keep by the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.turns import Phase, Turn
from mlx_backend.errors import StateMismatch
from mlx_backend.interface import Backend, Checkpoint, Span
from mlx_backend.messages import CacheKind, TokenIds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """What a state is kept as: for whom, and whether it is an entry beside a live leaf."""

    kind: EntryKind
    conversation: str
    holder: str | None = None
    is_shared: bool = True


class Commits:
    """Stores what rows hold. `on_stored` hears each key that entered the tree."""

    def __init__(
        self,
        backend: Backend,
        cache: PrefixCache,
        kind: CacheKind,
        on_stored: Callable[[TokenIds], None],
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._kind = kind
        self._on_stored = on_stored
        self.skipped = 0

    def stop(self, turn: Turn) -> None:
        """Capture at the chunk boundary that was just reached, if it was meant to be a stop."""
        kind = turn.stops.get(turn.position)
        if kind is not None:
            self.prefix(turn, turn.position, kind)

    def prefix(self, turn: Turn, length: int, kind: EntryKind) -> None:
        """Capture the first `length` prompt tokens: on models that can be cut, also from behind."""
        self._store(turn, turn.tokens[:length], Use(kind, turn.session.id))

    def end(self, turn: Turn, *, is_cut: bool = False) -> None:
        """Capture all that the row holds, as its request ends in whatever phase, but for errors.

        `is_cut`: it was cut short, and may well be sent again from before.
        """
        if turn.row is None:
            return
        is_partial = is_cut or turn.phase is Phase.READING
        kind = EntryKind.PARTIAL if is_partial else EntryKind.TURN_END
        self._store(turn, turn.state, Use(kind, turn.session.id, turn.holder, turn.keeps_end))

    def parked(self, turn: Turn, release: Callable[[], None]) -> None:
        """Capture all that the row holds, and store it once `release` has freed the row's memory.

        It is kept like a live leaf, whatever the policy says of entries.
        """
        use = Use(EntryKind.PARTIAL, turn.session.id, turn.holder, is_shared=False)
        self._store(turn, turn.state, use, release)

    def read_in(
        self,
        turn: Turn,
        key: TokenIds,
        span: Span | None,
        checkpoint: Checkpoint | None,
        kind: EntryKind,
    ) -> bool:
        """Store what came back from elsewhere for a turn; whether a row can be restored from it.

        `span` covers [known, len(key)) of the tree, as an `insert` wants it.
        """
        use = Use(kind, turn.session.id, turn.holder)
        is_stored = self._keep(key, use, (span, checkpoint))
        if is_stored:
            self._on_stored(key)
        return is_stored

    def _store(
        self, turn: Turn, key: TokenIds, use: Use, release: Callable[[], None] | None = None
    ) -> None:
        captured, has_captured = None, True
        try:
            captured = self._capture(turn, key, use)
        except Exception as error:
            self.skipped += 1
            has_captured = False
            is_known = isinstance(error, StateMismatch)
            log.warning(
                "request %s: captured nothing: %s", turn.request.id, error, exc_info=not is_known
            )
        if release is not None:
            release()
        if has_captured and self._keep(key, use, captured):
            self._on_stored(key)

    def _capture(
        self, turn: Turn, key: TokenIds, use: Use
    ) -> tuple[Span | None, Checkpoint | None] | None:
        """What the tree lacks of `key`; None if it wants nothing of it."""
        if not self._cache.wants(key, use.kind, use.holder, use.is_shared):
            return None
        row, length, held = turn.row, len(key), turn.state_length
        can_cut = self._kind is CacheKind.SLICEABLE
        assert row is not None
        assert length == held or (length < held and can_cut)
        if row.length != held:
            raise StateMismatch(f"the state holds {row.length} tokens instead of {held}")
        known = self._cache.known(key)
        span = self._backend.capture_span(row, known, length) if known < length else None
        return span, None if can_cut else self._backend.capture_checkpoint(row)

    def _keep(
        self, key: TokenIds, use: Use, captured: tuple[Span | None, Checkpoint | None] | None
    ) -> bool:
        """Whether a row can be restored from `key` that could not before."""
        try:
            if captured is None:
                self._cache.hold(
                    key,
                    use.holder,
                    kind=use.kind,
                    conversation=use.conversation,
                    shared=use.is_shared,
                )
                return False
            span, checkpoint = captured
            return self._cache.insert(
                key,
                span=span,
                checkpoint=checkpoint,
                kind=use.kind,
                conversation=use.conversation,
                holder=use.holder,
                shared=use.is_shared,
            )
        except Exception:
            # A tree that raised may be half changed; an empty one is always right.
            self.skipped += 1
            log.exception("the prefix cache broke and is emptied")
            self._cache.clear()
            return False
