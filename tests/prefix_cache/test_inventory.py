"""What the cache tells of what it holds and of what it lost."""

from __future__ import annotations

import pytest

from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.messages import CacheKind, token_ids
from tests.prefix_cache.traffic import KINDS, Traffic, bytes_of, text


@KINDS
def test_entries_are_told_from_the_root_down(kind):
    traffic = Traffic(kind, holds_leaves=True)
    head = text(100, 1)
    traffic.store([*head, *text(50, 2)], EntryKind.TURN_END, "first", "first")
    traffic.store([*head, *text(30, 3)], EntryKind.PROMPT_END, "second")
    fork, *leaves = traffic.cache.entries()
    checkpoint = kind is CacheKind.CHECKPOINTED
    assert (fork.kind, fork.parent, fork.tokens, fork.has_checkpoint) == ("", None, 100, False)
    assert fork.own_bytes == bytes_of(tokens=100, nodes=1)
    told = {
        (leaf.kind, leaf.session, leaf.live_of, leaf.tokens, leaf.own_tokens, leaf.has_checkpoint)
        for leaf in leaves
    }
    assert told == {
        ("turn_end", "first", "first", 150, 50, checkpoint),
        ("prompt_end", "second", None, 130, 30, checkpoint),
    }
    assert {leaf.parent for leaf in leaves} == {fork.id}
    assert len({fork.id, *(leaf.id for leaf in leaves)}) == 3


@KINDS
def test_an_entry_tells_its_age_its_use_and_its_hits(kind):
    traffic = Traffic(kind)
    traffic.store(text(100, 1))
    traffic.now = 10.0
    for _ in range(3):
        traffic.cache.release(traffic.match([*text(100, 1), 5]))
    match = traffic.match([*text(100, 1), 6])
    traffic.now = 14.0
    traffic.cache.peek(token_ids([*text(100, 1), 7]))
    (entry,) = traffic.cache.entries()
    assert (entry.hits, entry.pins) == (4, 1)
    assert (entry.age_seconds, entry.idle_seconds) == (14.0, 4.0)
    traffic.cache.release(match)


@KINDS
def test_an_entry_that_grows_a_child_keeps_its_number(kind):
    traffic = Traffic(kind)
    traffic.store(text(100, 1))
    (before,) = traffic.cache.entries()
    traffic.store([*text(100, 1)[:50], *text(50, 2)])
    numbers = {entry.id: entry.tokens for entry in traffic.cache.entries()}
    assert numbers[before.id] == 100
    assert len(numbers) == 3


@KINDS
def test_sessions_that_hold_one_state_are_all_named(kind):
    traffic = Traffic(kind)
    for holder in ("first", "second"):
        traffic.store(text(100, 1), EntryKind.TURN_END, holder, holder)
    (entry,) = traffic.cache.entries()
    assert entry.live_of == "first, second"


@KINDS
def test_a_match_tells_how_the_latest_conversation_there_went_on(kind):
    traffic = Traffic(kind)
    head = text(100, 1)
    for session, seed in (("first", 2), ("second", 3)):
        traffic.store([*head, *text(50, seed)], session=session)
    match = traffic.match([*head, 60_000])
    assert (match.common, match.conversation) == (100, "second")
    assert match.stored_next.tolist() == text(50, 3)[:16]
    traffic.cache.release(match)
    traffic.cache.release(traffic.match([*head, *text(50, 2), 5]))
    match = traffic.match([*head, *text(50, 2)[:10], 60_000])
    assert (match.common, match.conversation) == (110, "first")
    assert match.stored_next.tolist() == text(50, 2)[10:26]


@KINDS
def test_what_goes_on_is_told_across_nodes_and_ends_with_what_is_stored(kind):
    traffic = Traffic(kind, minimum_gap=1)
    prompt = text(60, 1)
    for length in (40, 45, 50):
        traffic.store(prompt[:length], session="main", holder=str(length))
    told = [traffic.match([*prompt[:at], 60_000]).stored_next.tolist() for at in (30, 42, 50)]
    assert told == [prompt[30:46], prompt[42:50], []]
    assert traffic.match([*prompt[:50], 60_000]).conversation == "main"


def test_a_match_in_an_empty_cache_tells_of_nothing():
    match = Traffic(CacheKind.SLICEABLE).match(text(100, 1))
    assert (match.common, match.conversation, len(match.stored_next)) == (0, "", 0)


@KINDS
@pytest.mark.parametrize("cause", ["entries", "bytes", "arrays", "reset"])
def test_a_loss_is_told_with_its_cause_and_when(kind, cause):
    checkpoints = 1 if kind is CacheKind.CHECKPOINTED else 0
    limits = {
        "entries": {"max_entries": 1},
        "bytes": {"max_bytes": bytes_of(tokens=130, nodes=2, checkpoints=checkpoints)},
        "arrays": {"max_arrays": 5},
        "reset": {},
    }
    traffic = Traffic(kind, block_tokens=25, **limits[cause])
    traffic.store(text(100, 1))
    if cause == "arrays" and kind is CacheKind.CHECKPOINTED:
        assert traffic.match([*text(100, 1), 5]).was_not_kept
        return
    traffic.now = 5.0
    if cause == "reset":
        traffic.cache.clear()
    else:
        traffic.store(text(100, 2))
    traffic.now = 8.0
    match = traffic.match([*text(100, 1), 5])
    assert (match.lost, match.evicted_by, match.evicted_seconds) == (100, cause, 3.0)
    assert match.length < 100
    assert not match.was_not_kept


@KINDS
def test_losses_are_counted_by_cause(kind):
    traffic = Traffic(kind, max_entries=3)
    for seed in range(5):
        traffic.store(text(100, seed), session=str(seed))
    traffic.cache.give_back(1 << 40)
    status = traffic.cache.status()
    assert (status.evicted_by_entries, status.evicted_by_bytes) == (2, 3)
    assert status.evicted_entries == 5
    assert (status.max_arrays, status.max_entries) == (400_000, 3)


def test_thinned_checkpoints_are_counted_by_cause_too():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=2)
    for length in (100, 200, 300):
        traffic.store(text(300, 1)[:length], EntryKind.INTERVAL, "main")
    status = traffic.cache.status()
    assert (status.thinned_checkpoints, status.evicted_by_entries) == (1, 1)
    assert status.evicted_entries == 0


@KINDS
def test_what_is_read_again_after_a_loss_is_no_loss_any_more(kind):
    traffic = Traffic(kind)
    for _ in range(2):
        traffic.store(text(100, 1), EntryKind.TURN_END, "main", "main", shared=False)
        match = traffic.match([*text(100, 1), 5])
        assert (match.length, match.evicted_by) == (100, None)
        traffic.cache.release(match)
        traffic.cache.let_go("main", "reset")
        assert traffic.match([*text(100, 1), 5]).evicted_by == "reset"
