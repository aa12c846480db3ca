"""In-flight sharing: a waiting prompt follows one that is being read, and goes on from the fork.

The tree knows only what was captured. Where a prompt that is being read (the leader) shares more
with a waiting one than the tree holds, the fork becomes a stop of the leader, and the follower
waits until it has passed. A leader that ends early frees its followers: they go on from what it
left in the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from daemon.prefix_cache.cache import PrefixCache
from daemon.prefix_cache.checkpoints import EntryKind
from daemon.scheduler import WORTH_WAITING_TOKENS, best_leader, common_prefix
from daemon.turns import Phase, Turn
from mlx_backend.messages import TokenIds


class Sharing:
    """Who waits for whom. `turns` is the engine's own list of live turns, seen as it changes.

    Whoever is freed need not look for another leader: had another reader more to give, the old
    leader would have followed that one itself.

    `can_cut`: the state can be captured at any offset behind the one that was reached, which
    `capture` then does; otherwise a fork that was passed is lost.
    """

    def __init__(
        self,
        turns: Iterable[Turn],
        cache: PrefixCache,
        can_cut: bool,
        capture: Callable[[Turn, int, EntryKind], None],
    ) -> None:
        self._turns = turns
        self._cache = cache
        self._can_cut = can_cut
        self._capture = capture

    def arrived(self, turn: Turn) -> None:
        """A prompt came: see what the tree holds of it, and who is reading more."""
        turn.held = self._cache.peek(turn.tokens)
        self._seek(turn)

    def began(self) -> None:
        """Another prompt is being read; those that wait may want to follow it."""
        for turn in self._waiting():
            self._seek(turn)

    def moved(self, leader: Turn) -> None:
        """`leader` read a chunk or ended: free those that it has nothing more to give."""
        is_reading = leader.phase is Phase.READING
        for turn in self._waiting():
            if turn.leader is leader and not (is_reading and leader.position < turn.fork):
                turn.leader = None

    def learned(self, key: TokenIds) -> None:
        """`key` entered the tree: whoever begins like it has less left to read."""
        for turn in self._waiting():
            if common_prefix(turn.tokens, key) > turn.held:
                turn.held = self._cache.peek(turn.tokens)
                if turn.fork < turn.held + WORTH_WAITING_TOKENS:
                    turn.leader = None

    def _waiting(self) -> list[Turn]:
        return [turn for turn in self._turns if turn.is_queued]

    def _seek(self, turn: Turn) -> None:
        turn.leader = None
        readers = [other for other in self._turns if other.phase is Phase.READING]
        found = best_leader(turn, readers, self._can_cut)
        if found is None:
            return
        leader, fork = found
        if not self._cache.wants(turn.tokens[:fork], EntryKind.FORK):
            return
        if fork <= leader.position:
            self._capture(leader, fork, EntryKind.FORK)
        else:
            leader.stops.setdefault(fork, EntryKind.FORK)
            turn.leader, turn.fork = leader, fork
