"""What sessions hold: matched like any entry, kept until let go of, the last to be evicted."""

from __future__ import annotations

import pytest

from daemon.prefix_cache.cache import Reason
from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.messages import CacheKind, token_ids
from tests.prefix_cache.traffic import KINDS, Conversation, Traffic, bytes_of, restored, text


def reuse(traffic: Traffic, tokens: list[int]) -> int:
    """What a prompt that goes on from `tokens` would reuse; does not count as use."""
    return traffic.cache.peek([*tokens, 60_000])


def hold(traffic: Traffic, tokens: list[int], holder: str, *, shared: bool = False) -> bool:
    """Store the end of a session's turn."""
    return traffic.store(tokens, EntryKind.TURN_END, holder, holder, shared)


@KINDS
def test_without_entries_sessions_go_on_from_their_live_leaves(kind):
    traffic = Traffic(kind, max_entries=0, holds_leaves=True)
    conversation = Conversation(traffic, "main", text(200, 1), seed=1)
    assert traffic.match(conversation.prompt()[0]).why is Reason.FIRST_SEEN
    ends = [0]
    for _ in range(4):
        assert conversation.turn() == ends[-1]
        ends.append(len(conversation.head) + len(conversation.history))
    status = traffic.cache.status()
    assert (status.entries, status.live_leaves) == (0, 1)
    assert traffic.cache.held("main") == (ends[-1], status.bytes)


@KINDS
def test_a_live_leaf_is_matched_by_any_session(kind):
    traffic = Traffic(kind, max_entries=0, holds_leaves=True)
    traffic.request(text(200, 1), answer=text(50, 2), session="first")
    again = [*text(200, 1), *text(50, 2), 5]
    assert traffic.request(again, answer=text(50, 3), session="second") == 250


@KINDS
def test_what_a_session_alone_held_goes_with_it_and_says_why(kind):
    traffic = Traffic(kind)
    hold(traffic, text(100, 1), "main")
    traffic.now = 60.0
    traffic.cache.let_go("main", "idle")
    traffic.cache.check()
    assert traffic.cache.held("main") == (0, 0)
    assert traffic.cache.status().bytes == 0
    traffic.now = 67.0
    match = traffic.match([*text(100, 1), 5])
    assert (match.length, match.lost) == (0, 100)
    assert (match.evicted_by, match.evicted_seconds) == ("idle", 7.0)


@KINDS
@pytest.mark.parametrize("why", ["idle", "reset", "sessions"])
def test_letting_go_is_counted_by_its_cause(kind, why):
    traffic = Traffic(kind)
    hold(traffic, text(100, 1), "main")
    hold(traffic, text(100, 2), "main")
    traffic.cache.let_go("main", why)
    status = traffic.cache.status()
    assert getattr(status, f"evicted_by_{why}") == 2
    assert status.evicted_entries == 0


@KINDS
def test_an_entry_stays_when_its_session_lets_go(kind):
    traffic = Traffic(kind)
    hold(traffic, text(100, 1), "main", shared=True)
    traffic.cache.let_go("main", "idle")
    traffic.cache.check()
    status = traffic.cache.status()
    assert (status.entries, status.live_leaves) == (1, 0)
    assert reuse(traffic, text(100, 1)) == 100
    assert status.evicted_by_idle == 0


@KINDS
def test_letting_go_twice_or_as_a_stranger_changes_nothing(kind):
    traffic = Traffic(kind)
    hold(traffic, text(100, 1), "main")
    hold(traffic, text(100, 2), "other")
    for holder in ("main", "main", "stranger"):
        traffic.cache.let_go(holder, "reset")
        traffic.cache.check()
    assert traffic.cache.status().live_leaves == 1


@KINDS
def test_two_holders_of_one_state_keep_it_until_both_let_go(kind):
    traffic = Traffic(kind)
    hold(traffic, text(100, 1), "first")
    assert not hold(traffic, text(100, 1), "second"), "captured twice"
    traffic.cache.let_go("first", "idle")
    assert reuse(traffic, text(100, 1)) == 100
    assert traffic.cache.status().evicted_by_idle == 0
    traffic.cache.let_go("second", "idle")
    assert reuse(traffic, text(100, 1)) == 0


@KINDS
def test_a_leaf_that_another_session_extends_outlives_the_extension(kind):
    traffic = Traffic(kind)
    leaf, longer = text(100, 1), [*text(100, 1), *text(100, 2)]
    hold(traffic, leaf, "first")
    hold(traffic, longer, "second")
    traffic.cache.let_go("second", "idle")
    traffic.cache.check()
    assert [reuse(traffic, tokens) for tokens in (leaf, longer)] == [100, 100]


@KINDS
def test_letting_go_of_a_leaf_in_the_middle_joins_what_it_cut(kind):
    traffic = Traffic(kind)
    leaf, longer = text(100, 1), [*text(100, 1), *text(100, 2)]
    hold(traffic, leaf, "first")
    hold(traffic, longer, "second")
    assert len(traffic.cache.entries()) == 2
    traffic.cache.let_go("first", "idle")
    traffic.cache.check()
    assert len(traffic.cache.entries()) == 1
    assert reuse(traffic, longer) == 200
    expected = 0 if kind is CacheKind.SLICEABLE else 1
    assert traffic.cache.status().evicted_by_idle == expected, "what can be cut lost nothing"


@KINDS
def test_an_entry_is_not_superseded_by_what_only_a_session_holds(kind):
    traffic = Traffic(kind)
    entry, longer = text(100, 1), [*text(100, 1), *text(100, 2)]
    traffic.store(entry)
    hold(traffic, longer, "main")
    traffic.cache.let_go("main", "idle")
    traffic.cache.check()
    assert [reuse(traffic, tokens) for tokens in (entry, longer)] == [100, 100]
    assert traffic.cache.status().entries == 1


@KINDS
def test_an_entry_can_be_made_of_what_a_session_holds_without_a_capture(kind):
    traffic = Traffic(kind)
    held, part = text(200, 1), text(200, 1)[:100]
    if kind is CacheKind.CHECKPOINTED:
        hold(traffic, part, "other")
    hold(traffic, held, "main")
    assert not traffic.cache.wants(token_ids(part), EntryKind.USER_END)
    assert traffic.cache.hold(token_ids(part), None, kind=EntryKind.USER_END, shared=True)
    for holder in ("main", "other"):
        traffic.cache.let_go(holder, "idle")
        traffic.cache.check()
    assert reuse(traffic, held) == 100
    assert traffic.cache.status().entries == 1


@KINDS
def test_the_next_turn_replaces_the_live_leaf_that_it_extends(kind):
    traffic = Traffic(kind)
    tokens = text(100, 1)
    for seed in range(2, 7):
        hold(traffic, tokens, "main")
        tokens = [*tokens, *text(50, seed)]
    status = traffic.cache.status()
    assert (status.live_leaves, len(traffic.cache.entries())) == (1, 1)
    assert traffic.cache.held("main") == (300, status.bytes)


def test_a_cut_turn_leaves_the_whole_one_before_it_where_state_cannot_be_cut():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    tokens = text(300, 1)
    kinds = [EntryKind.TURN_END, EntryKind.PARTIAL, EntryKind.PARTIAL, EntryKind.TURN_END]
    for length, kind in zip((100, 160, 200, 240), kinds, strict=True):
        traffic.store(tokens[:length], kind, "main", "main", shared=False)
        if length == 200:
            assert [reuse(traffic, tokens[:n]) for n in (100, 160, 200)] == [100, 100, 200]
    assert [reuse(traffic, tokens[:n]) for n in (100, 160, 200, 240)] == [0, 0, 0, 240]


@KINDS
def test_branches_of_two_requests_at_once_can_both_be_continued(kind):
    traffic = Traffic(kind)
    prompt = text(100, 1)
    branches = [[*prompt, *text(50, seed)] for seed in (2, 3)]
    for branch in branches:
        hold(traffic, branch, "main")
    assert [reuse(traffic, branch) for branch in branches] == [150, 150]
    assert traffic.cache.status().live_leaves == 2


@KINDS
def test_of_more_than_four_branches_the_oldest_gives_way(kind):
    traffic = Traffic(kind)
    branches = [text(100, seed) for seed in range(6)]
    for branch in branches[:4]:
        hold(traffic, branch, "main")
    traffic.cache.hold(token_ids(branches[0]), "main")  # taken up again
    for branch in branches[4:]:
        hold(traffic, branch, "main")
        hold(traffic, [*branch, 7], "other")
    assert [reuse(traffic, branch) for branch in branches] == [100, 0, 0, 100, 100, 100]
    assert traffic.cache.status().evicted_by_sessions == 2


@KINDS
def test_a_prompt_that_is_stored_is_held_without_a_second_capture(kind):
    traffic = Traffic(kind)
    prompt = text(100, 1)
    traffic.store(prompt)
    before = traffic.cache.status()
    assert not traffic.cache.wants(token_ids(prompt), EntryKind.TURN_END, "main", False)
    assert traffic.cache.hold(token_ids(prompt), "main")
    status = traffic.cache.status()
    assert (status.live_leaves, status.bytes) == (1, before.bytes)
    assert traffic.cache.held("main")[0] == 100


def test_a_checkpoint_just_before_the_end_of_a_turn_serves_as_its_live_leaf():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    prompt = text(100, 1)
    traffic.store(prompt[:90], EntryKind.STABLE_END)
    assert not hold(traffic, prompt, "main")
    assert traffic.cache.held("main")[0] == 90


@KINDS
def test_what_is_not_stored_cannot_be_held(kind):
    traffic = Traffic(kind)
    traffic.store(text(100, 1))
    assert not traffic.cache.hold(token_ids([*text(100, 1), *text(50, 2)]), "main")
    assert traffic.cache.held("main") == (0, 0)


def test_a_model_without_reuse_holds_nothing():
    traffic = Traffic(CacheKind.UNCACHEABLE)
    assert not hold(traffic, text(100, 1), "main")
    assert not traffic.cache.hold(token_ids(text(100, 1)), "main")
    assert traffic.cache.status().live_leaves == 0


@KINDS
def test_a_reset_while_a_request_uses_the_leaf_leaves_its_snapshot_whole(kind):
    traffic = Traffic(kind)
    hold(traffic, text(100, 1), "main")
    match = traffic.match([*text(100, 1), 5])
    traffic.cache.let_go("main", "reset")
    traffic.cache.check()
    assert restored(match, kind) == text(100, 1)
    traffic.cache.release(match)
    traffic.cache.check()
    assert traffic.cache.status().bytes == 0


@KINDS
def test_own_bytes_leave_out_what_others_build_on(kind):
    traffic = Traffic(kind)
    head = text(1_000, 1)
    hold(traffic, [*head, *text(50, 2)], "first")
    hold(traffic, [*head, *text(80, 3)], "second")
    checkpoints = 1 if kind is CacheKind.CHECKPOINTED else 0
    for holder, own in (("first", 50), ("second", 80)):
        expected = (1_000 + own, bytes_of(tokens=own, nodes=1, checkpoints=checkpoints))
        assert traffic.cache.held(holder) == expected


@KINDS
def test_what_a_session_holds_are_all_its_branches_and_what_they_have_in_common_once(kind):
    traffic = Traffic(kind)
    head = text(1_000, 1)
    for seed, length in ((2, 50), (3, 80), (4, 20)):
        hold(traffic, [*head, *text(length, seed)], "main")
    assert traffic.cache.held("main") == (1_150, traffic.cache.status().bytes)
    hold(traffic, [*head, *text(70, 5)], "other")
    checkpoints = 3 if kind is CacheKind.CHECKPOINTED else 0
    own = bytes_of(tokens=150, nodes=3, checkpoints=checkpoints)
    assert traffic.cache.held("main") == (1_150, own)
    traffic.cache.let_go("main", "reset")
    assert traffic.cache.held("other") == (1_070, traffic.cache.status().bytes)


@KINDS
def test_own_bytes_of_a_session_that_goes_on_from_another_begin_where_that_ends(kind):
    traffic = Traffic(kind)
    hold(traffic, text(200, 1)[:100], "first")
    hold(traffic, text(200, 1), "second")
    first, second = traffic.cache.entries()
    assert traffic.cache.held("first")[1] == first.own_bytes
    assert traffic.cache.held("second")[1] == second.own_bytes


def test_a_part_of_an_entry_needs_no_entry_of_its_own():
    traffic = Traffic(CacheKind.SLICEABLE)
    traffic.store(text(100, 1))
    assert traffic.cache.hold(token_ids(text(100, 1)[:50]), None, shared=True)
    traffic.cache.check()
    assert len(traffic.cache.entries()) == 1


# Limits


@KINDS
def test_live_leaves_do_not_count_as_entries(kind):
    traffic = Traffic(kind, max_entries=2)
    for seed in range(6):
        hold(traffic, text(100, seed), str(seed))
    for seed in range(10, 12):
        traffic.store(text(100, seed), session=str(seed))
    status = traffic.cache.status()
    assert (status.entries, status.live_leaves, status.evicted_entries) == (2, 6, 0)


@KINDS
def test_the_entry_limit_costs_a_session_nothing_that_it_holds(kind):
    traffic = Traffic(kind, max_entries=2)
    for seed in range(4):
        hold(traffic, text(100, seed), str(seed), shared=True)
    status = traffic.cache.status()
    assert (status.entries, status.live_leaves, status.evicted_entries) == (2, 4, 0)
    assert all(reuse(traffic, text(100, seed)) == 100 for seed in range(4))
    for seed in range(4):
        traffic.cache.let_go(str(seed), "idle")
    assert [reuse(traffic, text(100, seed)) for seed in range(4)] == [0, 0, 100, 100]


def test_an_entry_below_which_only_a_session_goes_on_is_given_up_by_use():
    traffic = Traffic(CacheKind.SLICEABLE, max_entries=2)
    entries = [text(100, seed) for seed in range(3)]
    traffic.store(entries[0])
    hold(traffic, [*entries[0], *text(50, 9)], "main")
    traffic.store(entries[1])
    traffic.store(entries[2])
    assert [reuse(traffic, tokens) for tokens in entries] == [100, 100, 100]
    traffic.cache.let_go("main", "idle")
    assert [reuse(traffic, tokens) for tokens in entries] == [0, 100, 100]


@KINDS
def test_live_leaves_go_last_and_then_by_use(kind):
    room = bytes_of(tokens=450, nodes=4, checkpoints=4 if kind is CacheKind.CHECKPOINTED else 0)
    traffic = Traffic(kind, max_bytes=room, block_tokens=100)
    for seed in (1, 2):
        hold(traffic, text(100, seed), str(seed))
    for seed in (3, 4, 5):
        traffic.store(text(100, seed), session=str(seed))
    assert [reuse(traffic, text(100, seed)) for seed in range(1, 6)] == [100, 100, 0, 100, 100]
    for seed in (6, 7, 8):
        hold(traffic, text(100, seed), str(seed))
    held = [seed for seed in range(1, 9) if reuse(traffic, text(100, seed)) == 100]
    assert held == [2, 6, 7, 8]
    assert traffic.match([*text(100, 1), 5]).evicted_by == "bytes"


@KINDS
def test_an_unheld_newcomer_of_an_idle_time_does_not_push_out_live_leaves(kind):
    checkpoints = 6 if kind is CacheKind.CHECKPOINTED else 0
    room = bytes_of(tokens=700, nodes=8, checkpoints=checkpoints)
    traffic = Traffic(kind, max_bytes=room)
    for seed in range(4):
        hold(traffic, text(100, seed), str(seed))
    for seed in range(10, 40):
        traffic.store(text(100, seed), session=str(seed))
    assert [reuse(traffic, text(100, seed)) for seed in range(4)] == [100] * 4


def test_a_session_whose_leaf_is_thinned_away_holds_the_boundary_before_it():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_bytes=bytes_of(checkpoints=3, tokens=5_000))
    prompt = text(1_000, 1)
    traffic.store(prompt[:900], EntryKind.USER_END, "main")
    hold(traffic, prompt, "main", shared=True)
    for seed in (2, 3):
        hold(traffic, text(900, seed), str(seed))
    assert reuse(traffic, prompt) == 900
    assert traffic.cache.held("main")[0] == 900
    traffic.cache.let_go("main", "idle")
    assert reuse(traffic, prompt) == 900, "it was an entry too"


def test_branches_that_are_only_held_are_not_thinned_before_the_ends_of_others():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_bytes=bytes_of(checkpoints=4, tokens=9_000))
    other, head = text(200, 1), text(50, 2)
    traffic.store(other[:100], EntryKind.USER_END, "other")
    traffic.store(other, EntryKind.TURN_END, "other")
    branches = [[*head, *text(100, seed)] for seed in (3, 4)]
    for branch in branches:
        hold(traffic, branch, "main")
    traffic.store(text(100, 5), EntryKind.USER_END, "third")
    assert [reuse(traffic, branch) for branch in branches] == [150, 150]
    assert reuse(traffic, other) == 100


def test_a_conversation_is_not_thinned_for_entries_because_of_what_is_none():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=2)
    traffic.store(text(100, 1), EntryKind.USER_END, "oldest")
    main = text(200, 2)
    traffic.store(main[:100], EntryKind.USER_END, "main")
    hold(traffic, main, "main")
    traffic.store(text(100, 3), EntryKind.USER_END, "third")
    assert [reuse(traffic, tokens) for tokens in (text(100, 1), main[:100])] == [0, 100]


def test_on_the_way_to_a_newcomer_live_leaves_go_last_too():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_bytes=bytes_of(checkpoints=2, tokens=9_000))
    prompt = text(300, 1)
    traffic.store(prompt[:100], EntryKind.FORK, "a", "a")
    traffic.store(prompt[:200], EntryKind.FORK, "b")
    traffic.store(prompt, EntryKind.FORK, "c")
    assert [reuse(traffic, prompt[:n]) for n in (100, 200, 300)] == [100, 100, 300]


def test_a_live_leaf_that_is_no_entry_is_worth_a_users_end():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_bytes=bytes_of(checkpoints=3, tokens=9_000))
    prompt = text(3_000, 1)
    traffic.store(prompt[:500], EntryKind.PROMPT_END, "main")
    hold(traffic, prompt, "main")
    for seed in (2, 3):
        hold(traffic, text(900, seed), str(seed))
    assert reuse(traffic, prompt) == 3_000
    assert reuse(traffic, prompt[:500]) == 0


@KINDS
@pytest.mark.parametrize("others", [[], ["second"]])
def test_a_live_leaf_gets_its_place_back_if_the_next_one_cannot_stay(kind, others):
    checkpoints = 2 if kind is CacheKind.CHECKPOINTED else 0
    room = bytes_of(tokens=250, nodes=3, checkpoints=checkpoints)
    traffic = Traffic(kind, max_bytes=room)
    first, other = text(100, 1), text(100, 2)
    for holder in ("main", *others):
        hold(traffic, first, holder)
    hold(traffic, other, "other")
    in_use = [traffic.match([*tokens, 5]) for tokens in (first, other)]
    traffic.checkpoint_bytes += 1_000
    longer = [*first, *text(60, 3)]
    assert not hold(traffic, longer, "main")
    assert traffic.cache.held("main")[0] == 100
    in_use.append(traffic.match([*longer, 5]))
    assert in_use[-1].was_not_kept
    for match in in_use:
        traffic.cache.release(match)
        traffic.cache.check()
    for holder in ("main", *others):
        assert reuse(traffic, first) == 100
        traffic.cache.let_go(holder, "reset")
    assert reuse(traffic, first) == 0


@KINDS
def test_an_over_large_live_leaf_is_cut_or_skipped_like_an_entry(kind):
    traffic = Traffic(kind, max_bytes=bytes_of(tokens=1_000, nodes=4))
    stored = hold(traffic, text(5_000, 1), "main")
    assert stored == (kind is CacheKind.SLICEABLE)
    assert (500 <= traffic.cache.held("main")[0] <= 1_100) == stored
    match = traffic.match([*text(5_000, 1), 5])
    assert match.was_not_kept
    assert match.lost == 5_000
    assert match.evicted_by is None


# What the owner of the memory asks for


@KINDS
def test_giving_back_takes_the_least_used_first_and_live_leaves_last(kind):
    traffic = Traffic(kind)
    hold(traffic, text(1_000, 1), "main")
    for seed in (2, 3):
        traffic.store(text(1_000, seed), session=str(seed))
    one = traffic.cache.status().bytes // 3
    assert traffic.cache.give_back(one - 1_000) >= one - 1_000
    traffic.cache.check()
    left = [reuse(traffic, text(1_000, seed)) for seed in (1, 2, 3)]
    assert (left[0], left[2]) == (1_000, 1_000)
    assert left[1] < 100


@KINDS
def test_giving_back_all_keeps_what_is_in_use(kind):
    traffic = Traffic(kind)
    hold(traffic, text(100, 1), "main")
    traffic.store(text(100, 2))
    match = traffic.match([*text(100, 1), 5])
    before = traffic.cache.status().bytes
    freeable = traffic.cache.freeable_bytes()
    assert traffic.cache.freeable_bytes(keeping=token_ids([*text(100, 2), 5])) == 0
    assert 0 < traffic.cache.freeable_bytes(keeping=token_ids(text(100, 3))) == freeable
    freed = traffic.cache.give_back(1 << 40)
    traffic.cache.check()
    assert freed == freeable == before - traffic.cache.status().bytes > 0
    assert [reuse(traffic, text(100, seed)) for seed in (1, 2)] == [100, 0]
    traffic.cache.release(match)
    assert traffic.cache.give_back(1 << 40) > 0
    assert traffic.cache.status().bytes == 0


@KINDS
def test_giving_nothing_back_evicts_nothing(kind):
    traffic = Traffic(kind)
    traffic.store(text(100, 1))
    assert traffic.cache.give_back(0) == 0
    assert reuse(traffic, text(100, 1)) == 100


@KINDS
def test_a_smaller_byte_limit_holds_at_once(kind):
    traffic = Traffic(kind)
    for seed in range(6):
        traffic.store(text(1_000, seed), session=str(seed))
    half = traffic.cache.status().bytes // 2
    traffic.cache.set_max_bytes(half)
    traffic.cache.check()
    status = traffic.cache.status()
    assert status.max_bytes == half
    assert half // 2 < status.bytes <= half
    assert reuse(traffic, text(1_000, 5)) == 1_000
    traffic.cache.set_max_bytes(1 << 40)
    assert traffic.store(text(5_000, 9))
