"""Putting state into the tree: what is let in, whose it is, and what gives way to it.

On sliceable models an entry supersedes the one that it extends: none lies above another. On all
models a session's live leaf replaces those that it extends (where state cannot be cut, that of a
cut turn does not); its other branches stay, up to `MAX_BRANCHES`. What gave way to a newcomer that
cannot stay gets its place back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from daemon.prefix_cache.admission import affordable_tokens, is_over_large
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.limits import Limits
from daemon.prefix_cache.nodes import Mark, Node, Place
from daemon.prefix_cache.radix_tree import RadixTree
from daemon.prefix_cache.tombstones import Cause, Tombstones
from mlx_backend.interface import Checkpoint, Span
from mlx_backend.messages import CacheKind, TokenIds

SHARED_KINDS = frozenset({EntryKind.HEAD, EntryKind.FORK})
"""Entries that say nothing of whose conversation goes on behind them."""

MAX_BRANCHES = 4
"""Live leaves of one session; of those of cut turns, or else of all, the oldest gives way."""


@dataclass(frozen=True, slots=True)
class GaveWay:
    """A mark that a newcomer took, with what it takes to put it back."""

    node: Node
    mark: Mark
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A node that was stored or marked just now, and what gave way to it."""

    node: Node
    gave_way: list[GaveWay] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Store:
    """Changes the tree; the caller brings it back within its limits."""

    tree: RadixTree
    kind: CacheKind
    limits: Limits
    tombstones: Tombstones
    minimum_gap: int

    def add(
        self, tokens: TokenIds, span: Span | None, checkpoint: Checkpoint | None, mark: Mark
    ) -> Newcomer | None:
        """Store the state after `tokens`; None if it is inexact, incomplete or cannot fit."""
        place = self.tree.find(tokens)
        if not _is_exact(place, len(tokens), span, checkpoint):
            return None
        if self.there(place, len(tokens)) is not None:
            return self.mark(place, len(tokens), mark)
        if self.kind is CacheKind.SLICEABLE:
            assert span is not None
            return self._add_span(place, tokens, span, mark)
        if checkpoint is None:
            return None
        if is_over_large(self.limits, place, span, checkpoint):
            self.tombstones.add_unkept(tokens)
            return None
        return self._add(place, tokens, span, checkpoint, mark)

    def there(self, place: Place, length: int) -> Place | None:
        """Where a row can be restored from already that serves for one of `length` tokens."""
        if self.kind is CacheKind.SLICEABLE:
            return place if place.length == length else None
        node = place.node
        while node.parent is not None and (node.end > place.length or node.checkpoint is None):
            node = node.parent
        is_near = node.end == length or length - node.end < self.minimum_gap
        return Place(node, node.end) if is_near and node.parent is not None else None

    def mark(self, place: Place, length: int, mark: Mark) -> Newcomer | None:
        """Mark what is `there` already; None if nothing is."""
        there = self.there(place, length)
        if there is None:
            return None
        if self.kind is CacheKind.SLICEABLE:
            is_entry = any(node.is_shared for node in there.node.below())
            mark = replace(mark, shared=mark.shared and not is_entry)
            if not mark.shared and mark.holder is None:
                self.tree.touch(there.node)
                return Newcomer(there.node)
        node = self.tree.node_at(there)
        self.tree.touch(node)
        if node.kind is None:
            owner = self._conversation(mark.conversation, there)
            self.tree.mark(node, replace(mark, conversation=owner), None)
        elif node.end == length and mark.kind.strength > node.kind.strength:
            node.kind = mark.kind
        self._strengthen(node, mark)
        return self._newcomer(node, mark)

    def let_go(self, node: Node, holder: str, cause: Cause) -> None:
        """Take back a session's mark; state that nobody else wants goes."""
        self.tree.let_go(node, holder)
        if node.is_shared or node.holders:
            return
        if node.checkpoint is not None or not node.children:
            self.tombstones.add(node, cause)
            self.tombstones.counts[cause] += 1
        self.tree.unmark(node)
        self.tree.tidy(node)

    def take_over(self, path: Iterable[Node], holder: str, is_left: Callable[[str], bool]) -> None:
        """Live leaves on `path` of sessions that are left become `holder`'s."""
        for node in path:
            for other in node.holders:
                if is_left(other):
                    self.tree.let_go(node, other)
                    self.tree.hold(node, holder)
        self._limit_branches(holder)

    def put_back(self, gave_way: list[GaveWay]) -> None:
        """The newcomer could not stay: what gave way to it and is still in the tree returns."""
        for was in gave_way:
            if was.node.parent is None:
                continue
            if was.node.kind is None:
                self.tree.mark(was.node, was.mark, was.checkpoint)
            self._strengthen(was.node, was.mark)

    def _add_span(self, place: Place, tokens: TokenIds, span: Span, mark: Mark) -> Newcomer | None:
        keep = affordable_tokens(self.limits, self.tree.totals, place, span)
        if keep < span.length:
            self.tombstones.add_unkept(tokens)
            if not keep:
                return None
            span, _ = span.split(keep)
            tokens = tokens[: place.length + keep]
        return self._add(place, tokens, span, None, mark)

    def _add(
        self,
        place: Place,
        tokens: TokenIds,
        span: Span | None,
        checkpoint: Checkpoint | None,
        mark: Mark,
    ) -> Newcomer:
        owner = self._conversation(mark.conversation, place)
        node = self.tree.extend(place, tokens, span)
        self.tree.touch(node)
        self.tree.mark(node, replace(mark, conversation=owner), checkpoint)
        return self._newcomer(node, mark)

    def _strengthen(self, node: Node, mark: Mark) -> None:
        if mark.shared:
            self.tree.share(node, True)
        if mark.holder is not None:
            self.tree.hold(node, mark.holder)

    def _newcomer(self, node: Node, mark: Mark) -> Newcomer:
        gave_way = self._give_way_to(node, mark)
        if mark.holder is not None:
            self._limit_branches(mark.holder)
        return Newcomer(node, gave_way)

    def _limit_branches(self, holder: str) -> None:
        """The latest stays in any case."""
        while len(held := list(self.tree.held.get(holder, ()))) > MAX_BRANCHES:
            cut = (leaf for leaf in held[:-1] if leaf.kind is EntryKind.PARTIAL)
            self.let_go(next(cut, held[0]), holder, Cause.SESSIONS)

    def _give_way_to(self, node: Node, mark: Mark) -> list[GaveWay]:
        """Take the marks above `node` that it stands for now."""
        gave_way = []
        is_superseding = self.kind is CacheKind.SLICEABLE and node.is_shared
        for above in list(node.above()):
            is_replaced = mark.holder in above.holders and self._stands_for(above, mark)
            if above.kind is None or not (is_replaced or (is_superseding and above.is_shared)):
                continue
            holder = mark.holder if is_replaced else None
            was = Mark(above.kind, above.conversation, holder, above.is_shared)
            gave_way.append(GaveWay(above, was, above.checkpoint))
            if is_superseding:
                self.tree.share(above, False)
            if holder is not None:
                self.tree.let_go(above, holder)
            if not (above.is_shared or above.holders):
                self.tree.unmark(above)
                self.tree.tidy(above)
        return gave_way

    def _stands_for(self, leaf: Node, newcomer: Mark) -> bool:
        """Whether a session that holds the newcomer can do without a live leaf above it.

        A cut turn's end is no place to go back to, and where state cannot be cut behind itself,
        the whole turn before it is: its own earlier cuts alone give way.
        """
        is_cut = newcomer.kind is EntryKind.PARTIAL
        return self.kind is CacheKind.SLICEABLE or not is_cut or leaf.kind is EntryKind.PARTIAL

    def _conversation(self, name: str, place: Place) -> str:
        """Whose entry this is: `name`'s, or, if that is new here, that of the entry it extends.

        Anonymous requests name a conversation anew with each turn. It goes on from an entry that
        is the latest of its kind; from an older one, a conversation of its own has forked. Only
        thinning asks, so on sliceable models every name is its own.
        """
        conversations = self.tree.conversations
        if name in conversations or self.kind is CacheKind.SLICEABLE:
            return name
        for node in (place.node, *place.node.above()):
            is_entry = node.kind is not None and node.kind not in SHARED_KINDS
            if is_entry and node.end <= place.length:
                rivals = (other for other in conversations[node.conversation] if other is not node)
                is_latest = all(
                    other.stored < node.stored for other in rivals if other.kind is node.kind
                )
                return node.conversation if is_latest else name
        return name


def _is_exact(place: Place, length: int, span: Span | None, checkpoint: Checkpoint | None) -> bool:
    covered = place.length + (span.length if span is not None else 0)
    return covered == length > 0 and (checkpoint is None or checkpoint.length == length)
