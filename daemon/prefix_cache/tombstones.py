"""What was evicted lately, so that "read again" can be told from "seen for the first time".

A tombstone is an offset and the last tokens before it: enough to explain with, and no more is
done with it. There are few of them and each is small, whatever they stand for.
"""

from __future__ import annotations

from daemon.prefix_cache.radix_tree import Node
from mlx_backend.messages import TokenIds

TAIL_TOKENS = 64


class Tombstones:
    """At most `capacity` of them, the oldest forgotten first."""

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._tails: dict[tuple[int, bytes], None] = {}

    def add(self, node: Node) -> None:
        """Call while `node` is still in its tree."""
        tail, length = [node.edge[-TAIL_TOKENS:]], min(len(node.edge), TAIL_TOKENS)
        above = node.parent
        while above is not None and length < min(TAIL_TOKENS, node.end):
            tail.append(above.edge[-(TAIL_TOKENS - length) :])
            length += len(tail[-1])
            above = above.parent
        key = (node.end, b"".join(part.tobytes() for part in reversed(tail)))
        self._tails.pop(key, None)
        self._tails[key] = None
        if len(self._tails) > self._capacity:
            del self._tails[next(iter(self._tails))]

    def longest(self, tokens: TokenIds) -> int:
        """How much of a prompt could have been restored before something was evicted."""
        return max(
            (
                end
                for end, tail in self._tails
                if end < len(tokens) and tokens[max(0, end - TAIL_TOKENS) : end].tobytes() == tail
            ),
            default=0,
        )
