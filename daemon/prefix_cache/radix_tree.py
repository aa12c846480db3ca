"""A compressed radix tree over token ids: edges own spans, nodes may own a checkpoint.

Structure and sums only; what is worth keeping is decided in `eviction`, what may be stored and
what a match restores in `cache`.

Invariants (`check` walks them all):
* A node's path spells its tokens; `end` is the path's length. The root is empty and owns nothing.
* `span.length == len(edge)` for every node but the root; `checkpoint.length == end`.
* A node is there for a reason: it is an entry, a fork, or pinned. Others are merged or removed.
* `totals` is the sum over the nodes.

A split keeps the lower half's identity and a merge the child's, so whoever holds a node (a pin)
keeps holding the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

import numpy as np

from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.interface import Checkpoint, Span
from mlx_backend.messages import TokenIds

TOKEN_BYTES = 4
"""The index's bytes for one token: its id."""

NODE_BYTES = 700
"""The index's own bytes for one node beside its ids: objects, dictionaries, array header."""


@dataclass(slots=True, eq=False)
class Node:
    """The end of an edge. An entry has a `kind`; `used` and `stored` are logical times.

    `spared`: tokens that went in this node's place since it was used.
    """

    edge: TokenIds
    span: Span | None
    end: int
    parent: Node | None = None
    children: dict[int, Node] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    kind: EntryKind | None = None
    conversation: str = ""
    pins: int = 0
    used: int = 0
    stored: int = 0
    spared: int = 0

    @property
    def start(self) -> int:
        return self.end - len(self.edge)

    @property
    def is_fork(self) -> bool:
        return len(self.children) > 1

    def path(self) -> list[Node]:
        """From below the root down to this node."""
        nodes: list[Node] = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


@dataclass(slots=True)
class Totals:
    """What the tree holds. Tokens and bytes count each shared prefix once."""

    nodes: int = 0
    tokens: int = 0
    entries: int = 0
    checkpoints: int = 0
    arrays: int = 0
    span_bytes: int = 0
    checkpoint_bytes: int = 0
    index_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.span_bytes + self.checkpoint_bytes + self.index_bytes

    def add(self, node: Node, sign: int = 1) -> None:
        self.nodes += sign
        self.tokens += sign * len(node.edge)
        self.entries += sign * (node.kind is not None)
        self.index_bytes += sign * (NODE_BYTES + node.edge.nbytes)
        if node.span is not None:
            self.span_bytes += sign * node.span.nbytes
            self.arrays += sign * node.span.array_count
        if node.checkpoint is not None:
            self.checkpoints += sign
            self.checkpoint_bytes += sign * node.checkpoint.nbytes
            self.arrays += sign * node.checkpoint.array_count


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prompt leaves the tree: after `length` tokens, inside or at the end of `node`."""

    node: Node
    length: int


class RadixTree:
    """See the module. All token arrays are int32 and are copied before they are kept."""

    def __init__(self) -> None:
        self.root = Node(edge=np.empty(0, dtype=np.int32), span=None, end=0)
        self.totals = Totals()
        self.leaves: dict[Node, None] = {}
        self.conversations: dict[str, dict[Node, None]] = {}

    def find(self, tokens: TokenIds) -> Place:
        """The longest way into the tree that `tokens` spell."""
        node, length, total = self.root, 0, len(tokens)
        while length < total:
            child = node.children.get(int(tokens[length]))
            if child is None:
                break
            node = child
            length += common_length(child.edge, tokens[length:])
            if length < node.end:
                break
        return Place(node, length)

    def extend(self, place: Place, tokens: TokenIds, span: Span | None) -> Node:
        """The node where `tokens` end; `place` is where they leave the tree.

        `span` covers the tokens behind `place` and becomes the tree's; None if there are none.
        """
        node = self._node_at(place)
        if span is None:
            return node
        edge = np.array(tokens[place.length :], dtype=np.int32)
        leaf = Node(edge=edge, span=span, end=len(tokens), parent=node)
        node.children[int(edge[0])] = leaf
        self.leaves.pop(node, None)
        self.leaves[leaf] = None
        self.totals.add(leaf)
        return leaf

    def mark(
        self, node: Node, kind: EntryKind, conversation: str, checkpoint: Checkpoint | None
    ) -> None:
        """Make `node` an entry; what it was before is replaced."""
        self.unmark(node)
        self.totals.add(node, -1)
        node.kind, node.conversation, node.checkpoint = kind, conversation, checkpoint
        self.totals.add(node)
        self.conversations.setdefault(conversation, {})[node] = None

    def unmark(self, node: Node) -> None:
        """Make `node` a plain node; its checkpoint is dropped. The caller tidies."""
        if node.kind is None:
            return
        self.totals.add(node, -1)
        node.kind, node.checkpoint = None, None
        self.totals.add(node)
        entries = self.conversations[node.conversation]
        del entries[node]
        if not entries:
            del self.conversations[node.conversation]

    def tidy(self, node: Node) -> None:
        """Merge or remove `node`, and what is above it, where no reason to exist is left."""
        while node.parent is not None and node.kind is None and not node.pins:
            parent = node.parent
            if len(node.children) == 1:
                self._merge_into_child(node)
                return
            if node.children:
                return
            self._cut_off(node)
            node = parent

    def remove(self, node: Node) -> None:
        """Drop `node` and everything below it, pinned or not."""
        parent = node.parent
        assert parent is not None
        for below in list(self._below(node)):
            self.unmark(below)
            self.leaves.pop(below, None)
            self.totals.add(below, -1)
            below.parent = None
        del parent.children[int(node.edge[0])]
        if parent is not self.root and not parent.children:
            self.leaves[parent] = None
        self.tidy(parent)

    def cut_tail(self, leaf: Node, length: int) -> None:
        """Keep only the first `length` tokens of a leaf's own edge, 0 < length < len(edge)."""
        assert leaf.span is not None
        assert not leaf.children
        kept, _ = leaf.span.split(length)
        self.totals.add(leaf, -1)
        leaf.span = kept
        leaf.end += length - len(leaf.edge)
        leaf.edge = leaf.edge[:length].copy()
        self.totals.add(leaf)

    def abandon(self) -> None:
        """Detach every node, whatever state the tree is in; the tree must not be used again."""
        for node in list(self.nodes()):
            node.parent = None

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        for child in self.root.children.values():
            yield from self._below(child)

    def check(self) -> None:
        """Walk every invariant of the structure; AssertionError names the one that is broken."""
        sums = Totals()
        leaves: set[Node] = set()
        entries: set[Node] = set()
        for node in self.nodes():
            _check_node(node)
            sums.add(node)
            if not node.children:
                leaves.add(node)
            if node.kind is not None:
                entries.add(node)
                assert node in self.conversations[node.conversation], "an entry is not listed"
        for name in (total.name for total in fields(Totals)):
            counted, kept = getattr(sums, name), getattr(self.totals, name)
            assert counted == kept, f"{name}: {kept} kept, {counted} counted"
        assert leaves == set(self.leaves), "the leaves listed are not the leaves"
        listed = [node for held in self.conversations.values() for node in held]
        assert len(listed) == len(entries), "a conversation lists a node that is no entry"

    @staticmethod
    def _below(node: Node) -> Iterator[Node]:
        pending = [node]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node

    def _node_at(self, place: Place) -> Node:
        if place.length == place.node.end:
            return place.node
        return self._split(place.node, place.length - place.node.start)

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge after `at` of its tokens; the new upper node is returned."""
        assert node.span is not None
        assert node.parent is not None
        first, rest = node.span.split(at)
        self.totals.add(node, -1)
        upper = Node(
            edge=node.edge[:at].copy(),
            span=first,
            end=node.start + at,
            parent=node.parent,
            used=node.used,
        )
        node.parent.children[int(upper.edge[0])] = upper
        node.edge, node.span, node.parent = node.edge[at:].copy(), rest, upper
        upper.children[int(node.edge[0])] = node
        self.totals.add(upper)
        self.totals.add(node)
        return upper

    def _merge_into_child(self, node: Node) -> None:
        (child,) = node.children.values()
        assert node.parent is not None
        assert node.span is not None
        assert child.span is not None
        joined = node.span.join(child.span)
        self.totals.add(node, -1)
        self.totals.add(child, -1)
        child.edge = np.concatenate((node.edge, child.edge))
        child.span = joined
        child.parent = node.parent
        child.parent.children[int(child.edge[0])] = child
        node.parent = None
        node.children.clear()
        self.totals.add(child)

    def _cut_off(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        del parent.children[int(leaf.edge[0])]
        del self.leaves[leaf]
        self.totals.add(leaf, -1)
        leaf.parent = None
        if parent is not self.root and not parent.children:
            self.leaves[parent] = None


def common_length(edge: TokenIds, tokens: TokenIds) -> int:
    """How many tokens the two have in common from their start."""
    length = min(len(edge), len(tokens))
    differs = edge[:length] != tokens[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def _check_node(node: Node) -> None:
    parent = node.parent
    assert parent is not None, "a node in the tree has no parent"
    assert len(node.edge) > 0, "an edge is empty"
    assert parent.children.get(int(node.edge[0])) is node, "a child is filed under another token"
    assert node.start == parent.end, "a node does not begin where its parent ends"
    assert node.span is not None, "an edge has no span"
    assert node.span.length == len(node.edge), "a span's length is not its edge's"
    assert node.checkpoint is None or node.checkpoint.length == node.end, "checkpoint off its node"
    assert node.checkpoint is None or node.kind is not None, "a checkpoint without an entry"
    assert node.pins >= 0, "a pin was taken back twice"
    assert node.used <= parent.used or parent.parent is None, "a child was used after its parent"
    has_reason = node.kind is not None or node.pins > 0 or node.is_fork
    assert has_reason, "a node without a reason to exist"
