"""The prefix cache: what was read, found again by the ids of the whole new prompt.

Single-threaded (the engine's thread owns every span). A key is exact state: what is stored under
n tokens holds n tokens, checked when it is stored; in doubt it is refused, counted and never
stored. A match never covers a whole prompt: one token is left to run.

Snapshots handed out are immutable and stay valid whatever happens to the tree; pins only keep the
tree from evicting what somebody is about to build on. Where to capture is decided in
`checkpoints`, what is let in and what it replaces in `storing`, what goes when there is no room
in `eviction`.

State is kept as an entry, which all share and the entry limit counts, or as the live leaf of a
session, until that lets go of it, or as both. Whoever holds it, any prompt is matched with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.eviction import Shrink
from daemon.prefix_cache.inventory import entry_statuses, own_path_bytes, path_tokens
from daemon.prefix_cache.kept import Kept, all_states, state_of
from daemon.prefix_cache.limits import Limits
from daemon.prefix_cache.matching import Match, Reason, restorable
from daemon.prefix_cache.nodes import Mark, Node, Place
from daemon.prefix_cache.radix_tree import RadixTree
from daemon.prefix_cache.storing import MAX_BRANCHES, Newcomer, Store
from daemon.prefix_cache.tombstones import Cause, Tombstones
from daemon.status import CacheStatus, EntryStatus
from mlx_backend.interface import Checkpoint, Snapshot, Span
from mlx_backend.messages import CacheKind, TokenIds

__all__ = ["Match", "PrefixCache", "Reason"]


@dataclass(slots=True)
class Counts:
    """What happened to the cache since it was made; losses by cause are with the tombstones."""

    hits: int = 0
    misses: int = 0
    evicted_entries: int = 0
    thinned_checkpoints: int = 0
    failed_restores: int = 0
    skipped_captures: int = 0


class PrefixCache:
    """The tree, its limits and its counters. Lengths are tokens, `clock` tells seconds."""

    def __init__(
        self,
        *,
        kind: CacheKind,
        max_entries: int | None,
        max_bytes: int,
        max_arrays: int = 400_000,
        minimum_gap: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kind = kind
        self._limits = Limits(max_entries, max_bytes, max_arrays)
        self._clock = clock
        self._tree = RadixTree(clock)
        self._tombstones = Tombstones(clock=clock)
        self._store = Store(self._tree, kind, self._limits, self._tombstones, minimum_gap)
        self._counts = Counts()
        self._pinned: set[Node] = set()

    def watch(self, on_leaving: Callable[[Kept], object]) -> None:
        """Show every state to `on_leaving` before it is lost to a limit, or to idleness.

        It must not raise: the tree is about to change.
        """
        self._tombstones.on_loss = lambda node: on_leaving(state_of(self._tree, node))

    def states(self, idle_seconds: float = 0.0) -> Iterator[Kept]:
        """All that is kept and was not used for so long, the most recently used first; what others
        stand on is in theirs. What leaves the tree before its turn comes is passed over."""
        return all_states(self._tree, self._clock() - idle_seconds)

    def state(self, tokens: TokenIds) -> Kept | None:
        """The state after `tokens`, if they are still one: see `states`."""
        place = self._tree.find(tokens)
        is_there = place.length == place.node.end == len(tokens)
        return state_of(self._tree, place.node) if is_there else None

    def peek(self, tokens: TokenIds) -> int:
        """How many tokens a match would restore now; pins and touches nothing."""
        return restorable(self._kind, self._tree.find(tokens), len(tokens))[1]

    def known(self, tokens: TokenIds) -> int:
        """How many tokens' spans the tree holds: what is to be captured is [known, len)."""
        return self._tree.find(tokens).length

    def match(self, tokens: TokenIds, holder: str | None = None) -> Match:
        """What can be restored of a prompt. It counts as use and pins until released.

        Where the prompt leaves an edge the edge is cut: what lies behind is not in use, so that
        it can make room for what the prompt goes on with.
        `holder` is the session that asks; it changes what the match tells, not what it restores.
        """
        place = self._tree.find(tokens)
        node, length = restorable(self._kind, place, len(tokens))
        match = Match(length=length, common=place.length)
        match.tell_what_goes_on(place)
        if holder is not None and (ends := self._own_ends(holder)):
            match.tell_own_departure(place, ends)
        elif holder == match.conversation:
            match.own_common, match.own_next = match.common, match.stored_next
        match.explain(self._tombstones.longest(tokens), len(tokens))
        if self._kind is CacheKind.UNCACHEABLE:
            match.why = Reason.OFF
        if not length:
            self._counts.misses += 1
            return match
        self._counts.hits += 1
        node.hits += 1
        self._tree.touch(node)
        used = self._tree.node_at(Place(node, length))
        spans = tuple(on_path.span for on_path in used.path() if on_path.span is not None)
        match.snapshot = Snapshot(length=length, spans=spans, checkpoint=used.checkpoint)
        match.pinned = used
        used.pins += 1
        self._pinned.add(used)
        if used is not node:
            self._shrink()
        return match

    def pin(self, tokens: TokenIds) -> Match:
        """Keep what is there of `tokens`, for more to be added to it, until the match is released.

        Counts as no use, and restores nothing.
        """
        place = self._tree.find(tokens)
        match = Match(common=place.length)
        if place.length:
            used = self._tree.node_at(place)
            match.pinned = used
            used.pins += 1
            self._pinned.add(used)
            if used is not place.node:
                self._shrink()
        return match

    def _own_ends(self, holder: str) -> list[Node]:
        """What a session's own history ends with, the latest first: its live leaves, or those of
        its entries that are left where it has none."""
        if leaves := self._tree.held.get(holder):
            return list(reversed(leaves))
        entries = self._tree.conversations.get(holder, {})
        return [node for node in reversed(entries) if not node.children]

    def release(self, match: Match) -> None:
        """Take back the match's pin. Idempotent."""
        node, match.pinned = match.pinned, None
        if node is None:
            return
        node.pins -= 1
        if not node.pins:
            self._pinned.discard(node)
        if node.parent is not None:
            self._tree.tidy(node)
            self._shrink()

    def reject(self, match: Match) -> None:
        """Its restore failed: drop what it came from, so that it cannot fail again.

        Which of a path's spans was bad cannot be known. On sliceable models the deepest goes, and
        with it all that stands on it: a bad span in a shared head is found level by level, as
        each retry fails, but a good one there is not lost for a bad one below.
        """
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

    def wants(
        self,
        tokens: TokenIds,
        kind: EntryKind,
        holder: str | None = None,
        shared: bool = True,
    ) -> bool:
        """Whether to capture here. False: not kept, or there already, and `hold` can mark it."""
        if not len(tokens) or self._mark(kind, "", holder, shared) is None:
            return False
        return self._store.there(self._tree.find(tokens), len(tokens)) is None

    def insert(
        self,
        tokens: TokenIds,
        *,
        span: Span | None,
        checkpoint: Checkpoint | None,
        kind: EntryKind,
        conversation: str,
        holder: str | None = None,
        shared: bool = True,
    ) -> bool:
        """Store the state after `tokens`; `span` covers [known, len), None where that is empty.

        True if a row can be restored from here afterwards (or, on sliceable models, from as much
        of it as fits). False: skipped and counted. `conversation` is a hint for retention.
        `holder`'s live leaves that this one extends are replaced by it. Not `shared`: no entry,
        goes when its last holder lets go.
        """
        mark = self._mark(kind, conversation, holder, shared)
        newcomer = self._store.add(tokens, span, checkpoint, mark) if mark is not None else None
        is_stored = newcomer is not None and self._settle(newcomer, tokens)
        if newcomer is not None and is_stored and self._kind is CacheKind.CHECKPOINTED:
            is_stored = newcomer.node.end == len(tokens)
        self._counts.skipped_captures += not is_stored
        return is_stored

    def hold(
        self,
        tokens: TokenIds,
        holder: str | None,
        *,
        kind: EntryKind = EntryKind.TURN_END,
        conversation: str = "",
        shared: bool = False,
    ) -> bool:
        """Mark state that is there already as `insert` would, without a capture; counts as use.

        On models with checkpoints also one that is less than the minimum gap before the end of
        `tokens`. False if there is none.
        """
        mark = self._mark(kind, conversation, holder, shared)
        if mark is None or not len(tokens):
            return False
        newcomer = self._store.mark(self._tree.find(tokens), len(tokens), mark)
        return newcomer is not None and self._settle(newcomer, tokens)

    def let_go(self, holder: str, why: str) -> None:
        """Drop a session's marks, and what neither another session nor the cache wants.

        `why`: "idle", "reset" or "sessions". What is in use stays valid for who uses it.
        """
        for node in list(self._tree.held.get(holder, ())):
            self._store.let_go(node, holder, Cause(why))

    def take_over(self, match: Match, holder: str, is_left: Callable[[str], bool]) -> None:
        """Make live leaves that the match goes on from, and whose sessions are left, `holder`'s."""
        if match.pinned is not None:
            path = [node for node in match.pinned.path() if node.end <= match.length]
            self._store.take_over(path, holder, is_left)

    def held(self, holder: str) -> tuple[int, int]:
        """Tokens of all of a session's live leaves, a common prefix counted once; and bytes of
        theirs that they share with nobody."""
        nodes = list(self._tree.held.get(holder, ()))
        return path_tokens(nodes), own_path_bytes(nodes, holder)

    def entries(self) -> tuple[EntryStatus, ...]:
        """Every node of the tree, parents before their children."""
        return tuple(entry_statuses(self._tree.nodes(), self._clock()))

    def freeable_bytes(self, keeping: TokenIds | None = None) -> int:
        """What `give_back` can free at most: all but what is in use, and what that stands on.

        `keeping`: a prompt whose match is not to go either.
        """
        kept = {on_path for node in self._pinned for on_path in node.path()}
        tail = 0
        if keeping is not None:
            node, length = restorable(self._kind, self._tree.find(keeping), len(keeping))
            if node not in kept and node.parent is not None:
                tail = node.own_bytes * (node.end - length) // len(node.edge)
            kept.update(node.path())
        return self._tree.totals.bytes - sum(node.own_bytes for node in kept) + tail

    def give_back(self, nbytes: int) -> int:
        """Evict until `nbytes` were freed or all that is left is in use; how many were."""
        before = self._tree.totals.bytes
        self._shrink(limits=replace(self._limits, max_bytes=max(0, before - nbytes)))
        return before - self._tree.totals.bytes

    def set_max_bytes(self, max_bytes: int) -> None:
        """Change the byte limit, and evict what is over it now."""
        self._limits.max_bytes = max_bytes
        self._shrink()

    def clear(self) -> None:
        """Forget everything, pinned or not; the counters stay. Works on a broken tree too."""
        for node in self._tree.nodes():
            if node.kind is not None:
                self._tombstones.add(node, Cause.RESET)
        self._tree.clear()

    def move_out(self) -> None:
        """Forget everything without a trace, for it is kept elsewhere. Nothing may be in use."""
        assert not self._pinned, "a tree was moved out under a running request"
        self._tree.clear()

    def status(self) -> CacheStatus:
        totals, counts, lost = self._tree.totals, self._counts, self._tombstones.counts
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
            max_arrays=self._limits.max_arrays,
            live_leaves=totals.live_leaves,
            hits=counts.hits,
            misses=counts.misses,
            evicted_entries=counts.evicted_entries,
            evicted_by_entries=lost[Cause.ENTRIES],
            evicted_by_bytes=lost[Cause.BYTES],
            evicted_by_arrays=lost[Cause.ARRAYS],
            evicted_by_idle=lost[Cause.IDLE],
            evicted_by_reset=lost[Cause.RESET],
            evicted_by_sessions=lost[Cause.SESSIONS],
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
                "a mark has a checkpoint exactly where the model needs one"
            )
            assert not (sliceable and node.is_shared and any(a.is_shared for a in node.above())), (
                "an entry was not superseded"
            )
        held = self._tree.held.values()
        assert all(len(leaves) <= MAX_BRANCHES for leaves in held), "too many branches are held"
        pinned = {node for node in nodes if node.pins}
        in_use = bool(pinned)
        assert pinned == {node for node in self._pinned if node.parent is not None}, (
            "what is in use is not what is known to be"
        )
        assert in_use or self._limits.allow(self._tree.totals), "over a limit with nothing in use"
        assert not (self._kind is CacheKind.UNCACHEABLE and nodes), "stored though nothing can be"

    def _mark(
        self, kind: EntryKind, conversation: str, holder: str | None, shared: bool
    ) -> Mark | None:
        """What is to be stored; None if nobody wants it."""
        shared = shared and self._limits.max_entries != 0
        if self._kind is CacheKind.UNCACHEABLE or (holder is None and not shared):
            return None
        return Mark(kind, conversation, holder, shared)

    def _settle(self, newcomer: Newcomer, tokens: TokenIds) -> bool:
        """Bring the tree within its limits, if it must be at the newcomer's own cost."""
        node = newcomer.node
        self._shrink(node)
        if not self._limits.allow(self._tree.totals):
            self._shrink()
        is_restorable = self._kind is CacheKind.SLICEABLE or node.checkpoint is not None
        if node.parent is not None and is_restorable:
            return True
        self._store.put_back(newcomer.gave_way)
        self._tombstones.add_unkept(tokens)
        return False

    def _shrink(self, newcomer: Node | None = None, limits: Limits | None = None) -> None:
        shrink = Shrink(self._tree, limits or self._limits, newcomer, self._tombstones)
        if self._kind is CacheKind.SLICEABLE:
            shrink.sliceable()
        else:
            shrink.checkpointed()
        self._counts.evicted_entries += shrink.dropped
        self._counts.thinned_checkpoints += shrink.thinned
