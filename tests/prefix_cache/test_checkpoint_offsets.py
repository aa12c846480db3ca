"""Where reading stops to capture, by the prompt's marks, the tree's forks and the options."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.prefix_cache.checkpoints import (
    MESSAGE_SPACING,
    MOST_SPACINGS,
    EntryKind,
    PromptEnd,
    checkpoint_offsets,
)
from mlx_backend.messages import CacheKind, Marks, MessageStart, Prompt, token_ids

HEAD, USER, STABLE, END = 300, 700, 760, 799


def prompt(length: int = 800, marks: Marks | None = None) -> Prompt:
    given_marks = marks or Marks(head_end=HEAD, last_user_end=USER, stable_end=STABLE)
    return Prompt(token_ids(range(length)), given_marks)


def stops(start: int = 0, asked: Prompt | None = None, **options: object) -> list[tuple[int, str]]:
    options.setdefault("cache_kind", CacheKind.CHECKPOINTED)
    found = checkpoint_offsets(start, asked or prompt(), **options)
    return [(stop.offset, stop.kind) for stop in found]


def test_a_prompt_is_captured_at_its_joints():
    assert stops() == [
        (HEAD, EntryKind.HEAD),
        (USER, EntryKind.USER_END),
        (STABLE, EntryKind.STABLE_END),
        (END, EntryKind.PROMPT_END),
    ]


def test_what_was_restored_is_not_captured_again():
    assert stops(USER) == [(STABLE, EntryKind.STABLE_END), (END, EntryKind.PROMPT_END)]
    assert stops(END - 1) == []


def test_joints_less_than_the_gap_after_what_was_restored_are_left_out():
    assert stops(USER - 15)[0] == (STABLE, EntryKind.STABLE_END)
    assert stops(USER - 16)[0] == (USER, EntryKind.USER_END)


def test_of_two_close_joints_the_earlier_serves_and_takes_the_stronger_kind():
    marks = Marks(last_user_end=795, stable_end=795)
    assert stops(0, prompt(marks=marks)) == [(795, EntryKind.USER_END)]
    near_the_user = Marks(last_user_end=512 + 9)
    asked = prompt(marks=near_the_user)
    assert stops(0, asked, interval=512)[0] == (512, EntryKind.USER_END)


def test_the_gap_is_counted_from_the_one_kept_not_from_one_left_out():
    asked = prompt(marks=Marks(head_end=600, last_user_end=610, stable_end=620))
    assert stops(0, asked)[:2] == [(600, EntryKind.HEAD), (620, EntryKind.STABLE_END)]


def test_a_prompt_without_a_template_is_captured_before_tokens_that_may_merge():
    assert stops(0, prompt(marks=Marks(is_raw=True))) == [(792, EntryKind.STABLE_END)]


def test_where_the_prompt_leaves_the_tree_is_a_fork():
    assert (450, EntryKind.FORK) in stops(300, common=450)
    assert EntryKind.FORK not in dict(stops(300, common=300)).values()


def test_offsets_that_others_wait_for_are_captured_on_every_kind():
    assert (450, EntryKind.FORK) in stops(awaited=[450])
    sliceable = stops(awaited=[450], cache_kind=CacheKind.SLICEABLE)
    assert sliceable == [(450, EntryKind.FORK), (END, EntryKind.PROMPT_END)]


def test_a_model_that_can_be_cut_is_captured_at_the_prompts_end_only():
    assert stops(cache_kind=CacheKind.SLICEABLE, common=450) == [(END, EntryKind.PROMPT_END)]


def test_a_model_without_reuse_is_never_captured():
    assert stops(cache_kind=CacheKind.UNCACHEABLE, awaited=[450], interval=100) == []


@pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])
def test_initial_captures_the_end_of_an_opening_prompt_only(kind):
    ends = {EntryKind.USER_END, EntryKind.STABLE_END, EntryKind.PROMPT_END}
    initial = {"cache_kind": kind, "prompt_end": PromptEnd.INITIAL}
    assert not ends & set(dict(stops(opening=False, **initial)).values())
    assert stops(opening=True, **initial) == stops(cache_kind=kind)


@pytest.mark.parametrize("kind", [CacheKind.SLICEABLE, CacheKind.CHECKPOINTED])
def test_of_a_later_prompt_initial_captures_only_what_others_wait_for_and_the_interval(kind):
    later = {
        "opening": False,
        "prompt_end": PromptEnd.INITIAL,
        "common": 450,
        "cache_kind": kind,
    }
    assert stops(**later) == []
    assert stops(**later, awaited=[450]) == [(450, EntryKind.FORK)]
    assert stops(**later, interval=350)[-1] == (700, EntryKind.INTERVAL)


def test_an_interval_adds_its_multiples():
    found = [at for at, kind in stops(150, interval=200) if kind is EntryKind.INTERVAL]
    assert found == [200, 400, 600]


@settings(deadline=None)
@given(
    st.integers(1, 400),
    st.integers(0, 400),
    st.builds(Marks, st.integers(0, 500), st.integers(0, 500), st.integers(0, 500), st.booleans()),
    st.lists(st.integers(0, 500)),
    st.one_of(st.none(), st.integers(1, 100)),
    st.sampled_from([CacheKind.SLICEABLE, CacheKind.CHECKPOINTED]),
)
def test_offsets_ascend_lie_behind_the_start_and_leave_a_token_to_run(
    length, start, marks, awaited, interval, kind
):
    gap = 1 if kind is CacheKind.SLICEABLE else 16
    asked = prompt(length, marks)
    found = checkpoint_offsets(start, asked, cache_kind=kind, awaited=awaited, interval=interval)
    offsets = [start, *(stop.offset for stop in found)]
    assert all(after - before >= gap for before, after in pairwise(offsets))
    assert len(found) == 0 or offsets[-1] < length


def told(*lengths: int, users: tuple[int, ...] = ()) -> Prompt:
    """A history of messages that are so long, and a tail of five tokens. `users` speak in it."""
    begins = [0, *accumulate(lengths)]
    end = begins.pop()
    roles = ["user" if index in users else "tool" for index in range(len(begins))]
    marks = Marks(head_end=begins[1], last_user_end=end, stable_end=end)
    return Prompt(
        token_ids(range(end + 5)),
        marks,
        tuple(
            MessageStart(at, i, role)
            for i, (at, role) in enumerate(zip(begins, roles, strict=True))
        ),
    )


def within(asked: Prompt, start: int = 0, **options: object) -> list[int]:
    """Where a history is captured that is none of its own ends."""
    found = stops(start, asked, **options)
    return [at for at, kind in found if kind is EntryKind.MESSAGE_END]


def test_a_history_read_at_once_is_captured_between_its_messages():
    assert within(told(*[1_000] * 12)) == [5_000, 9_000]
    assert within(told(*[1_000] * 12), start=2_000) == [6_000, 10_000]
    assert within(told(*[1_000] * 5)) == [], "its end is near enough to its head"


def test_a_message_longer_than_the_spacing_is_captured_behind_it():
    assert within(told(500, 300, 9_000, 700, 500)) == [9_800]


def test_what_a_long_message_is_followed_by_can_be_taken_back_however_short_it_is():
    found = stops(0, told(500, 9_000, 11))
    assert found == [(500, EntryKind.HEAD), (9_500, EntryKind.USER_END)]


def test_a_history_is_captured_rather_where_a_user_goes_on():
    assert within(told(*[1_000] * 8)) == [5_000]
    assert within(told(*[1_000] * 8, users=(4,))) == [4_000]
    assert within(told(*[1_000] * 8, users=(2, 3, 4))) == [4_000]
    assert within(told(*[1_000] * 8, users=(2,))) == [5_000], "too near to the head"


@pytest.mark.parametrize(
    "options",
    [
        {"cache_kind": CacheKind.SLICEABLE},
        {"cache_kind": CacheKind.UNCACHEABLE},
        {"interval": 3_000},
        {"prompt_end": PromptEnd.INITIAL, "opening": False},
    ],
)
def test_messages_are_left_out_where_they_serve_nobody_or_were_not_asked_for(options):
    assert within(told(*[1_000] * 12), **options) == []


def test_initial_captures_the_history_that_opens_a_session():
    initial = {"prompt_end": PromptEnd.INITIAL, "opening": True}
    assert within(told(*[1_000] * 12), **initial) == [5_000, 9_000]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9_000), min_size=2, max_size=80),
    st.sets(st.integers(0, 79)),
    st.integers(0, 50_000),
    st.integers(0, 200_000),
)
def test_wherever_a_history_is_left_little_is_read_again(lengths, users, start, common):
    asked = told(*lengths, users=tuple(users))
    start = min(start, len(asked) - 1)
    found = checkpoint_offsets(
        start, asked, cache_kind=CacheKind.CHECKPOINTED, common=min(common, len(asked))
    )
    offsets = [start, *(stop.offset for stop in found)]
    spacing = max(MESSAGE_SPACING, len(asked) // MOST_SPACINGS)
    for message in asked.messages:
        if message.offset >= start:
            below = max(at for at in offsets if at <= message.offset)
            assert message.offset - below < spacing + 16
    between = [stop.offset for stop in found if stop.kind is EntryKind.MESSAGE_END]
    assert len(between) <= 2 * MOST_SPACINGS
    assert set(between) <= {message.offset for message in asked.messages}
    plain = Prompt(asked.tokens, asked.marks)
    ends = checkpoint_offsets(
        start, plain, cache_kind=CacheKind.CHECKPOINTED, common=min(common, len(asked))
    )
    for end in ends:
        serving = max((stop for stop in found if stop.offset <= end.offset), key=lambda s: s.offset)
        assert end.offset - serving.offset < 16
        assert serving.kind.strength >= end.kind.strength
