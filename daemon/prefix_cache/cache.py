"""The prefix cache: what was read, found again by the ids of the whole new prompt.

Single-threaded (the engine's thread owns every span). A key is exact state: what is stored under
n tokens holds n tokens, checked when it is stored; in doubt it is refused, counted and never
stored. A match never covers a whole prompt: one token is left to run.

Snapshots handed out are immutable and stay valid whatever happens to the tree; pins only keep the
tree from evicting what somebody is about to build on. Where to capture is decided in
`checkpoints`, what goes when there is no room in `eviction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from daemon.prefix_cache.admission import affordable_tokens, is_over_large
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.eviction import Limits, Shrink
from daemon.prefix_cache.radix_tree import Node, Place, RadixTree
from daemon.prefix_cache.tombstones import Tombstones
from daemon.status import CacheStatus
from mlx_backend.interface import Checkpoint, Snapshot, Span
from mlx_backend.messages import CacheKind, TokenIds

SHARED_KINDS = frozenset({EntryKind.HEAD, EntryKind.FORK})
"""Entries that say nothing of whose conversation goes on behind them."""


class Reason(StrEnum):
    """Why a match is no longer than it is."""

    OFF = "off"  # this model's state, or a limit of zero, allows no reuse
    FIRST_SEEN = "first_seen"  # nothing stored begins with these tokens
    CONTINUES = "continues"  # all that is stored of this prompt was restored
    EVICTED = "evicted"  # more could be restored before something was evicted
    NO_CHECKPOINT = "no_checkpoint"  # more is stored, but no row can be restored there


@dataclass(slots=True, eq=False)
class Match:
    """What a prompt shares with the tree; pinned until it is released.

    `length` tokens can be restored from `snapshot`; `common` tokens lie on a path of the tree;
    `lost` tokens could have been restored before something was evicted (0: no more than now).
    """

    length: int = 0
    common: int = 0
    lost: int = 0
    snapshot: Snapshot | None = None
    why: Reason = Reason.FIRST_SEEN
    pinned: Node | None = None


@dataclass(slots=True)
class Counts:
    """What happened to the cache since it was made."""

    hits: int = 0
    misses: int = 0
    evicted_entries: int = 0
    thinned_checkpoints: int = 0
    failed_restores: int = 0
    skipped_captures: int = 0


class PrefixCache:
    """The tree, its limits and its counters. Lengths are tokens."""

    def __init__(
        self,
        *,
        kind: CacheKind,
        max_entries: int | None,
        max_bytes: int,
        max_arrays: int = 400_000,
        minimum_gap: int = 16,
    ) -> None:
        self._kind = kind
        self._limits = Limits(max_entries, max_bytes, max_arrays)
        self._minimum_gap = minimum_gap
        self._is_off = kind is CacheKind.UNCACHEABLE or max_entries == 0
        self._tree = RadixTree()
        self._tombstones = Tombstones()
        self._counts = Counts()
        self._clock = 0

    def peek(self, tokens: TokenIds) -> int:
        """How many tokens a match would restore now; pins and touches nothing."""
        return self._restorable(self._tree.find(tokens), len(tokens))[1]

    def common(self, tokens: TokenIds) -> int:
        """How many tokens lie on a path of the tree, whether a row can be restored there or not."""
        return self._tree.find(tokens).length

    def known(self, tokens: TokenIds) -> int:
        """How many tokens' spans the tree holds: what is to be captured is [known, len)."""
        return self._tree.find(tokens).length

    def match(self, tokens: TokenIds) -> Match:
        """What can be restored of a prompt. It counts as use and pins until released."""
        place = self._tree.find(tokens)
        node, length = self._restorable(place, len(tokens))
        match = Match(length=length, common=place.length)
        self._explain(match, len(tokens), self._tombstones.longest(tokens))
        if not length:
            self._counts.misses += 1
            return match
        self._counts.hits += 1
        spans = tuple(on_path.span for on_path in node.path() if on_path.span is not None)
        match.snapshot = Snapshot(length=length, spans=spans, checkpoint=node.checkpoint)
        match.pinned = node
        node.pins += 1
        self._touch(node)
        return match

    def release(self, match: Match) -> None:
        """Take back the match's pin. Idempotent."""
        node, match.pinned = match.pinned, None
        if node is None:
            return
        node.pins -= 1
        if node.parent is not None:
            self._tree.tidy(node)
            self._shrink()

    def reject(self, match: Match) -> None:
        """Its restore failed: drop what it came from, so that it cannot fail again."""
        node = match.pinned
        self._counts.failed_restores += 1
        if node is not None and node.parent is not None:
            while node.parent.parent is not None and node.start >= match.length:
                node = node.parent  # the edge was split after the match
            if self._kind is CacheKind.CHECKPOINTED and node.children:
                self._tree.unmark(node)
            else:
                self._tree.remove(node)
        self.release(match)

    def wants(self, tokens: TokenIds, kind: EntryKind) -> bool:
        """Whether an entry here would add anything; ask before capturing."""
        if self._is_off or not len(tokens):
            return False
        place = self._tree.find(tokens)
        if self._kind is CacheKind.SLICEABLE:
            return place.length < len(tokens)
        return not self._is_near(place, len(tokens))

    def insert(
        self,
        tokens: TokenIds,
        *,
        span: Span | None,
        checkpoint: Checkpoint | None,
        kind: EntryKind,
        conversation: str,
    ) -> bool:
        """Store the state after `tokens`; `span` covers [known, len), None where that is empty.

        True if a row can be restored from here afterwards (or, on sliceable models, from as much
        of it as fits). False: skipped and counted. `conversation` is a hint for retention.
        """
        place = self._tree.find(tokens)
        is_stored = False
        if not self._is_off and self._is_exact(place, len(tokens), span, checkpoint):
            if self._kind is CacheKind.SLICEABLE:
                is_stored = self._store_span(place, tokens, span, kind, conversation)
            elif checkpoint is not None:
                is_stored = self._store_checkpoint(
                    place, tokens, span, checkpoint, kind, conversation
                )
        self._counts.skipped_captures += not is_stored
        return is_stored

    def clear(self) -> None:
        """Forget everything, pinned or not; the counters stay. Works on a broken tree too."""
        self._tree.abandon()
        self._tree = RadixTree()

    def status(self) -> CacheStatus:
        totals, counts = self._tree.totals, self._counts
        return CacheStatus(
            entries=totals.entries,
            max_entries=self._limits.max_entries,
            tokens=totals.tokens,
            bytes=totals.bytes,
            max_bytes=self._limits.max_bytes,
            span_bytes=totals.span_bytes,
            checkpoint_bytes=totals.checkpoint_bytes,
            checkpoints=totals.checkpoints,
            index_bytes=totals.index_bytes,
            arrays=totals.arrays,
            hits=counts.hits,
            misses=counts.misses,
            evicted_entries=counts.evicted_entries,
            thinned_checkpoints=counts.thinned_checkpoints,
            failed_restores=counts.failed_restores,
            skipped_captures=counts.skipped_captures,
        )

    def check(self) -> None:
        """Walk every invariant; AssertionError names the one that is broken."""
        self._tree.check()
        nodes = list(self._tree.nodes())
        sliceable = self._kind is CacheKind.SLICEABLE
        for node in nodes:
            assert (node.checkpoint is None) == (sliceable or node.kind is None), (
                "an entry has a checkpoint exactly where the model needs one"
            )
            assert not (sliceable and node.kind and node.children), "an entry was not superseded"
        in_use = any(node.pins for node in nodes)
        assert in_use or self._limits.allow(self._tree.totals), "over a limit with nothing in use"
        assert not (self._is_off and nodes), "something is stored though the cache is off"

    def _restorable(self, place: Place, prompt_length: int) -> tuple[Node, int]:
        """The deepest node a row can be restored from, and up to which length."""
        node, most = place.node, min(place.length, prompt_length - 1)
        if self._kind is CacheKind.SLICEABLE:
            while node.parent is not None and node.start >= most:
                node = node.parent
            return node, max(0, most)
        while node.parent is not None and (node.end > most or node.checkpoint is None):
            node = node.parent
        return node, node.end

    def _explain(self, match: Match, prompt_length: int, once_restorable: int) -> None:
        if self._is_off:
            match.why = Reason.OFF
        elif once_restorable > match.length:
            match.why, match.lost = Reason.EVICTED, once_restorable
        elif not match.common:
            match.why = Reason.FIRST_SEEN
        elif match.length < min(match.common, prompt_length - 1):
            match.why = Reason.NO_CHECKPOINT
        else:
            match.why = Reason.CONTINUES

    @staticmethod
    def _is_exact(
        place: Place, length: int, span: Span | None, checkpoint: Checkpoint | None
    ) -> bool:
        covered = place.length + (span.length if span is not None else 0)
        return covered == length > 0 and (checkpoint is None or checkpoint.length == length)

    def _is_near(self, place: Place, length: int) -> bool:
        """Whether a checkpoint on the path makes one at `length` superfluous."""
        node = place.node
        while node.parent is not None and (node.end > place.length or node.checkpoint is None):
            node = node.parent
        if node.parent is None:
            return False
        return node.end == length or length - node.end < self._minimum_gap

    def _store_span(
        self, place: Place, tokens: TokenIds, span: Span | None, kind: EntryKind, conversation: str
    ) -> bool:
        if span is None:
            self._touch(place.node)
            return True
        keep = affordable_tokens(self._limits, self._tree.totals, place, span)
        if not keep:
            return False
        if keep < span.length:
            span, _ = span.split(keep)
            tokens = tokens[: place.length + keep]
        owner = self._conversation(conversation, place.node)
        node = self._tree.extend(place, tokens, span)
        self._tree.mark(node, kind, owner, None)
        self._touch(node)
        extended = node.parent
        assert extended is not None
        superseded = extended.kind, extended.conversation
        self._tree.unmark(extended)
        self._tree.tidy(extended)
        return self._settle(node) or self._reinstate(extended, *superseded)

    def _reinstate(self, node: Node, kind: EntryKind | None, conversation: str) -> bool:
        """Give a superseded entry its place back, because its successor could not stay."""
        if kind is not None and node.parent is not None and not node.children:
            self._tree.mark(node, kind, conversation, None)
        return False

    def _store_checkpoint(
        self,
        place: Place,
        tokens: TokenIds,
        span: Span | None,
        checkpoint: Checkpoint,
        kind: EntryKind,
        conversation: str,
    ) -> bool:
        if self._is_near(place, len(tokens)):
            return self._strengthen(place, len(tokens), kind)
        if is_over_large(self._limits, place, span, checkpoint):
            return False
        owner = self._conversation(conversation, place.node)
        node = self._tree.extend(place, tokens, span)
        self._tree.mark(node, kind, owner, checkpoint)
        self._touch(node)
        return self._settle(node)

    def _strengthen(self, place: Place, length: int, kind: EntryKind) -> bool:
        """A checkpoint that is there already takes the stronger of both kinds."""
        node = place.node
        if node.end != length or node.kind is None:
            return False
        if kind.strength > node.kind.strength:
            node.kind = kind
        self._touch(node)
        return True

    def _settle(self, node: Node) -> bool:
        """Bring the tree within its limits, if it must be at the newcomer's own cost."""
        node.stored = self._clock
        self._shrink(node)
        if not self._limits.allow(self._tree.totals):
            self._shrink()
        return node.parent is not None

    def _shrink(self, newcomer: Node | None = None) -> None:
        shrink = Shrink(self._tree, self._limits, newcomer, self._tombstones)
        run: Callable[[], None] = (
            shrink.sliceable if self._kind is CacheKind.SLICEABLE else shrink.checkpointed
        )
        run()
        self._counts.evicted_entries += shrink.dropped
        self._counts.thinned_checkpoints += shrink.thinned

    def _conversation(self, name: str, extended: Node) -> str:
        """Whose entry this is: `name`'s, or, if that is new here, that of the entry it extends.

        Anonymous requests name a conversation anew with each turn. It goes on from an entry that
        is the latest of its kind; from an older one, a conversation of its own has forked.
        """
        conversations = self._tree.conversations
        if name in conversations:
            return name
        for node in reversed(extended.path()):
            if node.kind is not None and node.kind not in SHARED_KINDS:
                rivals = (other for other in conversations[node.conversation] if other is not node)
                is_latest = all(
                    other.stored < node.stored for other in rivals if other.kind is node.kind
                )
                return node.conversation if is_latest else name
        return name

    def _touch(self, node: Node) -> None:
        self._clock += 1
        for on_path in node.path():
            on_path.used, on_path.spared = self._clock, 0
