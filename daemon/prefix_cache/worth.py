"""What an entry is worth: to its conversation, and in tokens that would have to be read again."""

from __future__ import annotations

from collections.abc import Iterable

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.nodes import Node

BRANCH_ENDS = frozenset({EntryKind.USER_END, EntryKind.STABLE_END})
"""Where a branch of a conversation is taken up again, however long it has been quiet."""

SPARE_ENDS = frozenset({EntryKind.INTERVAL, EntryKind.MESSAGE_END})
"""Where a conversation goes on only if it is taken back or forks."""


def own_entries(entries: Iterable[Node]) -> list[Node]:
    """A conversation's entries without its forks, which others build on: those are nobody's."""
    return [node for node in entries if not node.is_fork]


def surplus(entries: Iterable[Node]) -> list[Node]:
    """Entries whose loss the conversation's next turn does not notice, if it just goes on.

    A fork is never one, nor is the latest of its kind. A branch that stopped keeps its last user
    message's end too: with sub-agents, one conversation has several branches that go on. So does
    one that lives in its session's live leaf only.
    """
    own = own_entries(entries)
    latest: dict[EntryKind | None, Node] = {}
    passed: set[Node] = set()
    for node in own:
        if node.kind not in latest or node.stored > latest[node.kind].stored:
            latest[node.kind] = node
        before = entry_above(node, node.kind)
        if before is not None:
            passed.add(before)
    return [
        node
        for node in own
        if node.kind in SPARE_ENDS
        or (latest[node.kind] is not node and (node in passed or not _ends_branch(node)))
    ]


def entry_above(node: Node, kind: EntryKind | None = None) -> Node | None:
    """The nearest entry (of that kind) above `node`."""
    for above in node.above():
        if above.kind is not None and (kind is None or above.kind is kind):
            return above
    return None


def tokens_lost(node: Node) -> int:
    """Tokens to read again if this entry is lost and its prompt comes back."""
    above = entry_above(node)
    return node.end - (above.end if above else 0)


def cost_per_byte(node: Node) -> float:
    """Tokens lost for each byte that the loss gives back."""
    freed = node.checkpoint.nbytes if node.checkpoint else 0
    if not node.children and node.span is not None:
        freed += node.span.nbytes
    return tokens_lost(node) / max(1, freed)


def rank(node: Node) -> int:
    """Strength, but a user's end for a head that nobody shares, which is worth what its tokens
    are, and for a live leaf that is no entry, which may be all that its session has."""
    if node.kind is EntryKind.HEAD or (node.kind and not node.is_shared):
        return EntryKind.USER_END.strength
    return node.kind.strength if node.kind else -1


def weakness(node: Node) -> tuple[int, float]:
    """Orders what a conversation gives up: the least comes first."""
    return rank(node), cost_per_byte(node)


def _ends_branch(node: Node) -> bool:
    return node.kind in BRANCH_ENDS or not node.is_shared
