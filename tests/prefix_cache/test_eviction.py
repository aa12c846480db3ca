"""What goes when there is no room, and what must not."""

from __future__ import annotations

import pytest

from daemon.prefix_cache.checkpoints import EntryKind
from mlx_backend.messages import CacheKind, token_ids
from tests.prefix_cache.traffic import KINDS, Conversation, Traffic, bytes_of, restored, text


def reuse(traffic: Traffic, tokens: list[int]) -> int:
    """What a prompt that goes on from `tokens` would reuse; does not count as use."""
    return traffic.cache.peek([*tokens, 60_000])


def checkpoints_for(count: int, tokens: int = 5_000) -> int:
    return bytes_of(checkpoints=count, tokens=tokens, nodes=2 * count + 2)


@KINDS
def test_the_least_recently_used_goes_first_and_a_hit_counts_as_use(kind):
    traffic = Traffic(kind, max_entries=2)
    first, second, third = (text(100, seed) for seed in (1, 2, 3))
    traffic.store(first, session="first")
    traffic.store(second, session="second")
    traffic.cache.release(traffic.match([*first, 1]))
    traffic.store(third, session="third")
    assert [reuse(traffic, tokens) for tokens in (first, second, third)] == [100, 0, 100]


@KINDS
def test_peeking_is_no_use(kind):
    traffic = Traffic(kind, max_entries=2)
    first, second, third = (text(100, seed) for seed in (1, 2, 3))
    traffic.store(first)
    traffic.store(second)
    assert reuse(traffic, first) == 100
    traffic.store(third)
    assert reuse(traffic, first) == 0


@KINDS
def test_the_byte_limit_holds_after_each_of_ten_inserts(kind):
    traffic = Traffic(kind, max_bytes=10_000_000, checkpoint_bytes=3_000_000)
    for seed in range(10):
        traffic.store(text(150_000 if kind is CacheKind.SLICEABLE else 100, seed))
        status = traffic.cache.status()
        assert 0 < status.bytes <= status.max_bytes == 10_000_000
    assert traffic.cache.status().entries == (4 if kind is CacheKind.SLICEABLE else 3)


@KINDS
def test_the_array_limit_holds_like_the_byte_limit(kind):
    traffic = Traffic(kind, max_arrays=10, block_tokens=50)
    for seed in range(10):
        traffic.store(text(100, seed))
        assert 0 < traffic.cache.status().arrays <= 10
    assert traffic.cache.status().entries == (5 if kind is CacheKind.SLICEABLE else 2)


@KINDS
def test_no_entries_means_no_captures_and_never_fails(kind):
    traffic = Traffic(kind, max_entries=0)
    conversation = Conversation(traffic, "main", text(200, 1), seed=1)
    assert [conversation.turn() for _ in range(3)] == [0, 0, 0]
    assert traffic.cache.status().bytes == 0


@KINDS
def test_no_bytes_means_every_capture_is_skipped_and_counted(kind):
    traffic = Traffic(kind, max_bytes=0)
    assert not traffic.store(text(100, 1))
    assert traffic.cache.status().skipped_captures == 1


def test_a_model_without_reuse_stores_and_matches_nothing():
    traffic = Traffic(CacheKind.UNCACHEABLE)
    assert not traffic.store(text(100, 1))
    assert traffic.match(text(100, 1)).length == 0


@KINDS
def test_an_evicted_parent_leaves_its_child_whole(kind):
    traffic = Traffic(kind, max_entries=2)
    parent = text(100, 1)
    traffic.store(parent, EntryKind.TURN_END, "main")
    traffic.store([*parent, *text(100, 2)], EntryKind.TURN_END, "main")
    traffic.store(text(100, 3), EntryKind.TURN_END, "other")
    match = traffic.match([*parent, *text(100, 2), 5])
    assert match.length == 200
    if kind is CacheKind.CHECKPOINTED:
        traffic.cache.release(match)
        traffic.store(text(100, 4), EntryKind.TURN_END, "third")
        assert reuse(traffic, parent) == 0
        assert reuse(traffic, [*parent, *text(100, 2)]) == 200


@KINDS
def test_what_is_in_use_is_not_evicted_and_what_it_restored_does_not_change(kind):
    traffic = Traffic(kind, max_entries=1)
    used = text(100, 1)
    traffic.store(used, session="used")
    match = traffic.match([*used, 1])
    for seed in range(2, 6):
        assert not traffic.store(text(100, seed), session=str(seed))
        assert reuse(traffic, used) == 100
    assert restored(match, kind) == used
    traffic.cache.release(match)
    traffic.cache.release(match)
    assert traffic.store(text(100, 9))
    assert reuse(traffic, used) == 0


def test_what_lies_behind_a_prompts_way_in_makes_room_for_it_while_it_runs():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=2_000, nodes=6))
    head = text(300, 1)
    traffic.store([*head, *text(1_650, 2)], session="old")
    newcomer = [*head, *text(900, 3)]
    running = traffic.match(newcomer)
    assert running.length == 300
    assert traffic.store(newcomer, session="new")
    traffic.cache.release(running)
    traffic.check()
    assert reuse(traffic, newcomer) == len(newcomer)
    assert traffic.cache.status().skipped_captures == 0


@KINDS
def test_limits_hold_again_once_nothing_is_in_use(kind):
    traffic = Traffic(kind, max_entries=3)
    prompts = [text(100, seed) for seed in range(3)]
    for number, prompt in enumerate(prompts):
        traffic.store(prompt, session=str(number))
    held = [traffic.match([*prompt, 1]) for prompt in prompts]
    traffic.store([*prompts[0], *text(50, 9)], session="0")
    for match in held:
        traffic.cache.release(match)
        traffic.cache.check()
    assert traffic.cache.status().entries <= 3


@KINDS
def test_forks_of_a_head_survive_the_heads_eviction_midway(kind):
    traffic = Traffic(kind, max_entries=3)
    head = text(200, 1)
    traffic.store(head, EntryKind.HEAD, "a")
    held = [traffic.match([*head, *text(10, 2)]), traffic.match([*head, *text(10, 3)])]
    traffic.store([*head, *text(50, 2)], session="a")
    traffic.store([*head, *text(50, 3)], session="b")
    traffic.store([*head, *text(50, 4)], session="c")
    for match in held:
        assert restored(match, kind) == head
        traffic.cache.release(match)
    assert traffic.match([*head, *text(50, 4), 1]).length == 250
    assert traffic.match([*head, *text(50, 5)]).length == 200


# Over-large newcomers


def test_an_over_large_newcomer_is_cut_to_the_blocks_that_fit():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=1_000, nodes=4))
    kept, newcomer = text(300, 1), text(5_000, 2)
    traffic.store(kept)
    assert traffic.store(newcomer)
    assert reuse(traffic, kept) == 300
    assert 500 <= reuse(traffic, newcomer) <= 750
    assert reuse(traffic, newcomer) % traffic.block_tokens == 0


def test_an_over_large_newcomer_shortens_others_to_half_the_cache_at_most():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=1_000, nodes=4))
    old, new, newcomer = text(450, 1), text(450, 2), text(5_000, 3)
    traffic.store(old)
    traffic.store(new)
    assert traffic.store(newcomer)
    assert 400 <= reuse(traffic, newcomer) <= 500
    assert reuse(traffic, new) == 450
    assert 0 < reuse(traffic, old) < 200


def test_an_over_large_conversation_keeps_its_beginning_turn_after_turn():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=1_000, nodes=4))
    conversation = Conversation(traffic, "main", text(900, 1), seed=1, user_length=300)
    conversation.turn()
    for _ in range(4):
        assert conversation.turn() >= 450


def test_a_checkpoint_that_cannot_fit_is_skipped_and_costs_nobody_anything():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_bytes=checkpoints_for(2))
    kept = text(100, 1)
    traffic.store(kept)
    assert not traffic.store(text(300_000, 2))
    assert reuse(traffic, kept) == 100
    status = traffic.cache.status()
    assert (status.skipped_captures, status.evicted_entries) == (1, 0)


def test_an_over_large_newcomer_in_arrays_is_cut_like_one_in_bytes():
    traffic = Traffic(CacheKind.SLICEABLE, max_arrays=10, block_tokens=50)
    kept, newcomer = text(100, 1), text(2_000, 2)
    traffic.store(kept)
    assert traffic.store(newcomer)
    assert [reuse(traffic, tokens) for tokens in (kept, newcomer)] == [100, 400]


def test_a_checkpoint_with_too_many_arrays_is_skipped_and_costs_nobody_anything():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_arrays=4, block_tokens=50)
    kept = text(100, 1)
    traffic.store(kept)
    assert not traffic.store(text(500, 2))
    assert reuse(traffic, kept) == 100


# Conversations on models that can be cut


def test_an_entry_supersedes_the_one_it_extends():
    traffic = Traffic(CacheKind.SLICEABLE)
    conversation = Conversation(traffic, "main", text(200, 1), seed=1)
    for _ in range(10):
        conversation.turn()
        assert traffic.cache.status().entries == 1
    assert traffic.cache.status().evicted_entries == 0


def test_a_conversation_is_shortened_before_it_is_lost():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=1_000, nodes=4))
    old = text(600, 1)
    traffic.store(old)
    left = []
    for seed in range(2, 6):
        traffic.store(text(150, seed))
        left.append(reuse(traffic, old))
    assert left == [600, 600, 512, 320]
    assert traffic.cache.status().evicted_entries == 0


def test_shared_tokens_are_held_once():
    traffic = Traffic(CacheKind.SLICEABLE)
    head = text(2_000, 1)
    for seed in range(20):
        traffic.store([*head, *text(100, seed + 2)])
    status = traffic.cache.status()
    assert status.tokens == 2_000 + 20 * 100
    assert status.span_bytes == status.tokens * 16


# Thinning on models that cannot


def test_the_conversation_that_holds_the_most_thins_itself_first():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=8)
    small = Conversation(traffic, "small", text(200, 1), seed=1)
    small.turn()
    before = traffic.cache.status().entries
    busy = Conversation(traffic, "busy", text(200, 2), seed=2)
    for _ in range(6):
        busy.turn()
    assert before == 3
    assert reuse(traffic, [*small.head, *small.history]) == len(small.head) + len(small.history)
    assert traffic.cache.status().evicted_entries == 0


def test_of_two_conversations_with_something_to_spare_the_larger_gives():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=14)
    small = Conversation(traffic, "small", text(200, 1), seed=1)
    busy = Conversation(traffic, "busy", text(200, 2), seed=2)
    small.turn()
    old = small.last_boundary
    small.turn()
    for _ in range(6):
        busy.turn()
    assert traffic.cache.status().entries == 14
    assert reuse(traffic, [*small.head, *small.history][:old]) == old


def test_the_end_of_a_turn_does_not_cost_its_own_conversation_the_users_end():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=2)
    other, main = text(100, 1), text(200, 2)
    traffic.store(other, EntryKind.USER_END, "other")
    traffic.store(main[:100], EntryKind.USER_END, "main")
    traffic.store(main, EntryKind.TURN_END, "main")
    assert [reuse(traffic, tokens) for tokens in (other, main[:100], main)] == [0, 100, 200]


def test_a_newcomer_may_cost_the_head_it_stands_on_if_nothing_else_is_left():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=1)
    prompt = text(200, 1)
    traffic.store(prompt[:100], EntryKind.HEAD, "first")
    assert traffic.store(prompt, EntryKind.USER_END, "second")
    assert reuse(traffic, prompt) == 200


def test_of_two_conversations_that_hold_as_much_the_longer_unused_gives():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=4)
    first, second = text(200, 1), text(200, 2)
    for tokens, session in ((first, "first"), (second, "second")):
        traffic.store(tokens[:100], EntryKind.USER_END, session)
        traffic.store(tokens, EntryKind.TURN_END, session)
    traffic.cache.release(traffic.match([*first, 1]))
    traffic.store(text(100, 3), EntryKind.USER_END, "third")
    assert [reuse(traffic, first), reuse(traffic, second)] == [200, 100]


def test_a_small_head_that_nobody_shares_goes_before_a_long_users_end():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=2)
    prompt = text(3_000, 1)
    traffic.store(prompt[:50], EntryKind.HEAD, "main")
    traffic.store(prompt, EntryKind.USER_END, "main")
    traffic.store(text(2_000, 2), EntryKind.USER_END, "other")
    assert [reuse(traffic, prompt[:50]), reuse(traffic, prompt)] == [0, 3_000]


def test_a_conversation_goes_leaf_by_leaf_when_a_newcomer_needs_it_all():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_bytes=checkpoints_for(3))
    prompt = text(300, 1)
    for length, session in ((100, "a"), (200, "b"), (300, "c")):
        traffic.store(prompt[:length], EntryKind.FORK, session)
    traffic.checkpoint_bytes = 3_000_000
    assert traffic.store(text(100, 2), EntryKind.USER_END, "large")
    assert [reuse(traffic, prompt), reuse(traffic, text(100, 2))] == [0, 100]
    assert traffic.cache.status().evicted_entries == 3


def test_the_checkpoint_that_saves_the_fewest_tokens_goes_first():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=4)
    prompt = text(1_000, 1)
    for offset in (300, 400, 800, 970):
        traffic.store(prompt[:offset], EntryKind.INTERVAL, "main")
    traffic.store(prompt, EntryKind.INTERVAL, "main")
    assert [reuse(traffic, prompt[:n]) for n in (300, 400, 800, 970)] == [300, 300, 800, 970]


def test_bytes_are_weighed_against_tokens():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=3)
    prompt = text(1_000, 1)
    for offset, size in ((300, 1_000_000), (700, 4_000_000), (1_000, 1_000_000)):
        traffic.checkpoint_bytes = size
        traffic.store(prompt[:offset], EntryKind.INTERVAL, "main")
    traffic.checkpoint_bytes = 1_000_000
    traffic.store(text(100, 2), EntryKind.USER_END, "other")
    assert [reuse(traffic, prompt[:n]) for n in (300, 700, 1_000)] == [300, 300, 1_000]


ORDER = [
    EntryKind.MESSAGE_END,
    EntryKind.INTERVAL,
    EntryKind.PARTIAL,
    EntryKind.TURN_END,
    EntryKind.PROMPT_END,
    EntryKind.STABLE_END,
    EntryKind.FORK,
    EntryKind.USER_END,
]


@pytest.mark.parametrize("kinds", [ORDER, ORDER[::-1], ORDER[3:] + ORDER[:3]])
def test_a_conversation_gives_up_its_kinds_in_order_and_keeps_one(kinds):
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=len(ORDER))
    prompt = text(1_000, 1)
    offsets = {kind: 100 * (place + 1) for place, kind in enumerate(kinds)}
    for kind, offset in offsets.items():
        traffic.store(prompt[:offset], kind, "main")
    for number, kind in enumerate(ORDER[:-1]):
        traffic.store(text(90 + number, 100 + number), EntryKind.USER_END, f"new-{number}")
        left = {k for k, offset in offsets.items() if reuse(traffic, prompt[:offset]) == offset}
        assert left == set(ORDER[ORDER.index(kind) + 1 :])
    assert traffic.cache.status().evicted_entries == 0


def test_what_the_next_turn_needs_stays_when_older_ends_go():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=3)
    conversation = Conversation(traffic, "main", text(200, 1), seed=1)
    conversation.turn()
    old = conversation.last_boundary
    conversation.turn()
    tokens = [*conversation.head, *conversation.history]
    new = conversation.last_boundary
    assert [reuse(traffic, tokens[:n]) for n in (200, old, new)] == [200, 200, new]
    assert reuse(traffic, tokens) == len(tokens)


def test_branches_of_one_session_keep_the_end_of_their_last_user_message():
    """Sub-agents that run in turns under their parent's session id must not thin each other."""
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=9)
    head = text(500, 1)
    agents = [Conversation(traffic, "shared", head, seed=n + 2) for n in range(4)]
    for _ in range(4):
        for agent in agents:
            boundary = agent.last_boundary
            assert agent.turn() >= boundary


def test_anonymous_branches_are_told_apart_by_where_they_go_on():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=10)
    parent = Conversation(traffic, "", text(500, 1), seed=1)
    parent.turn()
    head = [*parent.head, *parent.history]
    agents = [Conversation(traffic, "", head, seed=n + 2) for n in range(4)]
    for turn in range(4):
        for number, agent in enumerate(agents):
            agent.session = f"request-{turn}-{number}"
            boundary = agent.last_boundary
            assert agent.turn() >= boundary


def test_a_head_that_is_shared_outlives_the_conversations_on_it():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=3)
    head = text(500, 1)
    for seed in range(2, 12):
        conversation = Conversation(traffic, str(seed), head, seed=seed)
        assert conversation.turn() == (500 if seed > 2 else 0)


def test_under_a_limit_of_one_the_newest_checkpoint_stays():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=1)
    conversation = Conversation(traffic, "main", text(500, 1), seed=1, user_length=300)
    conversation.turn()
    for _ in range(4):
        boundary = conversation.last_boundary
        assert conversation.turn() >= boundary


def test_a_checkpoint_close_behind_another_is_not_wanted():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    prompt = text(200, 1)
    traffic.store(prompt[:100])
    cache = traffic.cache
    wanted = [n for n in range(90, 130) if cache.wants(token_ids(prompt[:n]), EntryKind.FORK)]
    assert wanted == [*range(90, 100), *range(116, 130)]


def test_an_offset_stored_twice_takes_the_stronger_kind():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=2)
    prompt = text(500, 1)
    traffic.store(prompt[:200], EntryKind.INTERVAL, "main")
    ids = token_ids(prompt[:200])
    assert traffic.cache.insert(
        ids,
        span=None,
        checkpoint=traffic.checkpoint(ids),
        kind=EntryKind.USER_END,
        conversation="main",
    )
    traffic.store(prompt, EntryKind.INTERVAL, "main")
    traffic.store(text(100, 2), EntryKind.USER_END, "other")
    assert reuse(traffic, prompt[:200]) == 200
    assert reuse(traffic, prompt) == 200


def test_a_checkpoint_that_nobody_asked_about_is_refused_if_it_is_close():
    traffic = Traffic(CacheKind.CHECKPOINTED)
    prompt = text(200, 1)
    traffic.store(prompt[:100])
    ids = token_ids(prompt[:110])
    assert not traffic.cache.insert(
        ids,
        span=traffic.span(ids),
        checkpoint=traffic.checkpoint(ids),
        kind=EntryKind.HEAD,
        conversation="main",
    )
    status = traffic.cache.status()
    assert (status.entries, status.tokens, status.skipped_captures) == (1, 100, 1)


def test_clearing_forgets_everything_and_outlives_a_pin():
    traffic = Traffic(CacheKind.SLICEABLE)
    prompt = text(100, 1)
    traffic.store(prompt)
    match = traffic.match([*prompt, 1])
    traffic.store([*prompt, *text(100, 2)])
    traffic.cache.clear()
    traffic.cache.check()
    traffic.cache.release(match)
    traffic.cache.check()
    assert traffic.cache.status().bytes == 0
    assert traffic.store(prompt)


def test_an_entry_in_use_keeps_its_place_if_its_successor_does_not_fit():
    traffic = Traffic(CacheKind.SLICEABLE, max_bytes=bytes_of(tokens=230, nodes=3))
    other, used = text(100, 1), text(100, 2)
    traffic.store(other)
    traffic.store(used)
    held = [traffic.match([*tokens, 1]) for tokens in (other, used)]
    assert not traffic.store([*used, *text(60, 3)])
    for match in held:
        traffic.cache.release(match)
        traffic.cache.check()
    assert [reuse(traffic, tokens) for tokens in (other, used)] == [100, 100]


def test_a_split_that_took_an_array_too_many_is_made_good_when_it_is_released():
    traffic = Traffic(CacheKind.SLICEABLE, max_arrays=2, block_tokens=50)
    used = text(100, 1)
    traffic.store(used)
    match = traffic.match([*used, 1])
    assert traffic.cache.hold(token_ids(used[:25]), "main")
    assert traffic.cache.status().arrays == 3
    traffic.cache.release(match)
    assert traffic.cache.status().arrays == 2
    assert reuse(traffic, used) == 50


@KINDS
def test_a_rejected_match_goes_though_its_edge_was_split_since(kind):
    traffic = Traffic(kind, minimum_gap=1)
    prompt = text(100, 1)
    traffic.store(prompt)
    match = traffic.match([*prompt[:40], *text(5, 2), *text(5, 3)])
    traffic.store([*prompt[:40], *text(5, 2)])
    traffic.cache.reject(match)
    traffic.cache.check()
    expected = 0 if kind is CacheKind.SLICEABLE else 45
    assert reuse(traffic, [*prompt[:40], *text(5, 2)]) == expected


def test_small_one_shot_calls_do_not_push_out_the_session_they_serve():
    traffic = Traffic(CacheKind.SLICEABLE, max_entries=4)
    main = text(3_000, 1)
    traffic.store(main)
    for seed in range(2, 30):
        traffic.store(text(80, seed))
    assert reuse(traffic, main) == 3_000


def test_status_adds_up():
    traffic = Traffic(CacheKind.CHECKPOINTED, max_entries=50)
    conversation = Conversation(traffic, "main", text(200, 1), seed=1)
    for _ in range(3):
        conversation.turn()
    status = traffic.cache.status()
    assert status.bytes == status.span_bytes + status.checkpoint_bytes + status.index_bytes
    assert status.checkpoint_bytes == status.checkpoints * 1_000_000
    assert (status.entries, status.max_entries) == (7, 50)
    assert (status.hits, status.misses) == (2, 1)
