"""What the tree shows to who keeps it elsewhere: what it is about to lose, and all that it has."""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import dataclass, field
from typing import Any

from daemon.prefix_cache.checkpoints import EntryKind
from daemon.prefix_cache.kept import Kept
from mlx_backend.messages import CacheKind, Marks, token_ids
from tests.prefix_cache.traffic import KINDS, Conversation, Traffic, bytes_of, starts, text


@dataclass
class Watched(Traffic):
    """`shown` is what was shown before it was lost, `stored` all that was ever let in."""

    shown: list[Kept] = field(default_factory=list)
    stored: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cache.watch(self.shown.append)

    def store(self, tokens: Any, *args: Any) -> bool:
        is_stored = super().store(tokens, *args)
        if is_stored:
            self.stored.add(tuple(int(token) for token in tokens))
        return is_stored


def expect_whole(kept: Kept, kind: CacheKind) -> None:
    """Spans and checkpoint are those of its tokens."""
    spelled = [token for span in kept.spans for token in span.tokens]
    assert spelled == kept.tokens.tolist()
    if kind is CacheKind.CHECKPOINTED:
        assert list(kept.checkpoint.tokens) == spelled
    else:
        assert kept.checkpoint is None


def busy(traffic: Watched, requests: int) -> None:
    dice = random.Random(7)
    histories = [text(100 + 10 * number, number % 3) for number in range(12)]
    for number in range(requests):
        at = dice.randrange(len(histories))
        body = [*histories[at], *text(dice.randrange(20, 80), 100 + number)]
        answer = text(dice.randrange(5, 40), 9_000 + number)
        traffic.request(
            body,
            answer=answer,
            marks=Marks(head_end=100, last_user_end=len(body), stable_end=len(body)),
            messages=starts(range(100, len(body), 40)),
            session=f"session-{at}",
        )
        histories[at] = [*body, *answer] if len(body) < 500 else text(100, number)


@KINDS
def test_whatever_a_limit_takes_was_shown_before(kind: CacheKind) -> None:
    checkpoints = 12 if kind is CacheKind.CHECKPOINTED else 0
    room = bytes_of(tokens=2_000, nodes=20, checkpoints=checkpoints)
    traffic = Watched(kind, max_bytes=room)
    busy(traffic, 150)
    for kept in traffic.shown:
        expect_whole(kept, kind)
    assert traffic.cache.status().evicted_entries > 10
    shown = [tuple(kept.tokens.tolist()) for kept in traffic.shown]
    for state in traffic.stored:
        if kind is CacheKind.CHECKPOINTED:
            is_kept = (
                traffic.cache.peek(token_ids([*state, 60_000])) == len(state) or state in shown
            )
        else:
            known = traffic.cache.known(token_ids(state))
            is_kept = known == len(state) or any(other[: len(state)] == state for other in shown)
        assert is_kept, f"{len(state)} tokens were lost unseen"


@KINDS
def test_all_that_is_kept_is_told_and_what_was_used_last_comes_first(kind: CacheKind) -> None:
    traffic = Watched(kind)
    for session in ("first", "second"):
        conversation = Conversation(traffic, session, text(200, 1), seed=len(session))
        conversation.turn()
        conversation.turn()
    states = list(traffic.cache.states())
    for kept in states:
        expect_whole(kept, kind)
    ends = [kept.tokens.tolist() for kept in states]
    assert ends[0] == [*conversation.head, *conversation.history]
    told = {tuple(end) for end in ends}
    if kind is CacheKind.CHECKPOINTED:
        assert told == traffic.stored
        assert [len(end) for end in ends[:2]] == sorted((len(e) for e in ends[:2]), reverse=True)
    else:
        assert len(told) == 2
        assert all(any(end[: len(s)] == s for end in told) for s in traffic.stored)
    assert not traffic.shown


@KINDS
def test_what_idleness_takes_is_shown_and_what_somebody_deletes_is_not(kind: CacheKind) -> None:
    traffic = Watched(kind)
    for session in ("idle", "too many", "deleted"):
        traffic.store(text(50, len(session)), EntryKind.TURN_END, session, session, False)
    traffic.cache.let_go("idle", "idle")
    traffic.cache.let_go("too many", "sessions")
    traffic.cache.let_go("deleted", "reset")
    traffic.store(text(70, 1))
    traffic.cache.clear()
    assert [kept.tokens.tolist() for kept in traffic.shown] == [text(50, 4), text(50, 8)]


@KINDS
def test_who_looks_at_one_state_after_the_other_keeps_none_in_memory(kind: CacheKind) -> None:
    traffic = Watched(kind)
    for seed in range(3):
        traffic.store(text(50, seed))
    alive = [weakref.ref(kept.spans[0]) for kept in traffic.cache.states()]
    states = traffic.cache.states()
    assert next(states).spans
    traffic.cache.clear()
    gc.collect()
    assert not [span for span in alive if span() is not None]
    assert not list(states)


def test_what_was_used_and_what_a_conversation_goes_on_from_is_told_from_the_rest() -> None:
    traffic = Watched(CacheKind.CHECKPOINTED)
    conversation = Conversation(traffic, "main", text(200, 1), seed=1)
    conversation.turn()
    first_end = len(conversation.head) + len(conversation.history)
    conversation.turn()
    conversation.turn()
    found = {len(kept.tokens): kept for kept in traffic.cache.states()}
    last_end = len(conversation.head) + len(conversation.history)
    assert found[last_end].is_end
    assert found[conversation.last_boundary].is_end, "the next turn may leave out what was thought"
    assert not found[first_end].is_end
    assert (found[first_end].hits, found[last_end].hits) == (1, 0)


@KINDS
def test_a_tree_that_moved_out_is_empty_and_has_lost_nothing(kind: CacheKind) -> None:
    traffic = Watched(kind)
    traffic.request(text(200, 1), answer=text(50, 2))
    traffic.cache.move_out()
    traffic.check()
    assert traffic.cache.status().bytes == 0
    assert traffic.match([*text(200, 1), 5]).why == "first_seen"
    assert not traffic.shown
