"""What goes when the tree is over a limit: thinning within conversations, then leaves by use.

Checkpointed models, in this order, one node at a time until the limits hold:
1. The conversation that holds the most gives up the checkpoint whose loss costs the fewest tokens
   to read again per byte, as long as it has one that its next turn does not need (`surplus`).
   A newcomer between two messages of a history is such a one itself: nothing else goes for it.
2. The conversation that holds the most gives up its weakest (`worth.rank`), as long as it keeps
   one. A newcomer is not paid for with something stronger of its own conversation.
3. The least recently used leaf goes; live leaves after all others.
4. Whatever is not in use goes, the cheapest first: only the newcomer's own path is left.

Sliceable models know step 3 only, and there whole blocks are cut off a leaf's tail, so that a
conversation is shortened before it is lost. Only the entry limit drops a leaf at once.

The entry limit counts entries, not live leaves: what a session holds only stops being an entry
for it, and what is no entry does not go for it. A session whose live leaf is thinned away holds
the nearest entry of its conversation above instead.

In steps 2 and 3 small fry goes instead: a leaf that costs less than an eighth of the victim to
read again, as long as all that went in the victim's place since its last use costs less than the
victim itself. So a hundred little one-shot calls do not push out the session they serve, and an
abandoned session does not stay for ever (the credit is GreedyDual's: Young, 1994).

What is pinned stays, so the limits can be exceeded only while something is in use. A head that
several conversations share is a fork, belongs to none of them, and outlives all but the last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.limits import Limits, blocks_within
from daemon.prefix_cache.nodes import Node
from daemon.prefix_cache.radix_tree import RadixTree
from daemon.prefix_cache.tombstones import Tombstones
from daemon.prefix_cache.worth import (
    cost_per_byte,
    entry_above,
    own_entries,
    rank,
    surplus,
    tokens_lost,
    weakness,
)

SMALL_FRY = 1 / 8


@dataclass(slots=True)
class Shrink:
    """One pass that brings `tree` back within `limits`; `newcomer` (stored just now) stays.

    Counts what it took: whole leaves, and single checkpoints.
    """

    tree: RadixTree
    limits: Limits
    newcomer: Node | None = None
    tombstones: Tombstones = field(default_factory=Tombstones)
    dropped: int = 0
    thinned: int = 0
    _costs: dict[Node, float] = field(default_factory=dict)

    def sliceable(self) -> None:
        if self._is_over():
            self._drop_leaves(shorten=True)

    def checkpointed(self) -> None:
        if self._is_over():
            self._thin_surplus()
        if self._is_over():
            self._give_up_newcomer()
        if self._is_over():
            self._thin_to_one()
        if self._is_over():
            self._drop_leaves(shorten=False)
        if self._is_over():
            self._thin_anything()

    def _is_over(self) -> bool:
        return not self.limits.allow(self.tree.totals)

    def _too_many(self) -> bool:
        return self.limits.too_many(self.tree.totals)

    def _thin_surplus(self) -> None:
        rich = [name for name in self.tree.conversations if self._to_spare(name)]
        while rich and self._is_over():
            name = max(rich, key=self._held)
            free = self._to_spare(name)
            if free:
                self._thin(min(free, key=cost_per_byte))
            else:
                rich.remove(name)

    def _give_up_newcomer(self) -> None:
        """One that is kept only where there is room, for which there is none."""
        node = self.newcomer
        if node is not None and node.kind is EntryKind.MESSAGE_END and not node.holders:
            self.newcomer = None
            self.tree.unmark(node)
            self.tree.tidy(node)

    def _thin_to_one(self) -> None:
        rich = [name for name in self.tree.conversations if len(self._counting(name)) > 1]
        while rich and self._is_over():
            name = max(rich, key=self._held)
            entries = self._counting(name)
            free = [node for node in self._free(entries) if not self._is_too_dear(node)]
            if len(entries) < 2 or not free:
                rich.remove(name)
                continue
            victim = min(free, key=weakness)
            fry = None if self._need_not_go(victim) else self._small_fry(victim)
            if fry is None:
                self._thin(victim)
            else:
                self._drop(fry)

    def _drop_leaves(self, *, shorten: bool) -> None:
        order = [_in_order(node) for node in self._free(self._droppable(shorten))]
        heapq.heapify(order)
        while order and self._is_over():
            node = order[0][-1]
            is_leaf = node in self.tree.leaves
            if not self._may_go(node) or not (is_leaf or self._need_not_go(node)):
                heapq.heappop(order)
            elif self._need_not_go(node):
                self._unshare(node)
            elif shorten and not self._too_many() and self._shorten(node):
                continue
            else:
                victim = None if shorten and not self._too_many() else self._small_fry(node)
                for bared in self._drop(victim or node):
                    heapq.heappush(order, _in_order(bared))

    def _droppable(self, shorten: bool) -> Iterable[Node]:
        """Leaves; on sliceable models also entries that only a live leaf goes on from."""
        yield from self.tree.leaves
        if shorten and self._too_many():
            for entries in self.tree.conversations.values():
                yield from (node for node in entries if node.children)

    def _thin_anything(self) -> None:
        while self._is_over():
            entries = (node for held in self.tree.conversations.values() for node in held)
            free = self._free(entries)
            if not free:
                return
            self._thin(min(free, key=lambda node: (bool(node.holders), cost_per_byte(node))))

    def _shorten(self, leaf: Node) -> bool:
        """Cut as many blocks off the tail as the limits ask for; False if all would go."""
        totals, limits = self.tree.totals, self.limits
        assert leaf.span is not None
        keep = blocks_within(
            leaf.span,
            leaf.span.nbytes + leaf.edge.nbytes - (totals.bytes - limits.max_bytes),
            leaf.span.array_count - (totals.arrays - limits.max_arrays),
        )
        if not 0 < keep < len(leaf.edge):
            return False
        self.tombstones.add(leaf, limits.broken_by(totals))
        self.tree.cut_tail(leaf, keep)
        return True

    def _small_fry(self, victim: Node) -> Node | None:
        """What goes instead of `victim`: the least recently used leaf of those that cost little.

        Costs are taken once in a pass; a leaf that comes bare meanwhile waits for the next.
        """
        if not self._costs:
            free = sorted(self._free(self.tree.leaves), key=lambda leaf: leaf.used)
            self._costs = {leaf: self._cost(leaf) for leaf in free}
        price = self._cost(victim)
        for leaf, cost in self._costs.items():
            is_left = leaf in self.tree.leaves and self._may_go(leaf)
            if cost < price * SMALL_FRY and is_left and leaf is not victim:
                victim.spared += tokens_lost(leaf)
                return leaf if victim.spared < tokens_lost(victim) else None
        return None

    def _cost(self, node: Node) -> float:
        return float(tokens_lost(node)) if self._too_many() else cost_per_byte(node)

    def _thin(self, node: Node) -> None:
        """Take a node's mark; sessions that held it fall back to the entry above."""
        if self._need_not_go(node):
            self._unshare(node)
            return
        self._lose(node)
        above = entry_above(node)
        holders = node.holders if above and above.conversation == node.conversation else ()
        self.tree.unmark(node)
        for holder in holders:
            assert above is not None
            self.tree.hold(above, holder)
        self.tree.tidy(node)
        self.thinned += 1

    def _drop(self, leaf: Node) -> list[Node]:
        """Remove a leaf; what became a leaf by that and may go too."""
        if self._need_not_go(leaf):
            self._unshare(leaf)
            return []
        self._lose(leaf)
        above = leaf.path()[:-1]
        self.tree.remove(leaf)
        self.dropped += 1
        return self._free(node for node in above if node in self.tree.leaves)

    def _lose(self, node: Node) -> None:
        cause = self.limits.broken_by(self.tree.totals)
        self.tombstones.add(node, cause)
        self.tombstones.counts[cause] += 1

    def _need_not_go(self, node: Node) -> bool:
        """Whether its state stays though it is no entry any more: that serves the entry limit."""
        stays = node.holders or (node.children and node.checkpoint is None)
        return bool(stays) and node.is_shared and self._too_many()

    def _unshare(self, node: Node) -> None:
        self.tree.share(node, False)
        if not node.holders:
            self.tree.unmark(node)
            self.tree.tidy(node)

    def _free(self, nodes: Iterable[Node]) -> list[Node]:
        return [node for node in nodes if self._may_go(node)]

    def _may_go(self, node: Node) -> bool:
        """Nothing in use, never the newcomer, and nothing whose loss would not help."""
        if node.pins or node is self.newcomer or node.parent is None:
            return False
        return node.is_shared or self.limits.too_large(self.tree.totals)

    def _to_spare(self, name: str) -> list[Node]:
        return self._free(surplus(self.tree.conversations.get(name, ())))

    def _counting(self, name: str) -> list[Node]:
        """A conversation's entries, as far as they count for the limit that is exceeded."""
        entries = own_entries(self.tree.conversations.get(name, ()))
        is_large = self.limits.too_large(self.tree.totals)
        return [node for node in entries if is_large or node.is_shared]

    def _is_too_dear(self, node: Node) -> bool:
        newcomer = self.newcomer
        return (
            newcomer is not None
            and node.conversation == newcomer.conversation
            and rank(node) > rank(newcomer)
        )

    def _held(self, name: str) -> tuple[int, int]:
        """How much a conversation holds; of two that hold as much, the longer unused is more."""
        entries = self.tree.conversations.get(name, {})
        return len(own_entries(entries)), -max((node.used for node in entries), default=0)


def _in_order(leaf: Node) -> tuple[bool, int, int, int, Node]:
    """Live leaves last, and then the least recently used first."""
    return bool(leaf.holders), leaf.used, leaf.stored, leaf.number, leaf
