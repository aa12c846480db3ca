"""One turn's files on their way into memory, and what they gave that others may want.

The arrays that come are imported as spans at once, so that the memory they were read into can be
used again. Runs on the engine's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from daemon.disk_cache.files import Content
from daemon.fetch_plans import Piece, Plan
from daemon.prefix_cache.cache import Match
from daemon.turns import Turn
from mlx_backend.interface import Backend, Checkpoint, Span


@dataclass(slots=True, eq=False)
class Fetch:
    """What is being read in for one turn. `pin` keeps what was in memory of its prompt, `missing`
    was not asked for yet, `on_way` files were."""

    turn: Turn
    plan: Plan
    pin: Match
    began: float
    missing: deque[Piece]
    on_way: int = 0
    nbytes: int = 0
    spans: dict[int, Span] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    is_over: bool = False

    @property
    def start(self) -> int:
        """How many tokens' spans were in memory."""
        return self.pin.common

    @property
    def is_done(self) -> bool:
        return not self.missing and not self.on_way

    @property
    def reach(self) -> int:
        """Up to which token there are spans without a gap."""
        end = self.start
        while end in self.spans:
            end += self.spans[end].length
        return end

    def span_from(self, start: int) -> Span | None:
        """All spans from `start` on, which is not before the fetch's own, as one, if any are."""
        at, whole = self.start, None
        while (span := self.spans.get(at)) is not None:
            at += span.length
            if at <= start:
                continue
            if at - span.length < start:
                _, span = span.split(start - (at - span.length))
            whole = span if whole is None else whole.join(span)
        return whole

    def take(self, backend: Backend, piece: Piece, content: Content) -> None:
        """Import what a file holds. Raises RestoreFailed if that does not fit the model."""
        file, arrays = piece.file, content.arrays
        if piece.is_checkpoint:
            self.checkpoint = backend.import_checkpoint(file.end, content.described, arrays)
        else:
            first, last = piece.start - file.start, piece.stop - file.start
            self.spans[piece.start] = backend.import_span(arrays, first, last)


@dataclass(slots=True)
class _Spare:
    """Tokens from `start` on; `turns` may still want them."""

    start: int
    span: Span
    turns: set[Turn]


class Spares:
    """Spans that files gave beyond what they were read for, until all who may want them have
    looked; by the names of the files. At most one block for each that parts from another prompt."""

    def __init__(self) -> None:
        self._spares: dict[str, _Spare] = {}

    def keep(self, name: str, start: int, span: Span, turns: Iterable[Turn]) -> None:
        self._spares[name] = _Spare(start, span, set(turns))

    def take(self, piece: Piece) -> Span | None:
        """What a piece is to give, if it is here."""
        spare = self._spares.get(piece.file.name)
        if spare is None or piece.is_checkpoint:
            return None
        first, last = piece.start - spare.start, piece.stop - spare.start
        if first < 0 or last > spare.span.length:
            return None
        span = spare.span.split(first)[1] if first else spare.span
        length = last - first
        return span.split(length)[0] if length < span.length else span

    def forget(self, turn: Turn) -> None:
        """A turn has looked, or wants nothing any more."""
        for name, spare in list(self._spares.items()):
            spare.turns.discard(turn)
            if not spare.turns:
                del self._spares[name]

    def clear(self) -> None:
        self._spares.clear()
