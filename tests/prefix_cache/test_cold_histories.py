"""A long history that is read at once: what is kept within it, and what goes first when it has to.

Its messages are 1,000 tokens long, so with room there is a checkpoint behind every fourth.
"""

from __future__ import annotations

import pytest

from daemon.prefix_cache.checkpoints import MESSAGE_SPACING, EntryKind
from mlx_backend.messages import CacheKind, Marks
from tests.prefix_cache.traffic import (
    KINDS,
    UNLIMITED,
    Conversation,
    Traffic,
    bytes_of,
    starts,
    text,
)

MESSAGE = 1_000
MESSAGES = 30
LENGTH = MESSAGES * MESSAGE
HISTORY = text(LENGTH, 1)
BEGINS = range(0, LENGTH, MESSAGE)
TAIL = [50_001, 50_002, 50_003]


def read_at_once(traffic: Traffic, *, session: str = "main", answer: int = 40) -> int:
    marks = Marks(head_end=MESSAGE, last_user_end=LENGTH, stable_end=LENGTH)
    return traffic.request(
        [*HISTORY, *TAIL],
        answer=text(answer, 2),
        marks=marks,
        messages=starts(BEGINS),
        session=session,
    )


def taken_back(traffic: Traffic, messages: int) -> int:
    """Take that many messages back and say something else; what is read again of the rest."""
    body = [*HISTORY[: LENGTH - messages * MESSAGE], *text(50, 3)]
    marks = Marks(head_end=MESSAGE, last_user_end=len(body), stable_end=len(body))
    reused = traffic.request([*body, *TAIL], marks=marks, session="main")
    return max(0, len(body) - 50 - reused)


def kinds(traffic: Traffic) -> list[str]:
    return [entry.kind for entry in traffic.cache.entries() if entry.kind]


@KINDS
@pytest.mark.parametrize("messages", range(1, MESSAGES))
def test_taking_back_any_number_of_messages_reads_little_again(kind, messages):
    traffic = Traffic(kind)
    read_at_once(traffic)
    most = MESSAGE_SPACING if kind is CacheKind.CHECKPOINTED else 0
    assert taken_back(traffic, messages) <= most


def test_where_a_history_was_taken_back_the_next_one_finds_a_fork():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    read_at_once(traffic)
    for again in (False, True):
        assert (taken_back(traffic, 12) == 0) == again


@pytest.mark.parametrize("room", [{"checkpoints": 3}, {"checkpoints": 4}])
def test_a_history_lives_on_three_checkpoints_like_any_other(room):
    """Head, last user's end and last end are what is left, whatever was kept between them."""
    limit = bytes_of(tokens=LENGTH + 5_000, nodes=12, **room)
    traffic = Traffic(CacheKind.CHECKPOINTED, max_bytes=limit)
    read_at_once(traffic)
    assert len(kinds(traffic)) <= room["checkpoints"]
    assert {"head", "user_end", "turn_end"} <= set(kinds(traffic))
    going_on = [*HISTORY, *TAIL, *text(40, 2), *text(60, 4)]
    assert traffic.request([*going_on, *TAIL], session="main") == LENGTH + 3 + 40
    assert traffic.match([*HISTORY[:MESSAGE], 7]).length == MESSAGE


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_history_that_does_not_fit_costs_no_conversation_what_it_goes_on_from(room):
    traffic = Traffic(CacheKind.CHECKPOINTED)
    others = [Conversation(traffic, f"other {n}", text(100, n), seed=n) for n in range(3)]
    for other in others:
        other.turn()
    traffic.store(HISTORY[:MESSAGE], EntryKind.HEAD, "long")
    before = kinds(traffic)
    free = bytes_of(tokens=LENGTH, nodes=room, checkpoints=room) if room else 0
    traffic.cache.set_max_bytes(traffic.cache.status().bytes + free)
    for offset in range(5 * MESSAGE, LENGTH, 4 * MESSAGE):
        stored = traffic.store(HISTORY[:offset], EntryKind.MESSAGE_END, "long")
        assert stored == (room > 0)
    assert sorted(kinds(traffic)) == sorted([*before, *["message_end"] * room])
    for other in others:
        assert traffic.match(other.prompt()[0]).length == len(other.head) + len(other.history)


def test_what_is_kept_between_messages_goes_before_what_anybody_goes_on_from():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    read_at_once(traffic)
    between = kinds(traffic).count("message_end")
    assert between == 7
    held = traffic.cache.status().bytes
    for left in reversed(range(between)):
        traffic.cache.give_back(1)
        assert kinds(traffic).count("message_end") == left
        assert {"head", "user_end", "turn_end"} <= set(kinds(traffic))
    assert held - traffic.cache.status().bytes >= bytes_of(checkpoints=between)


def test_of_what_is_kept_between_messages_what_saves_least_goes_first():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    read_at_once(traffic)
    for _ in range(3):
        traffic.cache.give_back(1)
    apart = 2 * MESSAGE_SPACING
    assert max(taken_back(traffic, messages) for messages in range(1, MESSAGES)) <= apart


def test_the_entry_limit_counts_them_and_drops_them_first():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=5, max_bytes=UNLIMITED)
    read_at_once(traffic)
    found = kinds(traffic)
    assert len(found) == 5
    assert {"head", "user_end", "turn_end"} <= set(found)
    other = Conversation(traffic, "other", text(100, 9), seed=9)
    other.turn()
    assert EntryKind.MESSAGE_END.value not in kinds(traffic)
    assert {"head", "user_end", "turn_end"} <= set(kinds(traffic))
