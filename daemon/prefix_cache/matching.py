"""What a prompt shares with the tree: how much a row can be restored from, and why not more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from daemon.prefix_cache.nodes import Node, Place
from daemon.prefix_cache.tombstones import Cause, Loss
from mlx_backend.interface import Snapshot
from mlx_backend.messages import CacheKind, TokenIds

NEXT_TOKENS = 16
"""How much of a stored continuation a match tells of."""


class Reason(StrEnum):
    """Why a match is no longer than it is."""

    OFF = "off"  # this model's state allows no reuse
    FIRST_SEEN = "first_seen"  # nothing stored begins with these tokens
    CONTINUES = "continues"  # all that is stored of this prompt was restored
    EVICTED = "evicted"  # more could be restored before something was evicted
    NOT_KEPT = "not_kept"  # more was read, but it was too large to be stored
    NO_CHECKPOINT = "no_checkpoint"  # more is stored, but no row can be restored there


def no_tokens() -> TokenIds:
    return np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class Match:
    """What a prompt shares with the tree; pinned until it is released.

    `length` tokens can be restored from `snapshot`; `common` tokens lie on a path of the tree.
    `stored_next` are the ids that the tree holds right behind those, up to `NEXT_TOKENS`, as the
    most recently used `conversation` that has these tokens went on; `holder` is the session whose
    live leaf that is, "" if it is nobody's. The prompt has `own_common` tokens in common with the
    asking session's own history, its live leaf while it has one: fewer than `common` where it goes
    on as another session did. `own_next` are the ids that history has behind them, none where it
    ends.

    `lost` tokens could have been restored until `evicted_seconds` ago, when `evicted_by` (a
    `Cause`) took them (0: no more than now). `was_not_kept`: those were never stored.
    """

    length: int = 0
    common: int = 0
    lost: int = 0
    snapshot: Snapshot | None = None
    why: Reason = Reason.FIRST_SEEN
    evicted_by: Cause | None = None
    evicted_seconds: float | None = None
    was_not_kept: bool = False
    stored_next: TokenIds = field(default_factory=no_tokens)
    own_next: TokenIds = field(default_factory=no_tokens)
    own_common: int = 0
    conversation: str = ""
    holder: str = ""
    pinned: Node | None = None

    def explain(self, loss: Loss | None, prompt_length: int) -> None:
        """Say why it is no longer; `loss` is what the tombstones know of the prompt."""
        if loss is not None and loss.length > self.length:
            self.lost = loss.length
            self.was_not_kept = loss.cause is Cause.NOT_KEPT
            if self.was_not_kept:
                self.why = Reason.NOT_KEPT
                return
            self.why, self.evicted_by = Reason.EVICTED, loss.cause
            self.evicted_seconds = loss.seconds
        elif not self.common:
            self.why = Reason.FIRST_SEEN
        elif self.length < min(self.common, prompt_length - 1):
            self.why = Reason.NO_CHECKPOINT
        else:
            self.why = Reason.CONTINUES

    def tell_what_goes_on(self, place: Place) -> None:
        """Follow the most recently used way on from where the prompt left the tree."""
        node, nearest = place.node, None
        following = node.edge[place.length - node.start :][:NEXT_TOKENS]
        if len(following) and node.kind is not None:
            nearest = node
        while node.children and (nearest is None or len(following) < NEXT_TOKENS):
            node = max(node.children.values(), key=lambda child: child.used)
            following = np.concatenate((following, node.edge[:NEXT_TOKENS]))
            nearest = nearest or (node if node.conversation else None)
        self.stored_next = following[:NEXT_TOKENS].copy()
        nearest = nearest or node
        self.conversation = nearest.conversation
        self.holder = nearest.holders[-1] if nearest.holders else ""

    def tell_own_departure(self, place: Place, leaves: Iterable[Node]) -> None:
        """Find where the prompt leaves the one of `leaves` that it shares most with.

        Of those alike in that the first that goes on. Walks up from each leaf once.
        """
        on_way = {place.node, *place.node.above()}
        for leaf in leaves:
            behind, node = [], leaf
            while node not in on_way and node.parent is not None:
                behind.append(node)
                node = node.parent
            common = min(node.end, place.length)
            if common < self.own_common or (common == self.own_common and len(self.own_next)):
                continue
            edges = [node.edge[common - node.start :][:NEXT_TOKENS]] if node.parent else []
            edges += [each.edge[:NEXT_TOKENS] for each in reversed(behind[-NEXT_TOKENS:])]
            following = np.concatenate(edges or [no_tokens()])[:NEXT_TOKENS]
            self.own_common, self.own_next = common, following.copy()


def restorable(kind: CacheKind, place: Place, prompt_length: int) -> tuple[Node, int]:
    """The deepest node a row can be restored from, and up to which length."""
    node, most = place.node, min(place.length, prompt_length - 1)
    if kind is CacheKind.SLICEABLE:
        while node.parent is not None and node.start >= most:
            node = node.parent
        return node, max(0, most)
    while node.parent is not None and (node.end > most or node.checkpoint is None):
        node = node.parent
    return node, node.end
