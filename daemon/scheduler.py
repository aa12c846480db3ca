"""Which prompt is read next, and how far: pure decisions over turns, without clock or arrays.

* Least left to read first; of equals, the one that arrived first.
* Ageing: a turn is credited with every token that was read for later arrivals in its stead, and
  pays back twice what is read for itself. So a long prompt yields as many tokens as it has left,
  then takes turns: no prompt starves, and a short one waits for one chunk of a long one at most.
* Whoever was parked comes before whoever has not begun. Whoever waits for the disk does not count.
* A turn follows a reader that will soon hold more of its prompt than the tree does, and lends
  that reader its own rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from daemon.turns import Phase, Turn
from mlx_backend.messages import TokenIds

CHUNK_SHARE_WHILE_DECODING = 4
WORTH_WAITING_TOKENS = 16
"""Sharing less than this is not worth a wait: the tree would not take a checkpoint for it."""

Rank: TypeAlias = tuple[int, int]


def next_to_read(turns: Sequence[Turn], may_open: bool) -> Turn | None:
    """The turn whose chunk is read next. `may_open`: a further row may be opened."""
    ranks: dict[Turn, Rank] = {}
    followers: list[tuple[Turn, Turn]] = []
    has_parked = any(turn.phase is Phase.PARKED for turn in turns)
    opening = Phase.PARKED if has_parked else Phase.WAITING
    for turn in turns:
        if turn.is_queued and turn.leader is not None:
            followers.append((turn, turn.leader))
        elif turn.awaits_disk:
            continue
        elif turn.phase is Phase.READING or (may_open and turn.phase is opening):
            ranks[turn] = _rank(turn, turn.left)
    for turn, leader in followers:
        ranks[leader] = min(ranks[leader], _rank(turn, turn.readable - leader.position))
    return min(ranks, key=ranks.__getitem__, default=None)


def _rank(turn: Turn, left: int) -> Rank:
    return (left - turn.overtaken, turn.arrival)


def chunk_size(chunk_tokens: int, bearable_tokens: int, is_decoding: bool) -> int:
    """How many tokens to read in one go: fewer while others decode, and no more than bearable."""
    size = max(1, chunk_tokens // CHUNK_SHARE_WHILE_DECODING) if is_decoding else chunk_tokens
    return min(size, bearable_tokens)


def chunk_end(turn: Turn, size: int) -> int:
    """Where the next chunk of `turn` ends, of `size` tokens or less: no stop is passed."""
    end = min(turn.position + size, turn.readable)
    return min((stop for stop in turn.stops if turn.position < stop < end), default=end)


def age(turns: Iterable[Turn], reader: Turn, tokens: int) -> None:
    """Account for `tokens` read for `reader` while the others waited."""
    reader.overtaken = max(0, reader.overtaken - 2 * tokens)
    for turn in turns:
        has_to_read = turn.is_queued or turn.phase is Phase.READING
        if has_to_read and turn.arrival < reader.arrival:
            turn.overtaken += tokens


def common_prefix(one: TokenIds, other: TokenIds) -> int:
    """How many leading ids are equal."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def best_leader(turn: Turn, readers: Sequence[Turn], can_cut: bool) -> tuple[Turn, int] | None:
    """The reader that shares most with `turn`, and the fork; None if the tree holds as much.

    A fork that the reader has passed counts only where the state `can_cut` behind itself.
    """
    best: tuple[Turn, int] | None = None
    worth = turn.at_hand + WORTH_WAITING_TOKENS
    for reader in readers:
        fork = min(common_prefix(turn.tokens, reader.tokens), turn.readable, reader.readable)
        if fork >= worth and (can_cut or fork > reader.position):
            best, worth = (reader, fork), fork + 1
    return best
