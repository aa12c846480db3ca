"""What goes when the tree is over a limit: thinning within conversations, then leaves by use.

Checkpointed models, in this order, one node at a time until the limits hold:
1. The conversation that holds the most gives up the checkpoint whose loss costs the fewest tokens
   to read again per byte, as long as it has one that its next turn does not need (`surplus`).
2. The conversation that holds the most gives up its weakest (`EntryKind.strength`), as long as it
   keeps one. A newcomer is not paid for with something stronger of its own conversation.
3. The least recently used leaf goes.
4. Whatever is not in use goes, the cheapest first: only the newcomer's own path is left.

Sliceable models know step 3 only, and there whole blocks are cut off a leaf's tail, so that a
conversation is shortened before it is lost. Only the entry limit drops a leaf at once.

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

from daemon.prefix_cache.radix_tree import TOKEN_BYTES, Node, RadixTree, Totals
from daemon.prefix_cache.tombstones import Tombstones
from daemon.prefix_cache.worth import (
    cost_per_byte,
    own_entries,
    rank,
    surplus,
    tokens_lost,
    weakness,
)
from mlx_backend.interface import Span

SMALL_FRY = 1 / 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What the tree may hold; `max_entries` None is no limit."""

    max_entries: int | None
    max_bytes: int
    max_arrays: int

    def allow(self, totals: Totals) -> bool:
        return (
            totals.bytes <= self.max_bytes
            and totals.arrays <= self.max_arrays
            and not self.too_many(totals)
        )

    def too_many(self, totals: Totals) -> bool:
        return self.max_entries is not None and totals.entries > self.max_entries


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
            self._thin_to_one()
        if self._is_over():
            self._drop_leaves(shorten=False)
        if self._is_over():
            self._thin_anything()

    def _is_over(self) -> bool:
        return not self.limits.allow(self.tree.totals)

    def _thin_surplus(self) -> None:
        found = {
            name: free
            for name, entries in self.tree.conversations.items()
            if (free := self._free(surplus(entries)))
        }
        while found and self._is_over():
            name = max(found, key=self._held)
            self._thin(min(found[name], key=cost_per_byte))
            found[name] = self._free(surplus(self.tree.conversations.get(name, ())))
            if not found[name]:
                del found[name]

    def _thin_to_one(self) -> None:
        rich = [
            name for name, held in self.tree.conversations.items() if len(own_entries(held)) > 1
        ]
        while rich and self._is_over():
            name = max(rich, key=self._held)
            entries = own_entries(self.tree.conversations.get(name, ()))
            free = [node for node in self._free(entries) if not self._is_too_dear(node)]
            if len(entries) < 2 or not free:
                rich.remove(name)
                continue
            victim = min(free, key=weakness)
            fry = self._small_fry(victim)
            if fry is None:
                self._thin(victim)
            else:
                self._drop(fry)

    def _drop_leaves(self, *, shorten: bool) -> None:
        order = [(leaf.used, leaf.stored, id(leaf), leaf) for leaf in self._free(self.tree.leaves)]
        heapq.heapify(order)
        while order and self._is_over():
            leaf = order[0][-1]
            if leaf not in self.tree.leaves:
                heapq.heappop(order)
                continue
            shortens = shorten and not self.limits.too_many(self.tree.totals)
            if shortens and self._shorten(leaf):
                continue
            victim = None if shortens else self._small_fry(leaf)
            if victim is None:
                victim = heapq.heappop(order)[-1]
            for bared in self._drop(victim):
                heapq.heappush(order, (bared.used, bared.stored, id(bared), bared))

    def _thin_anything(self) -> None:
        while self._is_over():
            entries = (node for held in self.tree.conversations.values() for node in held)
            free = self._free(entries)
            if not free:
                return
            self._thin(min(free, key=cost_per_byte))

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
        self.tombstones.add(leaf)
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
            if cost < price * SMALL_FRY and leaf in self.tree.leaves and leaf is not victim:
                victim.spared += tokens_lost(leaf)
                return leaf if victim.spared < tokens_lost(victim) else None
        return None

    def _cost(self, node: Node) -> float:
        too_many = self.limits.too_many(self.tree.totals)
        return float(tokens_lost(node)) if too_many else cost_per_byte(node)

    def _thin(self, node: Node) -> None:
        self.tombstones.add(node)
        self.tree.unmark(node)
        self.tree.tidy(node)
        self.thinned += 1

    def _drop(self, leaf: Node) -> list[Node]:
        """Remove a leaf; what became a leaf by that and may go too."""
        self.tombstones.add(leaf)
        above = leaf.path()[:-1]
        self.tree.remove(leaf)
        self.dropped += 1
        return self._free(node for node in above if node in self.tree.leaves)

    def _free(self, nodes: Iterable[Node]) -> list[Node]:
        """Those that may go; the newcomer never does."""
        return [node for node in nodes if not node.pins and node is not self.newcomer]

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


def blocks_within(span: Span, max_bytes: int, max_arrays: int) -> int:
    """How many tokens of a span, in whole blocks from its start, fit together with their ids."""
    lengths = span.block_lengths()
    token_bytes = span.nbytes / span.length + TOKEN_BYTES
    block_arrays = span.array_count / len(lengths)
    kept = 0
    for count, length in enumerate(lengths, start=1):
        if (kept + length) * token_bytes > max_bytes or count * block_arrays > max_arrays:
            break
        kept += length
    return kept
