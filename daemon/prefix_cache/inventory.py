"""What the tree holds, told to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from daemon.prefix_cache.nodes import Node
from daemon.status import EntryStatus


def entry_statuses(nodes: Iterable[Node], now: float) -> Iterator[EntryStatus]:
    """One for each node, in the order given; `live_of` names all sessions that hold it."""
    for node in nodes:
        above = next(node.above(), None)
        yield EntryStatus(
            id=node.number,
            parent=above.number if above is not None else None,
            tokens=node.end,
            own_tokens=len(node.edge),
            own_bytes=node.own_bytes,
            kind=node.kind.value if node.kind is not None else "",
            session=node.conversation,
            has_checkpoint=node.checkpoint is not None,
            live_of=", ".join(node.holders) or None,
            pins=node.pins,
            hits=node.hits,
            age_seconds=now - node.made_at,
            idle_seconds=now - node.used_at,
        )


def path_tokens(leaves: Iterable[Node]) -> int:
    """Tokens of the paths to these leaves, those of a common prefix once."""
    nodes = {node for leaf in leaves for node in leaf.path()}
    return sum(len(node.edge) for node in nodes)


def own_path_bytes(leaves: Iterable[Node], holder: str) -> int:
    """Bytes of the paths to a session's leaves, as far as nobody else builds on them."""
    own: set[Node] = set()
    for leaf in leaves:
        for node in (leaf, *leaf.above()):
            is_others = any(other != holder for other in node.holders)
            is_forked = node is not leaf and any(
                below not in own for below in node.children.values()
            )
            if node in own or is_others or is_forked:
                break
            own.add(node)
    return sum(node.own_bytes for node in own)
