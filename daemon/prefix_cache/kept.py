"""A state of the tree as others see it, who want to keep it elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from weakref import ref

import numpy as np

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.nodes import Node
from daemon.prefix_cache.radix_tree import RadixTree
from daemon.prefix_cache.worth import surplus
from mlx_backend.interface import Checkpoint, Span
from mlx_backend.messages import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """All of `tokens`, int32, covered by `spans` end to end; `checkpoint` after the last of them,
    None where the model needs none or the node has none.

    hits: matches that were restored from here. is_end: nothing in the tree goes on from it, or it
    is what its conversation goes on from in any case: an end of it, or of a branch of it.
    """

    tokens: TokenIds
    spans: tuple[Span, ...]
    checkpoint: Checkpoint | None
    kind: EntryKind | None
    hits: int
    is_end: bool


def state_of(tree: RadixTree, node: Node) -> Kept:
    """The state after a node's last token. Holds its arrays, whatever becomes of the tree."""
    path = node.path()
    return Kept(
        tokens=np.concatenate([on_path.edge for on_path in path]),
        spans=tuple(on_path.span for on_path in path if on_path.span is not None),
        checkpoint=node.checkpoint,
        kind=node.kind,
        hits=node.hits,
        is_end=_is_end(tree, node),
    )


def all_states(tree: RadixTree, used_until: float) -> Iterator[Kept]:
    """Every state that is not part of another one, a leaf or whatever has a checkpoint, and that
    was not used later than that.

    The most recently used first, of those alike the longest. Each is looked up only when its turn
    comes: what has left the tree by then is passed over, and is not kept in memory for it.
    """
    for node in _own_ends(tree, used_until):
        if _is_there(node()):
            yield state_of(tree, cast(Node, node()))


def _own_ends(tree: RadixTree, used_until: float) -> list[ref[Node]]:
    old = (node for node in tree.nodes() if node.used_at <= used_until)
    own = [node for node in old if node.checkpoint is not None or not node.children]
    own.sort(key=lambda node: (node.used, node.end), reverse=True)
    return [ref(node) for node in own]


def _is_there(node: Node | None) -> bool:
    return node is not None and node.parent is not None


def _is_end(tree: RadixTree, node: Node) -> bool:
    if not node.children:
        return True
    return node.kind is not None and node not in surplus(tree.conversations[node.conversation])
