"""Plays requests against a prefix cache the way the engine does, with state that is its tokens.

Every restored snapshot is decoded and compared with the prompt, and every invariant is walked
after every call, so a scenario only has to say what was reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from daemon.prefix_cache.cache import Match, PrefixCache
from daemon.prefix_cache.checkpoints import (
    MESSAGE_SPACING,
    EntryKind,
    PromptEnd,
    checkpoint_offsets,
)
from daemon.prefix_cache.nodes import NODE_BYTES
from mlx_backend.messages import CacheKind, Marks, MessageStart, Prompt, TokenIds, token_ids
from tests.fakes import FakeCheckpoint, FakeSpan

UNLIMITED = 1 << 40
CHECKPOINT_BYTES = 1_000_000
TOKEN_BYTES = 16
KINDS = pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])


def text(length: int, seed: int) -> list[int]:
    """Filler ids, different for each seed."""
    return np.random.default_rng(seed).integers(0, 50_000, length).tolist()


def starts(offsets: Iterable[int]) -> tuple[MessageStart, ...]:
    """Messages that begin at these offsets: a user and an assistant in turn."""
    return tuple(
        MessageStart(offset, index, ("user", "assistant")[index % 2])
        for index, offset in enumerate(offsets)
    )


@dataclass
class Traffic:
    """A cache with a model's state in front of it.

    `holds_leaves`: each session holds the state after its last turn. `keeps_entries`: turns stay
    as entries too, not only while they are held. `walks_every_step`: invariants are walked
    after every step, not only looked at.
    """

    kind: CacheKind
    max_entries: int | None = None
    max_bytes: int = UNLIMITED
    max_arrays: int = 400_000
    minimum_gap: int = 16
    message_spacing: int = MESSAGE_SPACING
    checkpoint_bytes: int = CHECKPOINT_BYTES
    block_tokens: int = 64
    holds_leaves: bool = False
    keeps_entries: bool = True
    walks_every_step: bool = True
    now: float = 0.0
    cache: PrefixCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = PrefixCache(
            kind=self.kind,
            max_entries=self.max_entries,
            max_bytes=self.max_bytes,
            max_arrays=self.max_arrays,
            minimum_gap=self.minimum_gap,
            clock=lambda: self.now,
        )

    def request(
        self,
        tokens: Sequence[int],
        *,
        answer: Sequence[int] = (),
        marks: Marks | None = None,
        messages: tuple[MessageStart, ...] = (),
        session: str = "anonymous",
        cancelled_at: int | None = None,
    ) -> int:
        """Restore, read with its stops, decode, commit; how many tokens were reused."""
        ids = token_ids(tokens)
        match = self.match(ids)
        self.cache.release(match)
        self.check()
        stops = checkpoint_offsets(
            match.length,
            Prompt(ids, marks or Marks(is_raw=True), messages),
            cache_kind=self.kind,
            common=match.common,
            prompt_end=PromptEnd.EVERY if self.keeps_entries else PromptEnd.INITIAL,
            opening=not self.cache.held(session)[0],
            message_spacing=self.message_spacing,
        )
        for stop in stops:
            if cancelled_at is None or stop.offset <= cancelled_at:
                self.store(ids[: stop.offset], stop.kind, session)
        holder = session if self.holds_leaves else None
        last = (holder, self.keeps_entries)
        if cancelled_at is not None:
            self.store(ids[:cancelled_at], EntryKind.PARTIAL, session, *last)
        elif answer:
            self.store(token_ids([*tokens, *answer]), EntryKind.TURN_END, session, *last)
        return match.length

    def match(self, tokens: Sequence[int] | TokenIds) -> Match:
        ids = token_ids(tokens)
        expected = self.cache.peek(ids)
        match = self.cache.match(ids)
        self.check()
        assert match.length == expected
        assert match.length <= max(0, len(ids) - 1)
        assert match.length <= match.common == self.cache.known(ids)
        assert restored(match, self.kind) == ids[: match.length].tolist()
        return match

    def store(
        self,
        tokens: Sequence[int] | TokenIds,
        kind: EntryKind = EntryKind.TURN_END,
        session: str = "anonymous",
        holder: str | None = None,
        shared: bool = True,
    ) -> bool:
        """Capture what the tree does not hold, as the engine does; False if nothing was."""
        ids = token_ids(tokens)
        mark = {"kind": kind, "conversation": session, "holder": holder, "shared": shared}
        if not self.cache.wants(ids, kind, holder, shared):
            if holder is not None:
                self.cache.hold(ids, **mark)
                self.check()
            return False
        stored = self.cache.insert(
            ids, span=self.span(ids), checkpoint=self.checkpoint(ids), **mark
        )
        self.check()
        return stored

    def check(self) -> None:
        if self.walks_every_step:
            self.cache.check()
            return
        status = self.cache.status()
        assert status.bytes <= status.max_bytes
        assert status.arrays <= status.max_arrays
        assert status.max_entries is None or status.entries <= status.max_entries

    def span(self, ids: TokenIds) -> FakeSpan | None:
        known = self.cache.known(ids)
        if known == len(ids):
            return None
        return FakeSpan.of(ids[known:], self.block_tokens, TOKEN_BYTES)

    def checkpoint(self, ids: TokenIds) -> FakeCheckpoint | None:
        if self.kind is not CacheKind.CHECKPOINTED:
            return None
        return FakeCheckpoint(tuple(ids.tolist()), self.checkpoint_bytes)


def restored(match: Match, kind: CacheKind) -> list[int]:
    """The tokens that a row restored from the match would hold."""
    if match.snapshot is None:
        assert match.length == 0
        return []
    assert match.snapshot.length == match.length
    tokens = [token for span in match.snapshot.spans for token in span.tokens]
    if kind is CacheKind.CHECKPOINTED:
        assert list(match.snapshot.checkpoint.tokens) == tokens, "checkpoint and spans disagree"
    else:
        assert match.snapshot.checkpoint is None
        assert sum(s.length for s in match.snapshot.spans[:-1]) < match.length, "a needless span"
    return tokens[: match.length]


def bytes_of(*, tokens: int = 0, nodes: int = 0, checkpoints: int = 0) -> int:
    """What that many tokens, nodes and checkpoints take in a `Traffic` with default sizes."""
    return tokens * (TOKEN_BYTES + 4) + nodes * NODE_BYTES + checkpoints * CHECKPOINT_BYTES


@dataclass
class Conversation:
    """An agent's session: its rendered history, and the prompt of its next turn.

    `drops_thinking`: the template renders past turns without what was thought in them.
    """

    traffic: Traffic
    session: str
    head: list[int]
    seed: int
    user_length: int = 60
    thinking_length: int = 0
    answer_length: int = 40
    history: list[int] = field(default_factory=list)
    turns: int = 0
    generation_tail: tuple[int, ...] = (50_001, 50_002, 50_003)

    def prompt(self) -> tuple[list[int], Marks]:
        """The next prompt; asking again before `turn` gives the same one."""
        user = text(self.user_length, self.seed * 1_000 + self.turns)
        body = [*self.head, *self.history, *user]
        marks = Marks(head_end=len(self.head), last_user_end=len(body), stable_end=len(body))
        return [*body, *self.generation_tail], marks

    def turn(self) -> int:
        """Play one turn to its end; how many of its prompt tokens were reused."""
        tokens, marks = self.prompt()
        thinking = text(self.thinking_length, self.seed * 1_000 + self.turns + 500)
        answer = text(self.answer_length, self.seed * 1_000 + self.turns + 700)
        reused = self.traffic.request(
            tokens, answer=[*thinking, *answer], marks=marks, session=self.session
        )
        self.history = [*tokens[len(self.head) :], *answer]
        self.turns += 1
        return reused

    @property
    def last_boundary(self) -> int:
        """Where the last prompt's user message ended; 0 before the first turn."""
        answered = len(self.generation_tail) + self.answer_length
        return max(0, len(self.head) + len(self.history) - answered) if self.turns else 0
