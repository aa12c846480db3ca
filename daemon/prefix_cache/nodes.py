"""The nodes of the prefix tree, and what they add up to.

A node is *marked* where a row can be restored from on purpose: it has a `kind` then, and is an
entry of the shared cache (`is_shared`), the live leaf of sessions (`holders`), or both. Other
nodes are there because prompts part at them, or because somebody is building on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.interface import Checkpoint, Span
from mlx_backend.messages import TokenIds

TOKEN_BYTES = 4
"""The index's bytes for one token: its id."""

NODE_BYTES = 800
"""The index's own bytes for one node beside its ids: objects, dictionaries, array header."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Node:
    """The end of an edge. `used` and `stored` are logical times, `made_at` and `used_at` seconds.

    `number` names the node for as long as its tree lives. `hits`: matches that were restored from
    here. `spared`: tokens that went in this node's place since it was used.
    """

    edge: TokenIds
    span: Span | None
    end: int
    parent: Node | None = None
    children: dict[int, Node] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    kind: EntryKind | None = None
    conversation: str = ""
    is_shared: bool = False
    holders: tuple[str, ...] = ()
    pins: int = 0
    used: int = 0
    stored: int = 0
    spared: int = 0
    number: int = 0
    hits: int = 0
    made_at: float = 0.0
    used_at: float = 0.0

    @property
    def start(self) -> int:
        return self.end - len(self.edge)

    @property
    def is_fork(self) -> bool:
        return len(self.children) > 1

    @property
    def own_bytes(self) -> int:
        """What this node takes by itself, its share of the index included."""
        spans = self.span.nbytes if self.span is not None else 0
        checkpoints = self.checkpoint.nbytes if self.checkpoint is not None else 0
        return spans + checkpoints + NODE_BYTES + self.edge.nbytes

    def above(self) -> Iterator[Node]:
        """From the parent up to below the root."""
        node = self.parent
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def path(self) -> list[Node]:
        """From below the root down to this node."""
        nodes = [] if self.parent is None else [self, *self.above()]
        nodes.reverse()
        return nodes

    def below(self) -> Iterator[Node]:
        """This node and all below it, parents first."""
        pending = [self]
        while pending:
            node = pending.pop()
            pending.extend(node.children.values())
            yield node


@dataclass(slots=True)
class Totals:
    """What the tree holds. Tokens and bytes count each shared prefix once."""

    nodes: int = 0
    tokens: int = 0
    entries: int = 0
    live_leaves: int = 0
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
        self.entries += sign * node.is_shared
        self.live_leaves += sign * bool(node.holders)
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


@dataclass(frozen=True, slots=True)
class Mark:
    """What a stored state is to be: whose, of which kind, an entry (`shared`) or only held."""

    kind: EntryKind
    conversation: str
    holder: str | None = None
    shared: bool = True


def common_length(edge: TokenIds, tokens: TokenIds) -> int:
    """How many tokens the two have in common from their start."""
    length = min(len(edge), len(tokens))
    differs = edge[:length] != tokens[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length
