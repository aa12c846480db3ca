"""One request on the engine's thread: how far it has come and what it still has to read.

A turn is mutable and belongs to that thread alone; others see its events and its record. It
knows nothing of arrays (its row is opaque), of the tree or of other turns, but for the one that
it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from daemon.deliveries import Generation
from daemon.generation import FinishReason, GenerationRequest, Usage
from daemon.prefix_cache.cache import Match
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.explain import Departure, FromDisk, cut_short, departure, read_reason
from daemon.sessions import Session
from daemon.status import ReadReason
from mlx_backend.interface import Row
from mlx_backend.messages import TokenIds, token_ids


class Phase(StrEnum):
    """Where a request is; the words of `RequestStatus.phase`."""

    WAITING = "waiting"  # no row yet
    PARKED = "parked"  # gave its row up for want of memory; goes on when there is some
    READING = "reading"  # has a row; perhaps paused in favour of a shorter prompt
    DECODING = "decoding"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Turn:
    """`arrival` numbers the requests in order. Offsets and counts are tokens, times clock seconds.

    held: tokens that the tree would restore, as last seen; an estimate for ranking only.
    on_disk: the same of what would be read in from the disk first.
    left_on_disk: as much of it is there, but was not waited for.
    awaits_disk: no row is opened for it before the disk has done something.
    fetches: how often something was read in for it; fetched: which of its tokens that gave.
    overtaken: tokens read for later arrivals in its stead (see the scheduler).
    leader, fork: the turn being read that will pass `fork`, where this one can go on from.
    row_bytes: what the row is accounted with; before there is one, what is being read in for it.
    refused_at: what all rows were accounted with when there was no room for this one.
    position: tokens in the row while it reads; clean chunk boundaries only, all once it decodes.
    past: what has to be in the state before it goes on, once it was parked while it decoded.
    stops: offsets where reading pauses to capture, with what they are.
    outputs: every sampled token, the stop id included, as they are in the row's state.
    opens_session: whether this prompt opens its session, once its reading has begun.
    keeps_end: whether what the row holds in the end becomes an entry, beside a live leaf.
    """

    generation: Generation
    arrival: int
    arrived: float
    session: Session
    phase: Phase = Phase.WAITING
    held: int = 0
    on_disk: int = 0
    left_on_disk: int = 0
    lost_on_disk: int = 0
    awaits_disk: bool = False
    fetches: int = 0
    fetched: list[range] = field(default_factory=list)
    disk_bytes: int = 0
    disk_seconds: float = 0.0
    overtaken: int = 0
    leader: Turn | None = None
    fork: int = 0
    match: Match | None = None
    row: Row | None = None
    row_bytes: int = 0
    refused_at: int | None = None
    past: TokenIds | None = None
    reused: int = 0
    position: int = 0
    stops: dict[int, EntryKind] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)
    generated: int = 0
    reason: ReadReason | None = None
    departure: Departure | None = None
    error: str | None = None
    opens_session: bool | None = None
    keeps_end: bool = True
    epoch: int = field(init=False)
    started: float | None = None
    first_token: float | None = None
    ended: float | None = None
    finish: FinishReason | None = None

    def __post_init__(self) -> None:
        self.epoch = self.session.epoch

    def explain(self, match: Match, *, restore_failed: bool) -> None:
        """Record why it is read as far as it is, now that its turn has come."""
        prompt = self.request.prompt
        self.reason = read_reason(
            match, prompt, restore_failed=restore_failed, from_disk=self.from_disk
        )
        self.departure = departure(match, prompt)

    def end(self, phase: Phase, now: float, finish: FinishReason | None = None) -> None:
        """It has ended in that phase; the reason says no longer that all was read if it was not."""
        self.phase, self.ended, self.finish = phase, now, finish
        usage = self.usage
        to_read = usage.prompt - usage.reused
        if self.reason is not None and usage.read < to_read:
            self.reason = cut_short(self.reason, usage.read, to_read)

    @property
    def from_disk(self) -> FromDisk:
        """What of it came from disk; tokens are those among the reused ones."""
        tokens = sum(len(range(each.start, min(each.stop, self.reused))) for each in self.fetched)
        left = self.left_on_disk if self.left_on_disk > self.reused else 0
        lost = self.lost_on_disk if self.lost_on_disk > self.reused else 0
        return FromDisk(tokens, self.disk_bytes, self.disk_seconds, left, lost)

    def note_fetched(self, tokens: range) -> None:
        """Those were read in, behind what memory still had. What was fetched earlier and lost again
        is not counted twice, nor what was once reused already."""
        if self.started is None:
            kept = [range(each.start, min(each.stop, tokens.start)) for each in self.fetched]
            self.fetched = [*(each for each in kept if each), tokens]

    @property
    def holder(self) -> str | None:
        """The session that keeps this turn's end as its live leaf, unless it was reset."""
        return self.session.id if self.session.epoch == self.epoch else None

    @property
    def request(self) -> GenerationRequest:
        return self.generation.request

    @property
    def tokens(self) -> TokenIds:
        """What is read before it decodes: the prompt, or all its past if it was parked."""
        return self.request.prompt.tokens if self.past is None else self.past

    @property
    def readable(self) -> int:
        """Tokens that chunks can read: the last one is run by the first decode step."""
        return len(self.tokens) - 1

    @property
    def to_come(self) -> int:
        """Tokens that it may still generate."""
        return self.request.max_tokens - self.generated

    @property
    def is_queued(self) -> bool:
        """Whether it waits for a row."""
        return self.phase in (Phase.WAITING, Phase.PARKED)

    @property
    def left(self) -> int:
        """Tokens still to read before the first answer token, as far as is known."""
        return self.readable - max(0 if self.is_queued else self.position, self.at_hand)

    @property
    def at_hand(self) -> int:
        """Tokens that it need not read, as far as is known."""
        return max(self.held, self.on_disk)

    @property
    def state_length(self) -> int:
        """How many tokens the row must hold: what was read, and later what was sampled.

        Until the first step, the prompt's last token may be in it or not: the row knows.
        """
        if self.phase is not Phase.DECODING:
            return self.position
        if not self.outputs and self.row is not None and self.row.length == self.readable:
            return self.readable
        return len(self.request.prompt) + len(self.outputs)

    @property
    def state(self) -> TokenIds:
        """The tokens that the row must hold."""
        tokens = self.history() if self.phase is Phase.DECODING else self.tokens
        return tokens[: self.state_length]

    @property
    def usage(self) -> Usage:
        prompt = len(self.request.prompt)
        done = prompt if self.outputs else self.position
        return Usage(prompt, self.reused, max(0, done - self.reused), self.generated)

    def history(self) -> TokenIds:
        """The prompt and every sampled token: what the state of a decoding row is."""
        return np.concatenate((self.request.prompt.tokens, token_ids(self.outputs)))
