"""What was lost lately, and why, so that "read again" can be told from "seen for the first time".

A tombstone is an offset and the last tokens before it: enough to explain with, and no more is
done with it. There are few of them and each is small, whatever they stand for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from daemon.prefix_cache.nodes import Node
from mlx_backend.messages import TokenIds

TAIL_TOKENS = 64


class Cause(StrEnum):
    """Why something that was read cannot be restored (any more)."""

    ENTRIES = "entries"  # more entries than allowed
    BYTES = "bytes"  # more bytes than allowed, or somebody else needed them
    ARRAYS = "arrays"  # more device arrays than allowed
    IDLE = "idle"  # the session that held it was idle for too long
    RESET = "reset"  # the session was reset or deleted, or the cache cleared
    SESSIONS = "sessions"  # more sessions, or more branches of one, than are kept
    NOT_KEPT = "not_kept"  # never stored: too large for the limits


@dataclass(frozen=True, slots=True)
class Loss:
    """`length` tokens of a prompt could be restored until `seconds` ago."""

    length: int
    cause: Cause
    seconds: float


class Tombstones:
    """At most `capacity` of them, the oldest forgotten first; and counts that forget nothing.

    `on_loss` hears of each loss that nobody asked for, before it happens: whoever wants to keep
    the node's state elsewhere has it for the last time.
    """

    def __init__(self, capacity: int = 512, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[Cause] = Counter()
        self.on_loss: Callable[[Node], object] = lambda node: None
        self._capacity = capacity
        self._clock = clock
        self._graves: dict[tuple[int, bytes], tuple[Cause, float]] = {}

    def add(self, node: Node, cause: Cause) -> None:
        """A node's state is about to be lost, or part of it. Call while it is in its tree.

        What can be cut at any token is remembered at some of them, the closer the nearer its end:
        a prompt may be sent again without its answer, or with another one.
        """
        if cause is not Cause.RESET:
            self.on_loss(node)
        edges, length = [node.edge], 0
        for above in node.above():
            if length >= TAIL_TOKENS:
                break
            edges.append(above.edge[-(TAIL_TOKENS - length) :])
            length += len(edges[-1])
        known = np.concatenate(edges[::-1])
        for back in _within(len(node.edge)) if node.checkpoint is None else (0,):
            end = len(known) - back
            tail = known[max(0, end - TAIL_TOKENS) : end]
            self._bury(node.end - back, tail.tobytes(), cause)

    def add_unkept(self, tokens: TokenIds) -> None:
        """What was read up to here was too large to be stored, or all of it to be."""
        self._bury(len(tokens), tokens[-TAIL_TOKENS:].tobytes(), Cause.NOT_KEPT)

    def longest(self, tokens: TokenIds) -> Loss | None:
        """The most of a prompt that could have been restored before something was lost."""
        found = max(
            (
                grave
                for grave in self._graves
                if grave[0] < len(tokens)
                and tokens[max(0, grave[0] - TAIL_TOKENS) : grave[0]].tobytes() == grave[1]
            ),
            key=lambda grave: grave[0],
            default=None,
        )
        if found is None:
            return None
        cause, buried_at = self._graves[found]
        return Loss(found[0], cause, self._clock() - buried_at)

    def _bury(self, end: int, tail: bytes, cause: Cause) -> None:
        self._graves.pop((end, tail), None)
        self._graves[end, tail] = cause, self._clock()
        if len(self._graves) > self._capacity:
            del self._graves[next(iter(self._graves))]


def _within(length: int) -> list[int]:
    """Tokens back from the end of an edge: the more, the further apart; the end itself last."""
    backs = [0]
    while (back := max(TAIL_TOKENS, backs[0] * 4)) < length:
        backs.insert(0, back)
    return backs
