"""A compressed radix tree over token ids: edges own spans, nodes may own a checkpoint.

Structure, marks and sums only; what is worth keeping is decided in `eviction`, what may be stored
in `storing`, what a match restores in `matching`.

Invariants (`check` walks them all):
* A node's path spells its tokens; `end` is the path's length. The root is empty and owns nothing.
* `span.length == len(edge)` for every node but the root; `checkpoint.length == end`.
* A node is there for a reason: it is marked, a fork, or pinned. Others are merged or removed.
* A marked node is shared or held, or both. `held` and `conversations` list the marked nodes.
* `totals` is the sum over the nodes.

A split keeps the lower half's identity and a merge the child's, so whoever holds a node (a pin)
keeps holding the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields

import numpy as np

from daemon.prefix_cache.nodes import Mark, Node, Place, Totals, common_length
from mlx_backend.interface import Checkpoint, Span
from mlx_backend.messages import TokenIds


class RadixTree:
    """See the module. All token arrays are int32 and are copied before they are kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._uses = 0
        self._made = 0
        self._begin()

    def clear(self) -> None:
        """Detach every node, whatever state the tree is in, and begin anew."""
        for node in list(self.nodes()):
            node.parent = None
        self._begin()

    def _begin(self) -> None:
        self.root = Node(edge=np.empty(0, dtype=np.int32), span=None, end=0)
        self.totals = Totals()
        self.leaves: dict[Node, None] = {}
        self.conversations: dict[str, dict[Node, None]] = {}
        self.held: dict[str, dict[Node, None]] = {}

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
        node = self.node_at(place)
        if span is None:
            return node
        edge = np.array(tokens[place.length :], dtype=np.int32)
        leaf = self._made_now(Node(edge=edge, span=span, end=len(tokens), parent=node))
        node.children[int(edge[0])] = leaf
        self.leaves.pop(node, None)
        self.leaves[leaf] = None
        self.totals.add(leaf)
        return leaf

    def node_at(self, place: Place) -> Node:
        """The node that ends at `place`; the edge is cut there if need be."""
        if place.length == place.node.end:
            return place.node
        return self._split(place.node, place.length - place.node.start)

    def touch(self, node: Node) -> None:
        """It was used just now, and all that it stands on."""
        self._uses += 1
        now = self._clock()
        for on_path in node.path():
            on_path.used, on_path.used_at, on_path.spared = self._uses, now, 0

    def mark(self, node: Node, mark: Mark, checkpoint: Checkpoint | None) -> None:
        """Make a plain node an entry or a live leaf, or both."""
        assert node.kind is None
        self.totals.add(node, -1)
        node.kind, node.conversation, node.checkpoint = mark.kind, mark.conversation, checkpoint
        node.is_shared, node.stored = mark.shared, self._uses
        self.totals.add(node)
        self.conversations.setdefault(mark.conversation, {})[node] = None
        if mark.holder is not None:
            self.hold(node, mark.holder)

    def unmark(self, node: Node) -> None:
        """Make `node` a plain node; its checkpoint is dropped. The caller tidies."""
        if node.kind is None:
            return
        for holder in node.holders:
            self.let_go(node, holder)
        self.totals.add(node, -1)
        _take_off_list(self.conversations, node.conversation, node)
        node.kind, node.conversation = None, ""
        node.checkpoint, node.is_shared = None, False
        self.totals.add(node)

    def share(self, node: Node, is_shared: bool) -> None:
        """Count a marked node among the entries, or no longer."""
        self.totals.entries += is_shared - node.is_shared
        node.is_shared = is_shared

    def hold(self, node: Node, holder: str) -> None:
        """Make a marked node the latest live leaf of a session."""
        assert node.kind is not None
        self.let_go(node, holder)
        self.totals.live_leaves += not node.holders
        node.holders += (holder,)
        self.held.setdefault(holder, {})[node] = None

    def let_go(self, node: Node, holder: str) -> None:
        """Take back one session's mark. The caller unmarks what nobody wants any more."""
        if holder not in node.holders:
            return
        node.holders = tuple(other for other in node.holders if other != holder)
        self.totals.live_leaves -= not node.holders
        _take_off_list(self.held, holder, node)

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
        for below in list(node.below()):
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

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents first."""
        for child in self.root.children.values():
            yield from child.below()

    def check(self) -> None:
        """Walk every invariant of the structure; AssertionError names the one that is broken."""
        nodes = list(self.nodes())
        sums = Totals()
        for node in nodes:
            _check_node(node)
            sums.add(node)
        for name in (total.name for total in fields(Totals)):
            counted, kept = getattr(sums, name), getattr(self.totals, name)
            assert counted == kept, f"{name}: {kept} kept, {counted} counted"
        leaves = {node for node in nodes if not node.children}
        assert leaves == set(self.leaves), "the leaves listed are not the leaves"
        marked = {(node.conversation, node) for node in nodes if node.kind is not None}
        assert marked == _listed(self.conversations), "conversations do not list what is marked"
        held = {(holder, node) for node in nodes for holder in node.holders}
        assert held == _listed(self.held), "sessions do not list what they hold"

    def _made_now(self, node: Node) -> Node:
        self._made += 1
        node.number, node.made_at = self._made, self._clock()
        node.used_at = node.made_at
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge after `at` of its tokens; the new upper node is returned."""
        assert node.span is not None
        assert node.parent is not None
        first, rest = node.span.split(at)
        self.totals.add(node, -1)
        edge, end = node.edge[:at].copy(), node.start + at
        upper = self._made_now(Node(edge=edge, span=first, end=end, parent=node.parent))
        upper.used, upper.used_at = node.used, node.used_at
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


def _take_off_list(lists: dict[str, dict[Node, None]], name: str, node: Node) -> None:
    del lists[name][node]
    if not lists[name]:
        del lists[name]


def _listed(lists: dict[str, dict[Node, None]]) -> set[tuple[str, Node]]:
    assert all(lists.values()), "an empty list is kept"
    return {(name, node) for name, nodes in lists.items() for node in nodes}


def _check_node(node: Node) -> None:
    parent, is_marked = node.parent, node.kind is not None
    assert parent is not None, "a node in the tree has no parent"
    assert len(node.edge) > 0, "an edge is empty"
    assert parent.children.get(int(node.edge[0])) is node, "a child is filed under another token"
    assert node.start == parent.end, "a node does not begin where its parent ends"
    assert node.span is not None, "an edge has no span"
    assert node.span.length == len(node.edge), "a span's length is not its edge's"
    assert node.checkpoint is None or node.checkpoint.length == node.end, "checkpoint off its node"
    assert node.checkpoint is None or is_marked, "a checkpoint without a mark"
    assert is_marked == (node.is_shared or bool(node.holders)), "a mark that nobody asked for"
    assert node.pins >= 0, "a pin was taken back twice"
    assert node.used <= parent.used or parent.parent is None, "a child was used after its parent"
    assert is_marked or node.pins > 0 or node.is_fork, "a node without a reason to exist"
