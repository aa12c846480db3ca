"""What goes when the tree is over a limit: thinning within conversations, then leaves by use.

Checkpointed models, in this order, one node at a time until the limits hold:
1. The conversation that holds the most gives up the checkpoint whose loss costs the fewest tokens
   to read again per byte, as long as it has one that is not the latest of its kind, nor a fork.
2. The conversation that holds the most gives up its weakest (`EntryKind.strength`), as long as it
   keeps one. A newcomer is not paid for with something stronger of its own conversation.
3. The least recently used leaf goes.
4. Whatever is not in use goes, the cheapest first: only the newcomer's own path is left.

Sliceable models know step 3 only, and there whole blocks are cut off a leaf's tail, so that a
conversation is shortened before it is lost. Only the entry limit drops a leaf at once.

What is pinned stays, so the limits can be exceeded only while something is in use. A head that
several conversations share is a fork, belongs to none of them, and outlives all but the last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.radix_tree import TOKEN_BYTES, Node, RadixTree, Totals
from mlx_backend.interface import Span

LATEST_STAYS = frozenset(EntryKind) - {EntryKind.INTERVAL}


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
    dropped: int = 0
    thinned: int = 0

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
        surplus = {
            name: found
            for name, entries in self.tree.conversations.items()
            if (found := self._free(_surplus(entries)))
        }
        while surplus and self._is_over():
            name = max(surplus, key=self._held)
            victim = min(surplus[name], key=cost_per_byte)
            self._thin(victim)
            entries = self.tree.conversations.get(name, {})
            surplus[name] = self._free(_surplus(entries))
            if not surplus[name]:
                del surplus[name]

    def _thin_to_one(self) -> None:
        rich = {name for name, held in self.tree.conversations.items() if len(_own(held)) > 1}
        while rich and self._is_over():
            name = max(rich, key=self._held)
            entries = _own(self.tree.conversations.get(name, ()))
            free = self._free(entries, weaker_than_newcomer=True)
            if len(entries) > 1 and free:
                self._thin(min(free, key=_weakness))
            else:
                rich.discard(name)

    def _thin_anything(self) -> None:
        while self._is_over():
            entries = (node for held in self.tree.conversations.values() for node in held)
            free = self._free(entries)
            if not free:
                return
            self._thin(min(free, key=cost_per_byte))

    def _drop_leaves(self, *, shorten: bool) -> None:
        order = [(leaf.used, leaf.stored, id(leaf), leaf) for leaf in self._free(self.tree.leaves)]
        heapq.heapify(order)
        while order and self._is_over():
            leaf = order[0][-1]
            if shorten and not self.limits.too_many(self.tree.totals) and self._shorten(leaf):
                continue
            heapq.heappop(order)
            above = leaf.path()[:-1]
            self.tree.remove(leaf)
            self.dropped += 1
            for bared in self._free(node for node in above if node in self.tree.leaves):
                heapq.heappush(order, (bared.used, bared.stored, id(bared), bared))

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
        self.tree.cut_tail(leaf, keep)
        return True

    def _thin(self, node: Node) -> None:
        self.tree.unmark(node)
        self.tree.tidy(node)
        self.thinned += 1

    def _free(self, nodes: Iterable[Node], *, weaker_than_newcomer: bool = False) -> list[Node]:
        """Those that may go; the newcomer never does."""
        newcomer = self.newcomer
        return [
            node
            for node in nodes
            if not node.pins
            and node is not newcomer
            and not (
                weaker_than_newcomer
                and newcomer is not None
                and node.conversation == newcomer.conversation
                and _rank(node) > _rank(newcomer)
            )
        ]

    def _held(self, name: str) -> tuple[int, int]:
        """How much a conversation holds; of two that hold as much, the longer unused is more."""
        entries = self.tree.conversations.get(name, {})
        return len(_own(entries)), -max((node.used for node in entries), default=0)


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


def cost_per_byte(node: Node) -> float:
    """Tokens to read again if this checkpoint is lost, per byte that its loss gives back."""
    before = node.parent
    while before is not None and before.parent is not None and before.kind is None:
        before = before.parent
    tokens = node.end - (before.end if before else 0)
    freed = node.checkpoint.nbytes if node.checkpoint else 0
    if not node.children and node.span is not None:
        freed += node.span.nbytes
    return tokens / max(1, freed)


def _own(entries: Iterable[Node]) -> list[Node]:
    """A conversation's entries without those that others build on."""
    return [node for node in entries if not node.is_fork]


def _surplus(entries: Iterable[Node]) -> list[Node]:
    """Entries that are neither a fork nor the latest of a kind whose latest stays."""
    own = _own(entries)
    latest: dict[EntryKind, Node] = {}
    for node in own:
        assert node.kind is not None
        if node.kind not in latest or node.stored > latest[node.kind].stored:
            latest[node.kind] = node
    return [
        node
        for node in own
        if node.kind not in LATEST_STAYS or latest.get(node.kind, node) is not node
    ]


def _rank(node: Node) -> int:
    """A head that nobody shares is worth what its tokens are, no more than a user's end."""
    if node.kind is EntryKind.HEAD:
        return EntryKind.USER_END.strength
    return node.kind.strength if node.kind else -1


def _weakness(node: Node) -> tuple[int, float]:
    return _rank(node), cost_per_byte(node)
